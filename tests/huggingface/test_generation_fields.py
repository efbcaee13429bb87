"""Every field of transformers' `GenerationConfig`: obeyed as `generate` does it, refused by its name, or known to change nothing."""

import json
import shutil

import pytest
import torch
import transformers
from helpers_checkpoint_tasks import MAX_LENGTH, TEXTS, checkpoint, new_folder

from keras_attn.huggingface.generation_fields import WITHOUT_EFFECT, generation_fields, is_generation_field
from keras_attn.tasks import load_task

SOURCES = [text for text in TEXTS if text][:11]
SOME, BEAMS = list(range(5, 190, 2)), {"num_beams": 3}
ENDING = {"eos_token_id": [1, *SOME[:30]], **BEAMS}  # answers of all lengths
# Values that change an answer of a T5; some need beams to do so.
OBEYED = {
    "max_length": {"max_length": 7},
    "max_new_tokens": {"max_length": 7, "max_new_tokens": 4},
    "min_length": {"min_length": 7, **ENDING},
    "min_new_tokens": {"min_new_tokens": 6, "min_length": 2, **ENDING},
    "num_beams": BEAMS,
    "length_penalty": {"length_penalty": -3.0, **ENDING},
    "early_stopping": {"early_stopping": True, "length_penalty": 2.0, **ENDING},
    "repetition_penalty": {"repetition_penalty": 1.7, **BEAMS},
    "renormalize_logits": {"renormalize_logits": True, "suppress_tokens": SOME[::2], **BEAMS},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 5, **BEAMS},
    "bad_words_ids": {"bad_words_ids": [[i] for i in [1, *SOME]]},  # END is no bad word
    "suppress_tokens": {"suppress_tokens": [1, *SOME]},
    "begin_suppress_tokens": {"begin_suppress_tokens": SOME},
    "forced_bos_token_id": {"forced_bos_token_id": 7, "begin_suppress_tokens": SOME},
    "forced_eos_token_id": {"forced_eos_token_id": [1, 1]},
    "eos_token_id": {"eos_token_id": [1, *SOME[:9]]},
    "decoder_start_token_id": {"decoder_start_token_id": 9},
    "bos_token_id": {"decoder_start_token_id": None, "bos_token_id": 9},  # then START
    "pad_token_id": {"pad_token_id": 9},  # which fills rows after their END
}
SAME = ("pad_token_id",)
REFUSED = {
    "max_time": 0.5,
    "stop_strings": ["a"],
    "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 2,
    "exponential_decay_length_penalty": [2, 1.1],
    "sequence_bias": [[[5, 7], -2.0]],
    "token_healing": True,
    "guidance_scale": 1.5,
    "watermarking_config": {"bias": 2.0},
    "is_assistant": True,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "num_beam_groups": 2,
    "constraints": [{}],
    "force_words_ids": [[5]],
    "bad_words_ids": [[5, 7]],
    "forced_eos_token_id": [1, 5],
    "decoder_start_token_id": [0, 5],
}
NEUTRAL = {
    "stop_strings": [],
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "token_healing": False,
    "guidance_scale": 1,
    "is_assistant": False,
    "penalty_alpha": 0.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    **dict.fromkeys(("sequence_bias", "max_time", "watermarking_config", "max_length", "min_length")),
}


def with_fields(name, fields, file="generation_config.json"):
    """A copy of a checkpoint whose generation_config.json has these fields, or its config.json, which is then alone."""
    folder = new_folder() / "copy"
    shutil.copytree(checkpoint(name)[0], folder)
    path = folder / "generation_config.json"
    if file == "config.json":
        path.unlink()
        path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


def answers_and_those_there(name, folder, max_length=None):
    """What the task of a checkpoint's copy answers, and transformers with its files."""
    _, twin, tokenizer = checkpoint(name)
    task = load_task(folder, max_length=max_length)
    there = type(twin).from_pretrained(folder)
    never = [[i] for i in task.unwritable_token_ids] + (there.generation_config.bad_words_ids or [])
    options = {} if max_length is None else {"max_new_tokens": max_length}
    inputs = tokenizer(SOURCES, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found = there.generate(**inputs, bad_words_ids=never, **options)
    there = tokenizer.batch_decode(found[:, 1:], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return task(SOURCES), there


@pytest.mark.extended
@pytest.mark.parametrize("name", OBEYED)
def test_a_field_that_is_obeyed_changes_answers_as_there(name):
    fields = OBEYED[name]
    max_length = None if "max_length" in fields else MAX_LENGTH
    answers, there = answers_and_those_there("t5", with_fields("t5", fields), max_length)
    assert answers == there
    others = {key: value for key, value in fields.items() if key != name}
    without = load_task(with_fields("t5", others), max_length=max_length)(SOURCES)
    assert (answers == without) == (name in SAME)


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_not_obeyed_is_refused_by_name_and_can_be_ignored(name):
    folder = with_fields("t5", {name: REFUSED[name]})
    message = rf"generation_config.json asks for .*{name}=.*--ignored-fields {name}"
    with pytest.raises(ValueError, match=message):
        load_task(folder)
    with pytest.raises(ValueError, match=f"config.json asks .*{name}="):
        load_task(with_fields("t5", {name: REFUSED[name]}, "config.json"))
    fields = generation_fields({name: REFUSED[name]}, {}, "Translator", [name])
    assert fields == ("generation_config.json", {}, [name])


def test_every_field_of_transformers_is_known():
    """A field that a newer transformers has is not let through unseen."""
    fields = set(vars(transformers.GenerationConfig())) - {"_original_object_hash"}
    assert {name for name in fields if not is_generation_field(name)} == set()
    assert {*OBEYED, *REFUSED, *WITHOUT_EFFECT} == fields
    # What its defaults say is refused nowhere.
    defaults = transformers.GenerationConfig._get_default_generation_params()
    for task in ("Translator", "TextGenerator"):
        assert generation_fields({**defaults, **NEUTRAL}, {}, task).refused == {}


def test_other_fields_are_let_through_and_told():
    own = {"a_field": 1, "temperature": 0.7, "num_beams": 2, "top_k": None, "use_cache": True}
    found = generation_fields(own, {"num_beam_groups": 3}, "Translator")
    assert found == ("generation_config.json", {}, ["a_field", "temperature"])
    config = {"d_model": 8, "use_cache": True, "do_sample": True, "num_beam_groups": 3}
    found = generation_fields(None, config, "Translator")
    assert found == ("config.json", {"num_beam_groups": 3}, ["do_sample"])


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"forced_bos_token_id": 5, "min_length": 1, "max_length": 50}, ["forced_bos_token_id"]),
        ({"min_length": 5}, ["min_length"]),
        ({"min_length": 5, "min_new_tokens": 3, "decoder_start_token_id": 4}, []),
    ],
)
def test_what_counts_the_prompt_is_refused_of_a_language_model(fields, refused):
    assert sorted(generation_fields(fields, {}, "TextGenerator").refused) == refused


@pytest.mark.extended
def test_a_language_model_writes_as_many_new_tokens_as_it_must():
    task = load_task(with_fields("gpt2", {"min_new_tokens": 5, "early_stopping": "never"}), max_length=9)
    assert (task.options.min_length, task.options.exact_stopping) == (6, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_beams": "3"},
            "`num_beams` of generation_config.json must be an integer. Received: num_beams='3'",
        ),
        ({"early_stopping": "always"}, "must be true, false or \"never\". Received: early_stopping='always'"),
        ({"bad_words_ids": [5]}, "must be a list of lists of ids. Received: bad_words_ids="),
        ({"suppress_tokens": 5}, "must be a list of ids. Received: suppress_tokens=5"),
        ({"repetition_penalty": True}, "must be a number. Received: repetition_penalty=True"),
        ({"eos_token_id": [1, "2"]}, "must be an id or a list of ids. Received: eos_token_id="),
    ],
)
def test_values_of_other_kinds_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        generation_fields(fields, {}, "Translator")


@pytest.mark.extended
def test_an_old_bart_begins_with_its_first_token():
    """`force_bos_token_to_be_generated` of a config.json without generation_config.json."""
    fields = {"force_bos_token_to_be_generated": True, "forced_bos_token_id": None}
    folder = with_fields("bart", fields, "config.json")
    assert load_task(folder).options.first_token_id == 0
    answers, there = answers_and_those_there("bart", folder, MAX_LENGTH)
    assert answers == there
