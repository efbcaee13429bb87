"""Runs that begin with a trained translator: its weights and tokens, fitted settings, and what is refused."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
from helpers_recipes import SHORT

import keras_attn_cli
from keras_attn import Translator, runs
from keras_attn.data import TextPairs
from keras_attn.models import Seq2SeqTransformer, read_weights
from keras_attn.runs.processes import Processes
from keras_attn.runs.progress import Progress
from keras_attn.runs.starting_model import check_tokenizers, load_start
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.tasks import Languages, SourceForm
from keras_attn.text import ByteTokenizer, WordPieceTokenizer

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="checkpoints and scores need TensorFlow"
)


def make_pairs():
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    return TextPairs(texts, [text.upper() for text in texts], "capitals")


def make_splits():
    return runs.DataSplits(make_pairs(), make_pairs(), None)


def make_translator(**options):
    keras.utils.set_random_seed(5)
    model = Seq2SeqTransformer.from_sizes(
        259, 1, 1, hidden_dim=10, num_heads=2, intermediate_dim=13, max_sequence_length=17, dropout=0.2
    )
    tokenizer = ByteTokenizer()
    return Translator(model, tokenizer, tokenizer, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "saved"
    make_translator().save(folder)
    return folder


def losses(folder):
    lines = (folder / "history.csv").read_text(encoding="utf-8").splitlines()
    column = lines[0].split(",").index("loss")
    return [float(line.split(",")[column]) for line in lines[1:]]


class KilledError(Exception):
    pass


@pytest.mark.extended
def test_a_run_begins_with_the_weights_and_learns(saved, tmp_path):
    recipe = runs.Recipe(start_from=str(saved), **SHORT)
    run = TranslationRun(recipe, make_splits(), tmp_path, 0, Processes())
    run.is_resumed = False
    run.quality.on_epoch_end = lambda epoch, logs: logs.update({run.monitor: 3.0})
    run.prepare()
    began = Translator.load(saved)
    for ours, theirs in zip(run.model.trainable_weights, began.model.trainable_weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert run.translator.target_tokenizer.vocabulary_size == 259
    assert run.score_before == 3.0
    run.compile()
    run.model.run_eagerly = True
    [batch] = run.batches.dataset().take(1)
    losses = [run.model.train_on_batch(*batch)[0] for _ in range(5)]
    assert losses[-1] < losses[0] < 1.5 * np.log(259)


@pytest.mark.extended
def test_a_killed_run_goes_on_without_the_first_folder_to_the_same_bits(saved, tmp_path, monkeypatch):
    start = tmp_path / "start"
    shutil.copytree(saved, start)
    given = {"start_from": str(start), "save_updates": 4, **SHORT}
    runs.train(make_splits(), tmp_path / "whole", verbose=0, **given)
    first, last = losses(tmp_path / "whole")
    assert last < first < 1.5 * np.log(259)

    on_train_batch_end, batches = Progress.on_train_batch_end, []

    def killed_at(progress, batch, logs=None):
        on_train_batch_end(progress, batch, logs)
        batches.append(batch)
        if len(batches) == 10:
            raise KilledError

    monkeypatch.setattr(Progress, "on_train_batch_end", killed_at)
    with pytest.raises(KilledError):
        runs.train(make_splits(), tmp_path / "killed", verbose=0, **given)
    monkeypatch.setattr(Progress, "on_train_batch_end", on_train_batch_end)
    shutil.rmtree(start)
    runs.train(make_splits(), tmp_path / "killed", verbose=0)
    assert "Resumed after update 8" in (tmp_path / "killed" / "log.txt").read_text()
    for name in ("translator/model.safetensors", "checkpoints/state-00000014.safetensors"):
        whole, killed = (read_weights(tmp_path / run / name) for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        for key, array in whole.items():
            np.testing.assert_array_equal(array, killed[key], err_msg=key)
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")
    assert not (tmp_path / "whole" / "start").exists()  # after the run has ended
    record = json.loads((tmp_path / "killed" / "run.json").read_text())
    assert record["recipe"]["start_from"] == str(start)
    assert "chrf" in record["results"]["validation, before training"]  # for targets of one word


def test_settings_are_fitted_to_fine_tuning(saved):
    recipe = dataclasses.replace(runs.Recipe.load("text_pairs"), model={}, start_from=str(saved), epochs=3)
    fitted = runs.fit_start(make_splits(), recipe, ["epochs"])
    assert (fitted.recipe.epochs, fitted.recipe.steps_per_epoch) == (3, 20)
    assert fitted.recipe.learning_rate == 0.0025  # 0.025 / 10
    assert fitted.recipe.num_beams == fitted.start.num_beams
    assert "the model's width" in fitted.report()
    assert "epochs given" in fitted.report()


def test_what_does_not_fit_is_said_before_training(saved, tmp_path, capsys):
    files = [tmp_path / "a.src", tmp_path / "a.tgt"]
    for file, texts in zip(files, (make_pairs().sources, make_pairs().targets)):
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = ["train", *map(str, files), "--output", str(tmp_path / "run"), "--from"]
    for options, message in {
        (str(saved), "--size", "tiny"): "those of the folder. Leave `size` out",
        (
            str(saved),
            "--tokenizer",
            "bpe",
            "--vocabulary-size",
            "300",
        ): "Leave `tokenizer`, `vocabulary_size` out",
        (str(tmp_path / "no"),): "does not exist",
        (str(saved), "--source-language", "en"): "for multilingual models",
        (str(saved), "--text-prefix", "to German: "): "text_prefix is for checkpoints",
    }.items():
        assert keras_attn_cli.main([*command, *options]) == 2, options
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert keras_attn_cli.main(["train", *map(str, files), "--purpose", "x"]) == 2
    assert "checkpoint of --from" in capsys.readouterr().err


def test_a_recipe_has_sizes_or_a_start():
    with pytest.raises(ValueError, match="`model` must be empty"):
        dataclasses.replace(runs.Recipe.load("text_pairs"), start_from="folder")
    with pytest.raises(ValueError, match="`start_options` are for `start_from`"):
        dataclasses.replace(runs.Recipe.load("text_pairs"), start_options={"purpose": "x"})
    with pytest.raises(ValueError, match="`start_options` may set source_language"):
        runs.Recipe(start_from="folder", start_options={"dtype": "float32"})
    with pytest.raises(ValueError, match="`start_from` must be a text or a path"):
        runs.Recipe(start_from="")


def test_a_tokenizer_that_cannot_spell_the_texts_is_refused():
    translator = make_translator()
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abc", *(f"##{c}" for c in "abc")])
    model = Seq2SeqTransformer.from_sizes(10, 1, 1, hidden_dim=6, num_heads=2, intermediate_dim=7)
    translator = Translator(model, tokenizer, tokenizer)
    assert check_tokenizers(translator, TextPairs(["ab c"], ["cab"], "known")) == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"of the targets cannot spell .* 100% .*\"xyz\""):
        check_tokenizers(translator, TextPairs(["ab c"], ["xyz"], "unknown"))


@pytest.mark.extended
def test_a_multilingual_translator_needs_its_languages(tmp_path):
    names = {"en": 11, "de": 12}
    make_translator(
        languages=Languages(names, None, None, False), source_form=SourceForm(before=(-1,), after=(2,))
    ).save(tmp_path / "many")
    recipe = runs.Recipe(start_from=str(tmp_path / "many"), dtype="float32")
    with pytest.raises(ValueError, match="--source-language"):
        load_start(recipe)
    with pytest.raises(ValueError, match="must be among de, en"):
        load_start(
            dataclasses.replace(recipe, start_options={"source_language": "en", "target_language": "fr"})
        )
    start = load_start(
        dataclasses.replace(recipe, start_options={"source_language": "en", "target_language": "de"})
    )
    assert (start.languages.source, start.languages.target) == ("en", "de")
    run = TranslationRun(dataclasses.replace(recipe, data=("x",)), make_splits(), tmp_path, 0, Processes())
    run.translator = start
    form = run.pair_form()
    assert form.target_start == (start.start_token_id, 12)
    assert form.source_token_ids(["a"]).to_list() == [[11, *ByteTokenizer().encode(["a"])[0], 2]]


def test_the_dtype_policy_is_that_of_the_run(saved):
    start = load_start(runs.Recipe(start_from=str(saved), dtype="mixed_bfloat16"))
    assert (
        start.model.dtype_policy.name == start.model.decoder_blocks[0].dtype_policy.name == "mixed_bfloat16"
    )
    attention = start.model.decoder_blocks[0].cross_attention_layer
    assert attention.dtype_policy.name == "mixed_bfloat16"
    for ours, theirs in zip(start.model.weights, Translator.load(saved).model.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
