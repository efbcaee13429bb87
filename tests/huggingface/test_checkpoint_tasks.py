"""From a checkpoint's folder to strings: what transformers answers, in Python, saved, exported and by TensorFlow's C API."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers_checkpoint_tasks import MAX_LENGTH, TEXTS, answers_there, checkpoint, new_folder

import keras_attn
import keras_attn_cli
from keras_attn.export.saved_model_process import run_saved_model
from keras_attn.tasks import load_task


def loaded(name, **options):
    folder, twin, tokenizer = checkpoint(name)
    return load_task(folder, max_length=MAX_LENGTH, **options), twin, tokenizer


def edited(name, file, **fields):
    """A copy of a checkpoint, with other fields in one of its JSON files."""
    folder = new_folder() / "copy"
    shutil.copytree(checkpoint(name)[0], folder)
    path = folder / file
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({k: v for k, v in {**content, **fields}.items() if v is not None}))
    return folder


def check_answers(task, twin, tokenizer, num_beams, **options):
    expected = answers_there(task, twin, tokenizer, TEXTS, num_beams=num_beams, **options)
    assert task(TEXTS, num_beams=num_beams) == expected
    assert len(set(expected)) > 9
    assert len({len(text) for text in expected}) > 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "num_beams"),
    [
        ("marian", 1),
        ("t5", 4),
        ("bart", 4),
        ("pegasus", 1),
        ("gpt2", 1),
        ("gemma2", 4),
        ("mistral", 1),
        ("gemma3", 4),
    ],
)
def test_answers_are_those_of_transformers(name, num_beams):
    """The other architectures are in test_lifelike_folders.py."""
    task, twin, tokenizer = loaded(name)
    assert type(task) is (
        keras_attn.Translator if twin.config.is_encoder_decoder else keras_attn.TextGenerator
    )
    check_answers(task, twin, tokenizer, num_beams)


@pytest.mark.parametrize("name", ["t5", pytest.param("nllb", marks=pytest.mark.extended)])
def test_a_source_is_read_whole_where_the_architecture_sets_no_limit(name):
    """The numbers of positions of T5 and M2M-100 are those of training: transformers reads on, and so do we."""
    lengths = {"n_positions": 17} if name == "t5" else {"max_position_embeddings": 17}
    task = load_task(edited(name, "config.json", **lengths), max_length=MAX_LENGTH, num_beams=1)
    _, twin, tokenizer = checkpoint(name)
    texts = [" ".join(TEXTS[:4]), " ".join(TEXTS[:3])]
    assert min(len(ids) for ids in tokenizer(texts)["input_ids"]) > 61
    assert task.model.max_sequence_length == 4096
    assert task(texts) == answers_there(task, twin, tokenizer, texts)


@pytest.mark.extended
def test_the_length_of_computed_positions_can_be_set_and_that_of_a_table_not_exceeded():
    assert load_task(checkpoint("llama")[0], max_sequence_length=97).model.max_sequence_length == 97
    assert load_task(checkpoint("t5")[0], max_sequence_length=29).longest == 29
    for name, positions in (("gpt2", 83), ("bart", 61)):
        with pytest.raises(
            ValueError, match=f"must be at most the number of positions .* {positions} positions"
        ):
            load_task(checkpoint(name)[0], max_sequence_length=positions + 1)


@pytest.mark.extended
def test_defaults_are_those_of_the_files():
    task = load_task(checkpoint("marian")[0])
    assert (task.num_beams, task.max_length, task.start_token_id) == (4, MAX_LENGTH, task.model.pad_token_id)
    assert (task.options.last_token_id, task.options.suppressed_token_ids) == (0, (task.start_token_id,))
    task = load_task(checkpoint("bart")[0])
    assert (task.num_beams, task.length_penalty, task.start_token_id) == (3, 2.0, 2)
    assert (task.options.first_token_id, task.options.min_length, task.options.no_repeat_ngram_size) == (
        0,
        5,
        2,
    )
    task = load_task(checkpoint("llama")[0], num_beams=3)
    assert (task.num_beams, task.max_length, task.start_token_id, task.options.stop_token_ids) == (
        3,
        41,
        1,
        (3,),
    )
    task = load_task(checkpoint("gpt2")[0])
    assert (task.start_token_id, task.unwritable_token_ids) == (-1, (0, 331, 332, 333, 334, 335, 336))


@pytest.mark.extended
def test_the_purpose_of_a_text_is_a_prefix_and_its_options():
    folder, twin, tokenizer = checkpoint("t5")
    task = load_task(folder, purpose="summarization")
    assert (task.num_beams, task.max_length, task.model.max_sequence_length) == (2, 7, 4096)
    texts = [text for text in TEXTS if text]
    expected = answers_there(
        task, twin, tokenizer, [f"a man: {text}" for text in texts], num_beams=2, max_new_tokens=7
    )
    assert task(texts) == expected
    assert task("") == ""
    assert "".join(task.stream(texts[0])) == task(texts[0], num_beams=1)
    with pytest.raises(ValueError, match=r"must be in task_specific_params .* \['summarization'\]"):
        load_task(folder, purpose="translation")


@pytest.mark.extended
def test_languages_of_nllb_are_options_of_a_call_and_of_a_row(tmp_path):
    folder, twin, tokenizer = checkpoint("nllb")
    task = load_task(folder, max_length=MAX_LENGTH, num_beams=2, target_language="fra_Latn")
    assert task.languages.source == "eng_Latn"
    texts = TEXTS[:9]

    def there(source, target):
        _, name = tokenizer.padding_side, tokenizer.convert_tokens_to_ids
        ids = [[name(source), *row[1:]] for row in tokenizer(texts)["input_ids"]]
        width = max(map(len, ids))
        mask = torch.tensor([[i < len(row) for i in range(width)] for row in ids])
        ids = torch.tensor([row + [1] * (width - len(row)) for row in ids])
        with torch.no_grad():
            found = twin.generate(
                input_ids=ids,
                attention_mask=mask.long(),
                num_beams=2,
                do_sample=False,
                max_new_tokens=MAX_LENGTH,
                forced_bos_token_id=name(target),
                bad_words_ids=[[i] for i in task.unwritable_token_ids],
            )
        return tokenizer.batch_decode(found, skip_special_tokens=True)

    default, other = there("eng_Latn", "fra_Latn"), there("deu_Latn", "eng_Latn")
    assert default != other
    found, scores = task(texts, return_scores=True)
    assert found == default
    assert task(texts, source_language="deu_Latn", target_language="eng_Latn") == other
    mixed = [[default, other][i % 2][i] for i in range(9)]
    sources = [["eng_Latn", "deu_Latn"][i % 2] for i in range(9)]
    targets = [["fra_Latn", "eng_Latn"][i % 2] for i in range(9)]
    assert task(texts, source_language=sources, target_language=targets) == mixed
    # A text may be spelled with other tokens than those that were found.
    near = np.isclose(task.score(texts, default), scores, atol=1e-4)
    assert near.sum() >= 7
    with pytest.raises(ValueError, match="`target_language` must be among deu_Latn, eng_Latn, fra_Latn"):
        task(texts, target_language="xx")

    version = task.export(tmp_path / "nllb", signatures=["translate"])
    inputs = request_of(version, "translate", texts)
    rows = {"source_language": ["", *sources[1:]], "target_language": ["", *targets[1:-1], "xx"]}
    [answer] = run_saved_model(version, [{"signature": "translate", "inputs": {**inputs, **rows}}])
    assert [texts[0] for texts in answer["outputs"]["outputs"]] == mixed
    assert ["target_language_unknown" in status for status in answer["outputs"]["status"]] == [False] * 8 + [
        True
    ]
    task.save(tmp_path / "saved")
    again = load_task(tmp_path / "saved")
    assert again.languages == task.languages
    assert again(texts, target_language=targets, source_language=sources) == mixed


def request_of(version, signature, texts):
    """The inputs of a signature for texts, with the neutral values of a warm-up request."""
    from keras_attn.export import read_warmup_requests

    [inputs] = [inputs for name, inputs in read_warmup_requests(version) if name == signature]

    def plain(values):
        first = np.asarray(values).tolist()[0]
        return first.decode() if isinstance(first, bytes) else first

    return {
        name: texts if name == "inputs" else [plain(value)] * len(texts) for name, value in inputs.items()
    }


@pytest.mark.extended
def test_the_first_mbart_begins_with_its_language_and_its_source_ends_with_one():
    folder, twin, tokenizer = checkpoint("mbart")
    task = load_task(folder, max_length=MAX_LENGTH)
    assert (task.languages.source, task.languages.target, task.languages.target_is_start) == (
        "en_XX",
        "de_DE",
        True,
    )
    check_answers(task, twin, tokenizer, 4)
    expected = answers_there(
        task, twin, tokenizer, TEXTS[:7], decoder_start_token_id=task.languages.ids["en_XX"]
    )
    assert task(TEXTS[:7], target_language="en_XX", num_beams=1) == expected
    with pytest.raises(ValueError, match="into its default language only"):
        task.score("a", "b", target_language="en_XX")


@pytest.mark.extended
def test_a_marian_folder_becomes_a_verified_saved_model_in_one_command(tmp_path, capsys):
    folder, twin, tokenizer = checkpoint("marian")
    served = tmp_path / "served"
    assert keras_attn_cli.main(["export", str(folder), str(served), "--num-beams", "2", "--verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(served / "1")
    assert len(lines) > 8
    assert {line.split()[0] for line in lines[1:] if line[0] != " "} == {"ok"}
    task = load_task(folder)
    expected = answers_there(task, twin, tokenizer, TEXTS, num_beams=2)
    [answer] = run_saved_model(served / "1", [{"inputs": {"inputs": TEXTS}}])
    assert answer["outputs"]["outputs"] == expected


@pytest.mark.extended
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_what_is_saved_and_exported_answers_the_same(name, tmp_path):
    task = loaded(name)[0]
    texts = [*TEXTS, "", " "]
    expected = task(texts)
    task.save(tmp_path / "saved")
    again = load_task(tmp_path / "saved")
    assert (again.options, again.start_token_id) == (task.options, task.start_token_id)
    assert again(texts) == expected
    assert [task(text) for text in texts[:7]] == expected[:7]
    pieces = list(again.stream(texts[0]))
    assert "".join(pieces) == task(texts[0], num_beams=1)
    version = again.export(tmp_path / "served")
    requests = [{"inputs": {"inputs": texts}}]
    signature = "generate" if isinstance(task, keras_attn.TextGenerator) else "translate"
    requests.append({"signature": signature, "inputs": request_of(version, signature, texts)})
    plain, rich = run_saved_model(version, requests)
    assert plain["outputs"]["outputs"] == expected
    assert [texts[0] for texts in rich["outputs"]["outputs"]] == expected


@pytest.mark.extended
def test_a_config_may_name_no_start_and_no_pad():
    folder = edited("gpt2", "config.json", bos_token_id=None, pad_token_id=None)
    (folder / "generation_config.json").unlink()
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {k: v for k, v in tokens.items() if k not in ("bos_token", "pad_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    task = load_task(folder, max_length=MAX_LENGTH)
    assert (task.model.pad_token_id, task.tokenizer.start_token_id) == (-1, None)
    _, twin, tokenizer = checkpoint("gpt2")
    check_answers(task, twin, tokenizer, num_beams=3)
    assert task("") == loaded("gpt2")[0]("")


@pytest.mark.extended
def test_a_prompt_may_hold_the_token_that_is_end_and_pad():
    task, twin, tokenizer = loaded("gpt2")
    text = "the dog<|endoftext|>the dog"
    assert task([text, "a longer text, so that there are pads in this batch"])[0] == task(text)
    assert task(text) == answers_there(task, twin, tokenizer, [text])[0]


@pytest.mark.extended
def test_scores_without_a_token_before_a_text_are_those_of_transformers():
    task, twin, tokenizer = loaded("gpt2")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        log_probs = torch.log_softmax(twin(ids).logits[0, :-1], -1)
    expected = log_probs.gather(1, ids[0, 1:, None]).sum().item()
    # The first token is given: nothing says how likely it is.
    assert task.score(TEXTS[0]) == pytest.approx(expected, abs=1e-3)
    assert task.score("") == 0


@pytest.mark.extended
def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match="GPT2ForMultipleChoice is not read: there is no such head of gpt2 here"
    ):
        load_task(edited("gpt2", "config.json", architectures=["GPT2ForMultipleChoice"]))
    with pytest.raises(ValueError, match=r"has no such option: .*'source_language'"):
        load_task(checkpoint("gpt2")[0], source_language="en")
    with pytest.raises(ValueError, match="must be a language of the checkpoint: none"):
        load_task(checkpoint("t5")[0], source_language="en")
    with pytest.raises(
        ValueError, match=r"asks for forbidden words of several tokens.*bad_words_ids=\[\[3, 4\]\]"
    ):
        load_task(edited("gpt2", "generation_config.json", bad_words_ids=[[3, 4]]))
    translator = load_task(checkpoint("marian")[0])
    for engine in ("ctranslate2", "onnx", "litert", "huggingface"):
        with pytest.raises(
            ValueError, match=f"A translator for {engine} must be without .* Received: default options"
        ):
            translator.export_model("out", engine)
    with pytest.raises(ValueError, match=r"Options are for checkpoints, and .* is none"):
        load_task(new_folder(), num_beams=2)
    folder = edited("llama", "config.json", eos_token_id=None)
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ValueError, match="must name the token that ends a text"):
        load_task(folder)
