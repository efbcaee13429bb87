"""Translations with the tokens of a shortlist, against searches among all tokens and by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_attn_cli
from keras_attn import Translator
from keras_attn.generation import DecodingOptions
from keras_attn.models import RNNSeq2Seq, Seq2SeqTransformer
from keras_attn.ops import int8_problem
from keras_attn.tasks import Shortlist, make_shortlist, read_links
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

WORDS = "der hund läuft schnell durch den tiefen schnee nach hause und bellt".split()
TEXTS = [" ".join(np.random.default_rng(seed).choice(WORDS, 1 + seed % 7)) for seed in range(19)]
SIZE = 331


@pytest.fixture(scope="module")
def tokenizer():
    texts = [" ".join(np.random.default_rng(seed).choice(WORDS, 11)) for seed in range(101)]
    return SentencePieceTokenizer.train(texts, SIZE, "bpe")


@pytest.fixture(scope="module", params=["tied", "untied"])
def model(request):
    keras.utils.set_random_seed(7)
    return Seq2SeqTransformer.from_sizes(
        SIZE,
        1,
        2,
        hidden_dim=12,
        num_heads=2,
        intermediate_dim=17,
        max_sequence_length=29,
        tie_output=request.param == "tied",
        target_vocabulary_size=None if request.param == "tied" else SIZE,
    )


def make_translator(model, tokenizer, shortlist=None, **options):
    options = {"num_beams": 3, "max_length": 9} | options
    return Translator(model, tokenizer, tokenizer, shortlist=shortlist, **options)


def some_tokens(tokenizer, seed=5, count=11):
    """A list of END and a few tokens for each source token."""
    generator = np.random.default_rng(seed)
    ids = np.setdiff1d(np.arange(SIZE), tokenizer.special_token_ids)
    of_source = {source: sorted(generator.choice(ids, count, False).tolist()) for source in range(4, SIZE)}
    return Shortlist([tokenizer.end_token_id], of_source)


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_list_of_all_words_changes_nothing(model, tokenizer, num_beams):
    everything = Shortlist(range(SIZE), {})
    expected, found = (
        make_translator(model, tokenizer, shortlist)(
            TEXTS, num_beams=num_beams, num_return_sequences=num_beams, return_scores=True, batch_size=5
        )
        for shortlist in (None, everything)
    )
    assert found[0] == expected[0]
    for scores, others in zip(found[1], expected[1]):
        np.testing.assert_allclose(scores, others, rtol=1e-5)
    for options in (
        DecodingOptions(repetition_penalty=1.2, min_length=3),
        DecodingOptions(temperature=0.8, seed=3),
    ):
        expected, found = (
            make_translator(model, tokenizer, shortlist)(TEXTS, num_beams=num_beams, options=options)
            for shortlist in (None, everything)
        )
        assert found == expected


@pytest.mark.extended
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("mode", ["int8", "bfloat16"])
def test_a_quantised_translator_has_the_list(model, tokenizer, tmp_path, mode, xla):
    if mode == "int8" and not xla and (problem := int8_problem()):
        pytest.skip(problem)
    translator = make_translator(model, tokenizer).quantized(mode, xla=xla).replaced(jit_compile=xla)
    options = {"num_beams": 1, "return_scores": True, "batch_size": 8}
    expected = translator(TEXTS, **options)
    found = translator.replaced(shortlist=Shortlist(range(SIZE), {}))(TEXTS, **options)
    if mode == "int8" or xla:  # without XLA, logits in bfloat16 are rounded, those of a list in another order
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    if not xla:
        listing = make_translator(model, tokenizer, some_tokens(tokenizer))
        version = listing.export(tmp_path / "served", quantization=mode, signatures=["translate_n_best"])
        served = tf.saved_model.load(str(version)).signatures["serving_default"](tf.constant(TEXTS))
        answers = listing.quantized(mode, xla=False)(TEXTS)
        assert [text.decode() for text in served["outputs"].numpy()] == answers


@pytest.mark.extended
def test_each_row_has_the_tokens_of_its_own_list(model, tokenizer):
    shortlist = some_tokens(tokenizer)
    translator = make_translator(model, tokenizer, shortlist)
    for options in (None, DecodingOptions(min_length=5), DecodingOptions(temperature=1.0, seed=3)):
        answers, scores = translator(TEXTS, return_scores=True, options=options)
        alone = [translator(text, return_scores=True, options=options) for text in TEXTS]
        assert answers == [text for text, _ in alone]
        np.testing.assert_allclose(scores, [score for _, score in alone], rtol=1e-4)
        greedy = translator(TEXTS, num_beams=1, options=options)
        assert greedy == [translator(text, num_beams=1, options=options) for text in TEXTS]


@pytest.mark.parametrize(("num_anywhere", "length"), [(7, 384), (600, 768), (1300, 1536), (1537, 1543)])
def test_lists_for_xla_have_few_lengths(num_anywhere, length):
    """1,543 tokens are the vocabulary: no list is longer."""
    shortlist = Shortlist(range(3, 3 + num_anywhere), {5: [1500, 1540], 7: [2]})
    source_ids = tf.constant([[5, -1, -1], [11, 7, 7]])
    plain, filled = (
        shortlist.listed_tokens(source_ids, 13, 1543, to_buckets=to_buckets) for to_buckets in (False, True)
    )
    ids, of_rows = filled.token_ids.numpy(), filled.is_listed.numpy()
    assert len(ids) == length
    assert (np.diff(ids) > 0).all()
    assert set(plain.token_ids.numpy()) <= set(ids)
    # What a row may write is the same; all that was added is no row's.
    for row in range(2):
        assert set(ids[of_rows[row]]) == set(plain.token_ids.numpy()[plain.is_listed.numpy()[row]])


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", [1, 3])
def test_xla_finds_the_same(model, tokenizer, num_beams):
    shortlist = some_tokens(tokenizer)
    options = {"num_beams": num_beams, "return_scores": True, "batch_size": 8}
    expected, found = (
        make_translator(model, tokenizer, shortlist, jit_compile=jit_compile)(TEXTS, **options)
        for jit_compile in (False, True)
    )
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def own_list(shortlist, source_ids):
    return sorted(
        {*shortlist.anywhere, *(i for source in source_ids for i in shortlist.by_source.get(source, []))}
    )


def test_greedy_by_hand(model, tokenizer):
    """At each place of an answer, with all logits, of which those of the list are looked at."""
    shortlist = some_tokens(tokenizer)
    translator = make_translator(model, tokenizer, shortlist)
    search = translator.search_options(num_beams=1, num_return_sequences=1)
    rows = [[*ids, tokenizer.end_token_id] for ids in tokenizer.encode(TEXTS[:5])]
    sources = tf.ragged.constant(rows).to_tensor(-1)
    found = translator.generate(sources, search)
    answers = np.array(found.token_ids[:, 0])
    before = np.pad(np.maximum(answers, 0), [(0, 0), (1, 0)], constant_values=tokenizer.start_token_id)
    logits = np.array(model.teacher_forced(tf.maximum(sources, 0), before[:, :-1], sources >= 0))
    for row, source in enumerate(rows):
        listed = own_list(shortlist, source)
        answer = answers[row][answers[row] >= 0]
        of_listed = logits[row, : len(answer)][:, listed].astype("float64")
        best = of_listed.argmax(axis=1)
        assert np.array(listed)[best].tolist() == answer.tolist()
        log_probs = of_listed.max(axis=1) - np.log(np.exp(of_listed).sum(axis=1))
        assert float(found.scores[row, 0]) == pytest.approx(log_probs.mean(), rel=1e-4)


@pytest.mark.extended
def test_more_candidates_than_a_vocabulary_has(model, tokenizer):
    """Of 150 beams, each step looks at 300 tokens; a list has 256 or more."""
    found, expected = (
        make_translator(model, tokenizer, shortlist, num_beams=150, max_length=3)(TEXTS[:2])
        for shortlist in (Shortlist(range(SIZE), {}), None)
    )
    assert found == expected
    # A list that is shorter than the vocabulary, against the search with an option, which knows all tokens.
    translator = make_translator(model, tokenizer, some_tokens(tokenizer), num_beams=150, max_length=3)
    found, expected = (
        translator(TEXTS[:2], num_return_sequences=7, options=options)
        for options in (None, DecodingOptions(repetition_penalty=1.0))
    )
    assert found == expected


@pytest.mark.extended
def test_a_prefix_may_have_any_token(model, tokenizer):
    shortlist = Shortlist([tokenizer.end_token_id], {source: [300] for source in range(SIZE)})
    translator = make_translator(model, tokenizer, shortlist)
    for answer in translator(TEXTS[:3], target_prefix="schnee"):
        assert answer.startswith("schnee")


@pytest.mark.extended
def test_the_export_and_a_saved_translator_have_the_list(model, tokenizer, tmp_path):
    translator = make_translator(model, tokenizer, some_tokens(tokenizer))
    expected = translator(TEXTS)
    assert expected != make_translator(model, tokenizer)(TEXTS)
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved")(TEXTS) == expected
    version = translator.export(tmp_path / "served", signatures=["translate", "sample"])
    assert "tokens alone that its shortlist has" in (version / "README.md").read_text()
    served = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert [text.decode() for text in served(inputs=tf.constant(TEXTS))["outputs"].numpy()] == expected


@pytest.mark.extended
@pytest.mark.parametrize("mode", [None, "int8"])
def test_verify_compares_with_the_list_of_the_export(model, tokenizer, tmp_path, capsys, mode):
    if mode and (problem := int8_problem()):
        pytest.skip(problem)
    translator = make_translator(model, tokenizer)
    translator.save(tmp_path / "without")
    listing = translator.replaced(shortlist=some_tokens(tokenizer))
    version = listing.export(tmp_path / "served", TEXTS[:2], signatures=[], quantization=mode)
    arguments = ["verify", str(version), "--task", str(tmp_path / "without")]
    assert keras_attn_cli.main(arguments) == 0
    assert f"ok      shortlist: lists for {SIZE - 4} source tokens\n" in capsys.readouterr().out
    (version / "assets.extra" / "shortlist.json").unlink()
    assert keras_attn_cli.main(arguments) == 1
    assert "FAILED  answers" in capsys.readouterr().out


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", [1, 3])
def test_ctranslate2_has_the_list(model, tokenizer, tmp_path, num_beams):
    ctranslate2 = pytest.importorskip("ctranslate2")
    shortlist = some_tokens(tokenizer)
    translator = make_translator(model, tokenizer, shortlist)
    folder = translator.export_model(tmp_path / "engine", "ctranslate2")
    engine = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)
    strings = tokenizer.token_strings(range(SIZE))
    for text in TEXTS[:7]:
        [found] = engine.translate_batch(
            [tokenizer.token_strings(tokenizer.encode([text])[0])],
            use_vmap=True,
            beam_size=num_beams,
            max_decoding_length=9,
            min_decoding_length=0,
            patience=9,
            suppress_sequences=[["<unk>"], ["<s>"]],  # which it adds to every list
            return_scores=True,
        )
        ids = [strings.index(token) for token in found.hypotheses[0]]
        assert set(ids) <= set(own_list(shortlist, tokenizer.encode([text])[0]))
        answer, score = translator(
            text, num_beams=num_beams, return_scores=True, options=DecodingOptions(exact_stopping=True)
        )
        assert answer == tokenizer.decode([ids])[0]
        assert score == pytest.approx(found.scores[0], abs=1e-4)


def test_a_file_is_read_as_it_was_written(tokenizer, tmp_path):
    shortlist = some_tokens(tokenizer)
    shortlist.save(tmp_path / "list.txt", tokenizer, tokenizer)
    again = Shortlist.load(tmp_path / "list.txt", tokenizer, tokenizer)
    assert (again.anywhere, again.by_source) == (shortlist.anywhere, shortlist.by_source)


def test_a_list_by_hand(tokenizer, tmp_path):
    (tmp_path / "links").write_text("0-1 1-0\n\n1-0\n")
    sources, targets = ["hund bellt", "schnee", "der schnee"], ["bellt hund", "den", "schnee"]
    translator = make_translator(
        Seq2SeqTransformer.from_sizes(SIZE, 1, 1, hidden_dim=4, num_heads=1, intermediate_dim=5), tokenizer
    )
    shortlist = make_shortlist(translator, read_links(tmp_path / "links"), sources, targets, num_anywhere=1)
    [of] = [dict(zip(WORDS, tokenizer.encode(WORDS)))]
    [frequent] = set(shortlist.anywhere) - set(range(4 + 256))
    assert tokenizer.end_token_id in shortlist.anywhere
    assert frequent in {i for word in ("bellt", "hund", "den", "schnee") for i in of[word]}
    for word in ("hund", "bellt", "schnee", "der"):
        for source in of[word]:
            linked = {"der": []}.get(word, of[word])
            assert set(shortlist.by_source.get(source, [])) >= {source, *linked} - {frequent}
    assert set(shortlist.by_source[of["den"][-1]]) <= {of["den"][-1]}  # not linked: itself


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0 1\n", "line 1, must have links as in `0-0 1-2`. Received: '0-0 1'"),
        ("0-0\n0-7\n", "Pair 2 has 1 and 1 words. Received: a link 0-7"),
    ],
)
def test_wrong_links_are_refused(model, tokenizer, tmp_path, text, message):
    (tmp_path / "links").write_text(text)
    with pytest.raises(ValueError, match=message):
        make_shortlist(
            make_translator(model, tokenizer), read_links(tmp_path / "links"), ["hund"] * 2, ["hund"] * 2
        )


def test_what_cannot_have_a_list_is_refused(model, tokenizer, tmp_path):
    (tmp_path / "list.txt").write_text("\t</s>\nxyz\t</s>\n")
    with pytest.raises(
        ValueError, match=r"list.txt, line 2, must be a source token, .* Received: 'xyz\\t</s>'"
    ):
        make_translator(model, tokenizer, tmp_path / "list.txt")
    with pytest.raises(ValueError, match="must have END, 3"):
        make_translator(model, tokenizer, Shortlist([5], {}))
    with pytest.raises(
        ValueError, match=r"target tokens of a shortlist must be in \[0, 331\). Received: 400"
    ):
        make_translator(model, tokenizer, Shortlist([3], {5: [400]}))
    translator = make_translator(model, tokenizer, Shortlist([3], {}))
    with pytest.raises(ValueError, match="does not stream"):
        list(translator.stream("hund"))
    with pytest.raises(ValueError, match="exports without `xla`"):
        translator.export(tmp_path / "served", xla=True)
    rnn = RNNSeq2Seq(259, 5, 7)
    with pytest.raises(ValueError, match="Received: RNNSeq2Seq"):
        Translator(rnn, ByteTokenizer(), ByteTokenizer(), shortlist=Shortlist([2], {}), max_length=5)
