"""A text generator from a checkpoint's folder."""

from keras_attn.files import read_json
from keras_attn.huggingface import load_model, read_tokenizer
from keras_attn.tasks.chat_templates import known_template
from keras_attn.tasks.checkpoint_decoding import Decoding, set_max_sequence_length, with_end
from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.token_ids import NO_TOKEN

# Without `max_new_tokens` in generation_config.json. Their windows may have 100,000 tokens.
_MAX_LENGTH = 256


def text_generator(
    folder,
    config,
    max_length=None,
    num_beams=None,
    length_penalty=None,
    jit_compile=False,
    dtype=None,
    ignored_fields=(),
    max_sequence_length=None,
):
    """The `TextGenerator` of a gpt2, llama, mistral, qwen2, qwen3, gemma2 or gemma3_text checkpoint.

    Answers are searched for, greedily unless the files name a number of beams: `do_sample` is not followed.

    Args:
        folder: `pathlib.Path`.
        config: Dict, config.json.
        max_length, num_beams, length_penalty: As in `TextGenerator`; by default what generation_config.json says, and
            256 new tokens if it says nothing.
        jit_compile: As in `TextGenerator`.
        dtype, ignored_fields: As in `keras_attn.huggingface.load_model`; fields of generation_config.json may be ignored
            too.
        max_sequence_length: Integer, the most tokens of a prompt and its continuation, at most the number of positions
            where these are in a table. Defaults to what config.json says.

    Raises:
        FileNotFoundError, ValueError: as `load_model` and `read_tokenizer`, if the template of the tokenizer puts
            anything but one token before a text, or for fields of generation_config.json that would change the answers
            and are not obeyed.
    """
    decoding = Decoding.read(folder, config, "TextGenerator", ignored_fields)
    tokenizer = with_end(read_tokenizer(folder, ignored_fields=ignored_fields), decoding.end_token_ids)
    path = folder / "tokenizer_config.json"
    tokenizer_config = read_json(path) if path.is_file() else {}
    start = _start_token_id(tokenizer)
    model = load_model(folder, dtype=dtype, ignored_fields=ignored_fields)
    total = set_max_sequence_length(model, max_sequence_length)
    given = {"max_length": max_length, "num_beams": num_beams, "length_penalty": length_penalty}
    return TextGenerator(
        model,
        tokenizer,
        start_token_id=NO_TOKEN if start is None else start,
        options=decoding.options(tokenizer.end_token_id),
        chat_template=known_template(_chat_template(folder, tokenizer_config)),
        jit_compile=jit_compile,
        **decoding.search(given, max(1, min(_MAX_LENGTH, total // 2)), total - 1),
    )


def _chat_template(folder, tokenizer_config):
    """The template of conversations, or None."""
    path = folder / "chat_template.jinja"  # where newer files have it
    if path.is_file() and path.stat().st_size < 10**6:
        return path.read_text(encoding="utf-8")
    return tokenizer_config.get("chat_template")


def _start_token_id(tokenizer):
    """The token before every text, or None."""
    before, after = tokenizer.around
    if len(before) > 1 or after:
        raise ValueError(
            "The tokenizer of a language model may put one token before a text, and none after it. "
            f"Received: {len(before)} before, {len(after)} after."
        )
    return before[0] if before else None
