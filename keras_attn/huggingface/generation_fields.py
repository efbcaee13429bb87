"""The fields of a generation_config.json: which a search obeys, which change no answer, and which are refused.

Each field of transformers' `GenerationConfig` is in one of three tables. Other fields are let through: transformers does not
read them either.
"""

import collections
import numbers

from keras_attn.huggingface.config_fields import not_obeyed
from keras_attn.huggingface.dry_run import note_without_effect

GENERATION_FILE = "generation_config.json"
GENERATOR = "TextGenerator"

GenerationFields = collections.namedtuple("GenerationFields", "file refused let_through")
GenerationFields.__doc__ = """What becomes of the fields that say how a checkpoint answers.

file: the name of the file that they are in.
refused: dict from the name of a field to its value, without which answers would differ.
let_through: the names of fields that are not obeyed, and change no answer here: those of draws, and of other programs.
"""

# The fields that are obeyed, and what their values must be.
_OBEYED = {
    "max_length": "an integer",
    "max_new_tokens": "an integer",
    "min_length": "an integer",
    "min_new_tokens": "an integer",
    "num_beams": "an integer",
    "length_penalty": "a number",
    "early_stopping": 'true, false or "never"',
    "repetition_penalty": "a number",
    "renormalize_logits": "true or false",
    "no_repeat_ngram_size": "an integer",
    "bad_words_ids": "a list of lists of ids",
    "suppress_tokens": "a list of ids",
    "begin_suppress_tokens": "a list of ids",
    "forced_bos_token_id": "an id",
    "forced_eos_token_id": "an id or a list of ids",
    "bos_token_id": "an id",
    "eos_token_id": "an id or a list of ids",
    "pad_token_id": "an id",
    "decoder_start_token_id": "an id or a list of ids",
}

_DRAWS = "of draws, which a call asks for: answers are searched for, and `do_sample` is not followed"
_SPEED = "of time and memory: the answer is the same"
_ASSISTANT = "of an assistant that proposes tokens: the answer is the same"
_OUTPUT = "of what a call returns besides the answer"
_FILE = "of the file itself"
_UNTOLD = (_SPEED, _ASSISTANT, _OUTPUT, _FILE)  # reasons that no user needs to be told
_NAMES_WITHOUT_EFFECT = {
    _DRAWS: "do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff",
    _SPEED: (
        "use_cache cache_implementation cache_config max_cache_len low_memory prefill_chunk_size compile_config "
        "disable_compile continuous_batching_config use_mtp"
    ),
    _ASSISTANT: (
        "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold assistant_ensemble_weight "
        "assistant_early_exit assistant_lookbehind target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size "
        "speculation_type"
    ),
    _OUTPUT: (
        "output_attentions output_hidden_states output_scores output_logits num_return_sequences "
        "return_dict_in_generate"
    ),
    _FILE: "_from_model_config transformers_version",
    "of groups of beams, which `num_beam_groups` asks for": "diversity_penalty",
    "of logits that are no numbers, which a checked model does not give": "remove_invalid_values",
}
# Fields that are not obeyed and change no answer, and why.
WITHOUT_EFFECT = {name: why for why, names in _NAMES_WITHOUT_EFFECT.items() for name in names.split()}
# Fields that are refused: what they ask for, and the values, other than null, with which they change nothing.
_REFUSED = {
    "max_time": ("a limit of time", ()),
    "stop_strings": ("strings that end an answer", ([], "")),
    "encoder_repetition_penalty": ("a penalty for tokens that are not in the source", (1,)),
    "encoder_no_repeat_ngram_size": ("answers without n-grams of the source", (0,)),
    "exponential_decay_length_penalty": ("END that becomes likelier with every token", ()),
    "sequence_bias": ("tokens that are likelier, or less likely, after others", ([], {})),
    "token_healing": ("prompts whose last token may become longer", (False,)),
    "guidance_scale": ("guidance by a prompt of what is not wanted", (1,)),
    "watermarking_config": ("a watermark", ()),
    "is_assistant": ("an assistant, which ends where it is unsure", (False,)),
    "penalty_alpha": ("contrastive search", (0,)),
    "dola_layers": ("contrasted layers", ()),
    "num_beam_groups": ("groups of beams", (1,)),
    "constraints": ("words that must come", ([],)),
    "force_words_ids": ("words that must come", ([],)),
}
# Fields that are refused of language models.
_REFUSED_OF_GENERATORS = {
    "forced_bos_token_id": ("a first token after prompts of one token", ()),
    "min_length": (
        "a fewest number of tokens, the prompt's counted (`min_new_tokens` counts new ones)",
        (0, 1),
    ),
}
# Fields that are refused with values of some kinds.
_REFUSED_IN_PART = {
    "bad_words_ids": "forbidden words of several tokens",
    "forced_eos_token_id": "several last tokens",
    "decoder_start_token_id": "a first token for each text",
}
_WITHOUT_EFFECT_ON_GENERATORS = {
    "decoder_start_token_id": "of models with an encoder",
    "max_length": "it counts the prompt: a continuation has 256 tokens if `max_new_tokens` and `load` say nothing",
}


def generation_fields(generation_config, config, task, ignored_fields=()):
    """What becomes of the fields of a generation_config.json, or, if there is none, of those of a config.json.

    Args:
        generation_config: Dict, or None if the folder has no such file.
        config: Dict, config.json.
        task: "Translator" or "TextGenerator".
        ignored_fields: Names of fields without which the search goes on.

    Returns:
        `GenerationFields`.

    Raises:
        ValueError: if a field that is obeyed has a value of another kind.

    Example:

    ```python
    generation_fields({"guidance_scale": 1.5, "use_cache": True}, {}, "Translator").refused  # {"guidance_scale": 1.5}
    ```
    """
    has_file = generation_config is not None
    file = GENERATION_FILE if has_file else "config.json"
    fields = generation_config if has_file else config
    fields = {name: value for name, value in fields.items() if value is not None}
    ignored = set(fields) & set(ignored_fields)
    fields = {name: value for name, value in fields.items() if name not in ignored}
    if not has_file:  # the other fields belong to the model
        fields = {name: value for name, value in fields.items() if is_generation_field(name)}
    refused = {name: value for name, value in fields.items() if _is_refused(name, value, fields, task)}
    for name in sorted(set(fields) & set(_OBEYED) - set(refused)):
        if not _is_of_kind(fields[name], _OBEYED[name]):
            raise ValueError(
                f"`{name}` of {file} must be {_OBEYED[name]}. Received: {name}={fields[name]!r}."
            )
    obeyed = set(_OBEYED)
    if task == GENERATOR:
        obeyed -= set(_WITHOUT_EFFECT_ON_GENERATORS)
    let_through = {
        name for name in set(fields) - set(refused) - obeyed if WITHOUT_EFFECT.get(name) not in _UNTOLD
    }
    return GenerationFields(file, refused, sorted(let_through | ignored))


def check_generation_fields(generation_config, config, task, ignored_fields=()):
    """Refuses fields that would change the answers, and are not obeyed; others without effect are noted.

    Args:
        generation_config, config, task, ignored_fields: As in `generation_fields`.

    Raises:
        ValueError: if there is such a field, or one that is obeyed has a value of another kind.
    """
    file, refused, let_through = generation_fields(generation_config, config, task, ignored_fields)
    if refused:
        name = min(refused)
        raise ValueError(not_obeyed(file, name, refused[name], _meaning(name, task)))
    note_without_effect(file, let_through)


def is_generation_field(name):
    """Whether a field is known to be one of generation_config.json."""
    return name in _OBEYED or name in WITHOUT_EFFECT or name in _REFUSED


def _is_refused(name, value, fields, task):
    if name == "min_length" and fields.get("min_new_tokens") is not None:
        return False  # `min_new_tokens` replaces it
    if task == GENERATOR and name in _REFUSED_OF_GENERATORS:
        return value not in _REFUSED_OF_GENERATORS[name][1]
    if name == "bad_words_ids" and _is_of_kind(value, _OBEYED[name]):
        return any(len(word) != 1 for word in value)
    if name in ("forced_eos_token_id", "decoder_start_token_id") and isinstance(value, list):
        return len(set(map(str, value))) != 1
    return name in _REFUSED and value not in _REFUSED[name][1]


def _meaning(name, task):
    """What a field that is refused asks for."""
    if task == GENERATOR and name in _REFUSED_OF_GENERATORS:
        return _REFUSED_OF_GENERATORS[name][0]
    if name in _REFUSED_IN_PART:
        return _REFUSED_IN_PART[name]
    return _REFUSED[name][0]


def _is_of_kind(value, kind):
    return _CHECKS[kind](value)


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of_ids(value):
    return isinstance(value, list) and all(map(_is_integer, value))


_CHECKS = {
    "an integer": _is_integer,
    "an id": _is_integer,
    "a number": lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    'true, false or "never"': lambda value: isinstance(value, bool) or value == "never",
    "a list of ids": _is_list_of_ids,
    "an id or a list of ids": lambda value: _is_integer(value) or _is_list_of_ids(value),
    "a list of lists of ids": lambda value: isinstance(value, list) and all(map(_is_list_of_ids, value)),
}
