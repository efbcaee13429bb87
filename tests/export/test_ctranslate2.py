"""A model in CTranslate2 gives the log-probabilities, and searches out the tokens, that it gives here."""

import builtins
import functools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_engines import (
    END,
    MAX_LENGTH,
    PAD,
    START,
    IdTokenizer,
    answer,
    briefly_trained_model,
    padded,
    sources,
    with_end,
)
from helpers_marks import slow_but
from helpers_models import make_model
from helpers_translators import SENTENCES, byte_translator, files_below, subword_translator

from keras_attn.export import export_ctranslate2
from keras_attn.generation import DecodingOptions
from keras_attn.models import DecoderTransformer, Seq2SeqTransformer

pytestmark = pytest.mark.extended

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason='needs CTranslate2: pip install "keras_attn[ctranslate2]"'
)

# Every option of the model, and every activation that CTranslate2 has.
VARIANTS = {
    "post_norm": {},
    "pre_norm": {"normalize_first": True, "layer_norm_epsilon": 1e-2},
    "two_vocabularies": {"target_vocabulary_size": 11, "activation": "tanh"},
    "untied_gated_silu_learned": {
        "target_vocabulary_size": 11,
        "tie_output": False,
        "gated": True,
        "activation": "silu",
        "position_encoding": "learned",
    },
    "rms_norm_rotary_gelu": {
        "normalize_first": True,
        "normalization": "rms_norm",
        "position_encoding": "rotary",
        "hidden_dim": 20,
        "activation": "gelu",
    },
    "rms_norm_post_norm_gated_sigmoid": {"normalization": "rms_norm", "gated": True, "activation": "sigmoid"},
    "rotary_post_norm_gated_relu": {"position_encoding": "rotary", "hidden_dim": 12, "gated": True},
}


def load(folder, **options):
    return ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1, **options)


def names(rows):
    return [[f"t{token_id}" for token_id in row] for row in rows]


def ids(tokens):
    special = {"<pad>": PAD, "<unk>": 1, "<s>": START, "</s>": END}
    return [special[token] if token in special else int(token[1:]) for token in tokens]


def log_probs_without_pad(model, source_rows, target_rows):
    """The float64 log-probability of each token of the targets and of END, the pad being impossible."""
    decoder_ids = padded([[START, *row] for row in target_rows])
    inputs = {"encoder_token_ids": with_end(source_rows), "decoder_token_ids": decoder_ids}
    logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")
    logits[:, :, PAD] = -np.inf
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return [of_row[np.arange(len(row) + 1), [*row, END]] for of_row, row in zip(logits, target_rows)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_of_the_model_gives_the_same_log_probabilities(variant, tmp_path):
    model = make_model(**VARIANTS[variant])
    tokenizers = [IdTokenizer(size or model.vocabulary_size) for size in (None, model.target_vocabulary_size)]
    export_ctranslate2(tmp_path / "model", model, *tokenizers)
    rng = np.random.default_rng(9)
    source_rows, target_rows = (
        [rng.integers(4, 11, rng.integers(1, 9)).tolist() for _ in range(11)] for _ in range(2)
    )
    scored = load(tmp_path / "model").score_batch(names(source_rows), names(target_rows))
    for expected, result in zip(log_probs_without_pad(model, source_rows, target_rows), scored):
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-4, rtol=1e-4)


class WithoutPad(Seq2SeqTransformer):
    """Searches as the exported model does, in which the pad has no probability.

    Our search never chooses the pad, but leaves it its share, so that scores are those of a forward pass. Label smoothing
    gives a vocabulary of 31 a pad of 0.3 %, enough to change the order of hypotheses of different lengths.
    """

    def call_with_cache(self, *arguments, **options):
        logits, cache = super().call_with_cache(*arguments, **options)
        is_pad = keras.ops.arange(logits.shape[-1]) == PAD
        return keras.ops.where(is_pad, -1e4, logits), cache


@pytest.fixture(
    scope="module",
    params=[{}, pytest.param({"normalize_first": True}, marks=pytest.mark.slow)],
    ids=["post_norm", "pre_norm"],
)
def trained(request, tmp_path_factory):
    model = briefly_trained_model(**request.param)
    twin = WithoutPad.from_config(model.get_config())
    twin.set_weights(model.get_weights())
    folder = tmp_path_factory.mktemp("engines") / "trained"
    return twin, export_ctranslate2(folder, model, IdTokenizer(), IdTokenizer())


@functools.cache
def searched(model, num_beams, length_penalty, exact_stopping=True):
    """Our n-best lists: lists of ids, and scores (B, K)."""
    options = DecodingOptions(exact_stopping=exact_stopping)
    function = tf.function(
        lambda token_ids: model.generate(
            token_ids,
            START,
            END,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_length=MAX_LENGTH,
            num_return_sequences=num_beams,
            options=options,
        ),
        autograph=False,
    )
    token_ids, scores = function(tf.constant(with_end(sources())))
    return [[answer(row) for row in rows] for rows in token_ids.numpy()], scores.numpy()


def searched_there(folder, num_beams, length_penalty, patience=MAX_LENGTH, **options):
    """The same of CTranslate2, by the settings that `docs/other_engines.md` gives."""
    results = load(folder, **options).translate_batch(
        names(sources()),
        beam_size=num_beams,
        num_hypotheses=num_beams,
        length_penalty=length_penalty,
        patience=patience,
        min_decoding_length=0,
        max_decoding_length=MAX_LENGTH,
        return_scores=True,
        return_end_token=True,
    )
    return [[ids(tokens) for tokens in result.hypotheses] for result in results], [
        result.scores for result in results
    ]


def test_greedy_search_finds_the_same_tokens(trained):
    model, folder = trained
    ours, our_scores = searched(model, 1, 1.0)
    theirs, their_scores = searched_there(folder, 1, 1.0)
    assert ours == theirs
    np.testing.assert_allclose(their_scores, our_scores, atol=1e-4)
    assert len({tuple(rows[0]) for rows in ours}) > 100
    assert sum(rows[0][-1] == END for rows in ours) > 100
    assert len({len(rows[0]) for rows in ours}) > 10


@pytest.mark.parametrize("length_penalty", slow_but([1.0], [0.0, 0.6, 1.0, 2.0]))
def test_beam_search_finds_the_same_lists(trained, length_penalty):
    model, folder = trained
    ours, our_scores = searched(model, 4, length_penalty)
    theirs, their_scores = searched_there(folder, 4, length_penalty)
    # Where two of a list have the same score, either may come first.
    untied = [row for row, scores in enumerate(our_scores) if np.diff(scores).max() < -1e-5]
    assert len(untied) > 0.9 * len(ours)
    # Without a length penalty CTranslate2 stops at the best, whatever else was asked for. The last may have the same
    # score as one that is not in the list.
    compared = 1 if length_penalty == 0.0 else 3
    assert [theirs[row][:compared] for row in untied] == [ours[row][:compared] for row in untied]
    np.testing.assert_allclose(
        [scores[:compared] for scores in their_scores], our_scores[:, :compared], atol=1e-4
    )


def test_it_stops_early_by_default_and_never_finds_better_then(trained):
    model, folder = trained
    ours, our_scores = searched(model, 4, 1.0)
    early, early_scores = searched_there(folder, 4, 1.0, patience=1)
    assert (np.array(early_scores)[:, 0] <= our_scores[:, 0] + 1e-5).all()
    same = sum(a[0] == b[0] for a, b in zip(ours, early))
    assert 100 < same < len(ours)


@pytest.mark.slow
def test_the_share_of_the_pad_changes_few_answers(tmp_path):
    model = briefly_trained_model()
    folder = export_ctranslate2(tmp_path / "model", model, IdTokenizer(), IdTokenizer())
    for num_beams in (1, 4):
        ours, _ = searched(model, num_beams, 1.0)
        theirs, _ = searched_there(folder, num_beams, 1.0)
        assert sum(a[0] == b[0] for a, b in zip(ours, theirs)) >= 0.97 * len(ours)


def test_int8_runs_and_mostly_agrees(trained, tmp_path):
    model, _ = trained
    folder = export_ctranslate2(tmp_path / "int8", model, IdTokenizer(), IdTokenizer(), quantization="int8")
    engine = load(folder)
    assert engine.compute_type.startswith("int8")
    ours, _ = searched(model, 1, 1.0)
    theirs, _ = searched_there(folder, 1, 1.0)
    same = [a == b for mine, other in zip(ours, theirs) for a, b in zip(mine[0], other[0])]
    # It depends on the processor: 0.8 and more on one, 0.53 to 0.64 on another, with the same weights.
    assert np.mean(same) > 0.4
    assert ours != theirs


@pytest.mark.parametrize(
    "quantization", slow_but(["int16"], ["int8_float32", "int16", "float16", "bfloat16", "float32"])
)
def test_other_quantizations_load_and_answer(quantization, tmp_path):
    folder = export_ctranslate2(tmp_path / "it", make_model(), IdTokenizer(13), IdTokenizer(13), quantization)
    (result,) = load(folder).translate_batch([["t4", "t5"]], max_decoding_length=5)
    assert result.hypotheses[0]


@pytest.mark.parametrize(
    "make_translator", slow_but([subword_translator], [byte_translator, subword_translator])
)
def test_texts_are_translated_as_here(make_translator, tmp_path):
    translator = make_translator()
    assert translator.export_model(tmp_path / "model", format="ctranslate2") == tmp_path / "model"
    tokens = [
        translator.source_tokenizer.token_strings(row)
        for row in translator.source_tokenizer.encode(SENTENCES)
    ]
    never = [i for i in translator.unwritable_token_ids if i != translator.model.pad_token_id]
    results = load(tmp_path / "model").translate_batch(
        tokens,
        beam_size=translator.num_beams,
        length_penalty=translator.length_penalty,
        patience=translator.max_length,
        min_decoding_length=0,
        max_decoding_length=translator.max_length,
        max_input_length=translator.model.max_sequence_length,
        suppress_sequences=[[name] for name in translator.target_tokenizer.token_strings(never)],
        return_scores=True,
    )
    names = translator.target_tokenizer.token_strings(range(translator.target_tokenizer.vocabulary_size))
    id_of = {name: token_id for token_id, name in enumerate(names)}
    texts = translator.target_tokenizer.decode(
        [[id_of[token] for token in result.hypotheses[0]] for result in results]
    )
    expected, scores = translator(SENTENCES, return_scores=True, options=DecodingOptions(exact_stopping=True))
    assert texts == expected
    # Here the pad has a probability, though it is never chosen; there it has none.
    assert all(result.scores[0] >= score - 1e-4 for result, score in zip(results, scores))


def test_a_long_source_is_cut_as_here(tmp_path):
    translator = byte_translator()
    folder = translator.export_model(tmp_path / "model", format="ctranslate2")
    length = translator.model.max_sequence_length
    (row,) = translator.source_tokenizer.encode(["long text " * 20])
    engine = load(folder)
    found = [
        engine.translate_batch(
            [translator.source_tokenizer.token_strings(tokens)],
            max_decoding_length=11,
            max_input_length=length,
            return_scores=True,
        )[0]
        for tokens in (row, row[: length - 1], row[: length - 2])
    ]
    assert found[0].scores == found[1].scores
    assert found[0].scores != found[2].scores


def test_attention_is_that_of_align(trained):
    model, folder = trained
    rows = sources()[:17]
    results = load(folder).translate_batch(
        names(rows),
        beam_size=1,  # with more, 4.8.5 tells of each first token what that of another sentence looked at
        max_decoding_length=MAX_LENGTH,
        return_attention=True,
        return_end_token=True,
    )
    targets = [ids(result.hypotheses[0]) for result in results]
    source_ids = with_end(rows)
    _, scores = model.decode(
        padded([[START, *row[:-1]] for row in targets]),
        model.encode(source_ids),
        source_ids != PAD,
        return_attention_scores=True,
    )
    expected = np.mean(scores[len(model.decoder_blocks) - 2], axis=1)
    for row, target, result, of_row in zip(rows, targets, results, expected):
        # What END looked at, and how much of END was looked at, CTranslate2 does not tell.
        steps = len(target) - (target[-1] == END)
        attention = np.array(result.attention[0])[:steps]
        np.testing.assert_allclose(attention, of_row[:steps, : len(row)], atol=1e-4)


def test_the_folder_holds_the_model_and_both_tokenizers(tmp_path):
    translator = subword_translator()
    translator.export_model(tmp_path / "deep" / "model", format="ctranslate2", quantization="int8")
    assert files_below(tmp_path) == sorted(
        f"deep/model/{name}"
        for name in (
            "config.json",
            "model.bin",
            "source_vocabulary.json",
            "target_vocabulary.json",
            *(
                f"{side}_tokenizer/{name}"
                for side in ("source", "target")
                for name in ("tokenizer.json", "sentencepiece.model")
            ),
        )
    )
    config = json.loads((tmp_path / "deep" / "model" / "config.json").read_text())
    assert config["unk_token"] == "<unk>"
    assert config["add_source_eos"] is True


def test_it_replaces_an_older_export_and_nothing_else(tmp_path):
    translator = byte_translator()
    folder = translator.export_model(tmp_path / "model", format="ctranslate2")
    (folder / "left_over").touch()
    assert translator.export_model(folder, format="ctranslate2") == folder
    assert not (folder / "left_over").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    with pytest.raises(ValueError, match=r"other exists and holds no CTranslate2 model. Choose another"):
        translator.export_model(tmp_path / "other", format="ctranslate2")
    assert files_below(tmp_path / "other") == ["precious"]


def test_an_export_that_fails_leaves_the_older_one(tmp_path, monkeypatch):
    translator = byte_translator()
    folder = translator.export_model(tmp_path / "model", format="ctranslate2")
    before = (folder / "model.bin").read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(type(translator.source_tokenizer), "save", full)
    with pytest.raises(OSError, match="No space"):
        translator.export_model(folder, format="ctranslate2")
    assert (folder / "model.bin").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def with_lora():
    model = make_model()
    model.enable_lora(2)
    return model


def quantized():
    model = make_model()
    model.quantize("int8", filters="intermediate")
    return model


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: make_model(activation="elu"), {}, r"no such `activation`; it has relu, .*activation='elu'"),
        (with_lora, {}, r"Merge LoRA first .* Received: .*lora_kernel_a"),
        (quantized, {}, r"the float model rather than a quantised one. Received: .*scale"),
        (make_model, {"quantization": "int3"}, "int3 is not a valid quantization type"),
        (
            lambda: DecoderTransformer.from_sizes(13, 1, hidden_dim=8, num_heads=2, intermediate_dim=16),
            {},
            "`model` must be a Seq2SeqTransformer. Received: DecoderTransformer",
        ),
        (
            make_model,
            {"target_tokenizer": IdTokenizer(13, end="<end>")},
            "one name for the END of both sides",
        ),
        (
            make_model,
            {"source_tokenizer": IdTokenizer(13, end="t5")},
            "no two of a vocabulary may be the same",
        ),
        (make_model, {"source_tokenizer": IdTokenizer(12)}, "vocabulary 0 has size 12"),
    ],
    ids="""
        activation with_lora quantized quantization another_model two_ends two_of_a_name
        another_vocabulary
    """.split(),
)
def test_what_it_cannot_compute_is_refused_before_anything_is_written(make, options, message, tmp_path):
    arguments = {"source_tokenizer": IdTokenizer(13), "target_tokenizer": IdTokenizer(13), **options}
    with pytest.raises(ValueError, match=message):
        export_ctranslate2(tmp_path / "model", make(), **arguments)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import_module = builtins.__import__

    def without(name, *arguments):
        if name.startswith("ctranslate2"):
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "keras_attn\[ctranslate2\]"'):
        byte_translator().export_model(tmp_path / "model", format="ctranslate2")


def test_wrong_formats(tmp_path):
    translator = byte_translator()
    with pytest.raises(ValueError, match=r"`format` must be one of ctranslate2, onnx, litert. .*'tar'"):
        translator.export_model(tmp_path / "model", format="tar")
    with pytest.raises(ValueError, match="`quantization` is for SavedModels and for the format ctranslate2"):
        translator.export_model(tmp_path / "model", format="onnx", quantization="int8")
    assert not list(pathlib.Path(tmp_path).iterdir())
