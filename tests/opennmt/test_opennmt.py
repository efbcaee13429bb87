"""Transformers of OpenNMT-tf: weights against its formulas in float64, strings, settings, and damage."""

import dataclasses
import io
import re

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers_marks import slow_but
from helpers_opennmt import SPECIAL, Form, Weights, greedy, logits, write_folder

import keras_attn
import keras_attn_cli
from keras_attn import info, opennmt

SOURCE = (*SPECIAL, *["a", "dog", "runs", "in", "the", "big", "house", "now"])
TARGET = (*SPECIAL, *["ein", "Hund", "läuft", "im", "Haus", "und", "schläft", "nicht", "mehr", "heute"])
FORM = Form(SOURCE, TARGET)
FORMS = {
    "pre-norm": FORM,
    "post-norm without biases": Form(SOURCE, TARGET, pre_norm=False, mha_bias=False, output_layer_bias=False),
    "shared input": Form(SOURCE, SOURCE, share="input", num_layers=(1, 2)),
    "tied target": Form(SOURCE, TARGET, share="target", num_layers=(3, 1)),
    "one embedding, tied, post-norm": Form(SOURCE, SOURCE, share="all", pre_norm=False),
}


def largest_difference(model, weights, rng):
    sizes = [len(words) + 1 for words in (weights.form.source_vocabulary, weights.form.target_vocabulary)]
    source, target = rng.integers(3, sizes[0], (3, 7)), rng.integers(3, sizes[1], (3, 5))
    lengths, target[:, 0] = [7, 4, 5], 1
    for row, length in zip(source, lengths):
        row[length:] = 0
    expected = logits(weights, source, lengths, target)
    received = np.asarray(model({"encoder_token_ids": source, "decoder_token_ids": target}))
    return np.abs(received - expected).max() / np.abs(expected).max()


@pytest.mark.extended
@pytest.mark.parametrize("name", slow_but(["pre-norm", "one embedding, tied, post-norm"], FORMS))
def test_logits_are_those_of_the_formulas_in_float64(tmp_path, name, rng):
    weights = write_folder(tmp_path / "run", FORMS[name])
    model = opennmt.load_model(tmp_path / "run")
    assert largest_difference(model, weights, rng) < 1e-5
    rows = opennmt.read_report(tmp_path / "run")
    assert "a slot of the optimizer" in {row.note for row in rows if row.variable is None}
    assert sum(np.prod(row.shape) for row in rows if row.variable) == model.count_params()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opennmt") / "run"
    options = "params: {beam_width: 1, maximum_decoding_length: 9}\n"
    controls = "  source_sequence_controls: {end: true}\n"
    return folder, write_folder(folder, FORM, more_yaml=controls + options)


def copied(run, folder):
    folder.mkdir(exist_ok=True)
    for path in run[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.extended
def test_strings_are_translated_as_the_formulas_do(run):
    folder, weights = run
    translator = keras_attn.load(folder)
    texts = ["a dog runs", "the  big zebra"]
    sources = [[3, 4, 5, 2], [7, 8, len(SOURCE), 2]]  # END is a mark of the source here
    words = [*TARGET, "<unk>"]
    expected = [" ".join(words[i] for i in greedy(weights, source, 9)) for source in sources]
    assert translator(texts) == expected
    assert (translator.max_length, translator.num_beams) == (9, 1)


def test_info_reads_names_and_sizes_only(run):
    rows = dict(info.describe(run[0]))
    assert rows["kind"] == "checkpoint of OpenNMT-tf"
    assert rows["checkpoint"] == "ckpt-5000"
    assert rows["source_vocabulary"] == f"source.vocab, {len(SOURCE)} lines"
    assert rows["missing"] == "nothing"
    assert (rows["beam_width"], rows["task"]) == ("1", "Translator")


def test_info_says_of_a_run_what_export_says(run, tmp_path, capsys):
    folder = copied(run, tmp_path / "run")
    (data,) = folder.glob("*.yml")
    data.write_text(data.read_text("utf-8").replace("beam_width: 1", "coverage_penalty: 0.3"), "utf-8")
    assert keras_attn_cli.main(["info", str(folder)]) == 0
    assert re.search("task +none: `coverage_penalty` in `params`", capsys.readouterr().out)
    assert keras_attn_cli.main(["info", str(folder), "--ignored-fields", "coverage_penalty"]) == 0
    assert re.search("task +Translator", capsys.readouterr().out)


@pytest.mark.extended
def test_an_average_is_loaded_by_its_folder_or_its_name(tmp_path, rng):
    folder = tmp_path / "run"
    newest = write_folder(folder, FORM)
    (folder / "avg").mkdir()
    averaged = Weights(FORM, seed=7)
    averaged.save(folder / "avg" / "ckpt-5000")
    by_folder, by_name = opennmt.load_model(folder / "avg"), opennmt.load_model(folder, checkpoint="avg")
    assert largest_difference(by_folder, averaged, rng) < 1e-5
    assert largest_difference(by_name, averaged, rng) < 1e-5
    assert largest_difference(opennmt.load_model(folder), newest, rng) < 1e-5


@pytest.mark.extended
def test_a_catalog_name_tells_the_heads_where_its_width_fits(tmp_path, rng):
    tiny = dataclasses.replace(FORM, num_units=64, ffn_inner_dim=13, num_layers=(1, 1))
    description = (
        'from opennmt import models\nmodel = lambda: models.get_model_from_catalog("TransformerTiny")\n'
    )
    weights = write_folder(tmp_path / "run", tiny, description=description)
    assert largest_difference(opennmt.load_model(tmp_path / "run"), weights, rng) < 1e-5
    with pytest.raises(ValueError, match=r"number of heads .* cannot be told"):
        opennmt.load_model(tmp_path / "run", model_type="TransformerBig")
    (tmp_path / "run" / "model_description.py").unlink()
    with pytest.raises(ValueError, match=r"cannot be told.*not named.*Give `num_heads`"):
        opennmt.load_model(tmp_path / "run")
    assert largest_difference(opennmt.load_model(tmp_path / "run", num_heads=2), weights, rng) < 1e-5


@pytest.mark.extended
def test_a_sentencepiece_model_of_the_tokenization_is_used(tmp_path):
    proto = io.BytesIO()
    lines = ["a dog runs in the house", "the dog is in a big house now", "dogs run and houses stand"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=proto, vocab_size=24, model_type="unigram", minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    # onmt-build-vocab leaves out sentencepiece's own three; this vocabulary also lacks some pieces.
    pieces = [processor.id_to_piece(i) for i in range(3, 24)]
    form = dataclasses.replace(FORM, source_vocabulary=(*SPECIAL, *reversed(pieces[:-4])))
    tokenization = "  source_tokenization: {type: SentencePieceTokenizer, params: {model: /x/sp.model}}\n"
    write_folder(tmp_path / "run", form, more_yaml=tokenization)
    (tmp_path / "run" / "sp.model").write_bytes(proto.getvalue())
    tokenizer = opennmt.read_tokenizer(tmp_path / "run", "source")
    numbers = {word: number for number, word in enumerate(form.source_vocabulary)}
    texts = ["the dogs  stand now", "a zebra", ""]
    expected = [
        [numbers.get(piece, len(form.source_vocabulary)) for piece in processor.encode(text, out_type=str)]
        for text in texts
    ]
    assert tokenizer.encode(texts) == expected


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("params: {coverage_penalty: 0.2}\n", "`coverage_penalty` in `params` is not implemented"),
        (
            "  source_tokenization: {mode: aggressive, joiner_annotate: true}\n",
            "must be a SentencePieceTokenizer",
        ),
        ("  source_sequence_controls: {end: 3}\n", "`source_sequence_controls` is not understood"),
        ("params: {length_penalty: 0.6}\n", "is that of Wu et al. 2016.*Give `length_penalty`"),
        ("model_type: LuongAttention\n", "`model_type` must be one of"),
        ("params: [1]\n", "`params` in the YAML files"),
        ("params: {\n", "is damaged or no YAML"),
    ],
)
def test_settings_without_an_equal_are_refused(run, tmp_path, yaml, message):
    copied(run, tmp_path)
    content = (tmp_path / "data.yml").read_text().split("  source_sequence_controls")[0]
    (tmp_path / "data.yml").write_text(content + yaml)
    with pytest.raises(ValueError, match=message):
        keras_attn.load(tmp_path)


@pytest.mark.extended
def test_other_models_are_refused_by_name(run, tmp_path):
    relative = dataclasses.replace(FORM, max_relative=3)
    write_folder(tmp_path / "relative", relative)
    with pytest.raises(ValueError, match=r"relative positions .*TransformerRelative"):
        opennmt.load_model(tmp_path / "relative")
    named = copied(run, tmp_path / "named")
    (named / "model_description.py").write_text('get_model_from_catalog("TransformerBigRelative")')
    with pytest.raises(ValueError, match=r"relative positions .* TransformerBigRelative"):
        opennmt.load_model(named)
    (named / "model_description.py").write_text("Transformer(num_heads=2, ffn_activation=tf.nn.selu)")
    with pytest.raises(ValueError, match=r"`ffn_activation` in model_description.py must be one of"):
        opennmt.load_model(named)
    tf.train.Checkpoint(model=tf.Module()).write(str(named / "ckpt-5000"))
    with pytest.raises(ValueError, match="is not a Transformer of OpenNMT-tf"):
        opennmt.load_model(named)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no data", "is damaged or not complete"),
        ("cut data", "is damaged or not complete"),
        ("cut index", "is damaged or not complete"),
        ("no checkpoint", "There is no checkpoint"),
        ("bad state", "is damaged: it has no model_checkpoint_path"),
        ("no yaml", "has no YAML file"),
        ("no vocabulary", "lacks source.vocab"),
        ("other vocabulary", "must begin with the lines <blank>, <s>, </s>"),
        ("short vocabulary", "must have 11 lines"),
        ("doubled token", "must have each token once"),
    ],
)
def test_damage_is_said(run, tmp_path, damage, message):
    copied(run, tmp_path)
    data, index = tmp_path / "ckpt-5000.data-00000-of-00001", tmp_path / "ckpt-5000.index"
    vocabulary = tmp_path / "source.vocab"
    words = vocabulary.read_text().split()
    if damage == "no data":
        data.unlink()
    elif damage == "cut data":
        data.write_bytes(data.read_bytes()[:999])
    elif damage == "cut index":
        index.write_bytes(index.read_bytes()[:99])
    elif damage == "no checkpoint":
        (tmp_path / "ckpt-5000.index").rename(tmp_path / "ckpt-7.index")
    elif damage == "bad state":
        (tmp_path / "checkpoint").write_text("?")
    elif damage == "no yaml":
        (tmp_path / "data.yml").unlink()
    elif damage == "no vocabulary":
        vocabulary.unlink()
    else:
        changed = {
            "other vocabulary": ["<pad>", *words[1:]],
            "short vocabulary": words[:-1],
            "doubled token": [*words[:-1], "dog"],
        }[damage]
        vocabulary.write_text("\n".join(changed) + "\n")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        keras_attn.load(tmp_path)


@pytest.mark.extended
def test_weights_that_are_missing_unknown_or_not_finite_are_errors(tmp_path):
    weights = write_folder(tmp_path / "run", FORM)
    norm = weights.model.encoder.layers[1].ffn.input_layer_norm
    norm.gamma.assign(norm.gamma * np.nan)
    weights.save(tmp_path / "run" / "ckpt-5000")
    with pytest.raises(ValueError, match=r"layers/1/ffn/input_layer_norm/gamma.* NaN or infinite"):
        opennmt.load_model(tmp_path / "run")
    del norm.gamma
    weights.model.encoder.adapter = tf.Variable(1.0)
    weights.save(tmp_path / "run" / "ckpt-5000")
    with pytest.raises(
        ValueError, match=r"Missing: .*/1/ffn/input_layer_norm/gamma.*Not understood: .*adapter"
    ):
        opennmt.load_model(tmp_path / "run")
    norm.gamma = tf.Variable(tf.zeros(5))
    del weights.model.encoder.adapter
    weights.save(tmp_path / "run" / "ckpt-5000")
    with pytest.raises(ValueError, match=r"gamma .*must have shape \(14,\).*Received: shape \(5,\)"):
        opennmt.load_model(tmp_path / "run")


@pytest.mark.extended
def test_the_length_penalty_of_a_call_is_that_of_wu_and_the_export_answers_alike(tmp_path):
    folder = tmp_path / "run"
    write_folder(
        folder, FORM, more_yaml="params: {beam_width: 3, length_penalty: 0.6, maximum_decoding_length: 8}\n"
    )
    translator = keras_attn.load(folder, length_penalty=0.0)
    options = keras_attn.generation.DecodingOptions(wu_length_penalty=0.6)
    text, score = translator("a dog runs", return_scores=True, options=options)
    log_prob = translator.score("a dog runs", text)
    length = len(text.split()) + 1
    if length < 8:  # END was chosen
        np.testing.assert_allclose(score, log_prob / ((5 + length) / 6) ** 0.6, rtol=1e-4)
    plain = translator("a dog runs")
    translator.save(tmp_path / "saved")
    assert keras_attn.load(tmp_path / "saved")("a dog runs") == plain
    version = translator.export(tmp_path / "export")
    served = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert served(inputs=tf.constant(["a dog runs"]))["outputs"].numpy()[0].decode() == plain
