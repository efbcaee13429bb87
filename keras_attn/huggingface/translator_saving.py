"""A trained translator as a checkpoint that transformers loads, generates with, and tokenizes for."""

import json
import pathlib

from keras_attn.files import replaced_folder
from keras_attn.huggingface.generation_fields import GENERATION_FILE
from keras_attn.huggingface.loading import origin_of
from keras_attn.huggingface.saving import model_type_of_origin, save_model
from keras_attn.huggingface.tokenizer_saving import save_tokenizer
from keras_attn.models import Seq2SeqTransformer

TARGET_FOLDER = "target_tokenizer"
_MARKER = "config.json"


def save_translator(
    folder,
    model,
    source_tokenizer,
    target_tokenizer,
    max_length,
    num_beams=4,
    length_penalty=1.0,
    unwritable_token_ids=(),
    start_token_id=None,
):
    """Writes a translator as a folder for transformers' AutoModelForSeq2SeqLM and AutoTokenizer.

    Post-norm models become marian, pre-norm ones pegasus, those with relative positions t5. generation_config.json has the
    translator's beams and limits; its search gives the answers of ours (`DecodingOptions(exact_stopping=True)` is its
    `early_stopping="never"`).

    Args:
        folder: Path; it replaces an older checkpoint there, whole.
        model: `Seq2SeqTransformer`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`. If they are two, the target's is in the
            folder's `target_tokenizer`, which AutoTokenizer reads with `subfolder="target_tokenizer"`.
        max_length: Integer, the most tokens of a translation, END included.
        num_beams: Integer.
        length_penalty: Float.
        unwritable_token_ids: Integers, tokens that a translation never has.
        start_token_id: Integer, the token before a translation. Defaults to the target tokenizer's START.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: if no architecture is that of the model, rotary positions for instance, if a tokenizer has no
            tokenizer.json, or `folder` holds something else.
        OSError: if a file cannot be written.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    translator.export_model("dates-marian", format="huggingface")
    # transformers.AutoModelForSeq2SeqLM.from_pretrained("dates-marian")
    ```
    """
    model_type = model_type_of_origin(model) or _model_type(model)
    origin = origin_of(model)
    start = target_tokenizer.start_token_id if start_token_id is None else start_token_id
    end = target_tokenizer.end_token_id
    never = sorted({*unwritable_token_ids, model.pad_token_id} - {end, -1})
    # What stood in the checkpoint that the model was loaded from.
    loaded = {name: value for name, value in (origin.generation_config or {}).items() if value is not None}
    loaded.pop("max_new_tokens", None)
    ends = loaded.get("eos_token_id")
    if not isinstance(ends, list) or end not in ends:
        ends = end
    generation = {
        **loaded,
        "decoder_start_token_id": start,
        "eos_token_id": ends,
        "pad_token_id": model.pad_token_id if model.pad_token_id >= 0 else end,
        "max_length": max_length + 1,  # theirs counts START
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "suppress_tokens": never or None,
        "renormalize_logits": True,
    }
    with replaced_folder(folder, _MARKER, "checkpoint") as built:
        special_ids = {"decoder_start_token_id": start}
        if not origin.config:
            special_ids |= {"bos_token_id": start, "eos_token_id": end}
        save_model(model, built, model_type, source_tokenizer, **special_ids)
        (built / GENERATION_FILE).write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
        if target_tokenizer is not source_tokenizer:
            save_tokenizer(target_tokenizer, built / TARGET_FOLDER, "seq2seq", model.max_sequence_length)
    return pathlib.Path(folder)


def _model_type(model):
    if not isinstance(model, Seq2SeqTransformer):
        raise ValueError(
            f"A translator for transformers must be a Seq2SeqTransformer. Received: {type(model).__name__}."
        )
    block = model.decoder_blocks[0]
    attention = block.self_attention_layer
    if getattr(attention, "rotary_embedding", None) is not None:
        raise ValueError(
            "A translator with rotary positions is none of the architectures that transformers has. Train one with "
            "`position_encoding='sinusoidal'`."
        )
    if getattr(attention, "position_bias", None) is not None:
        return "t5"
    return "pegasus" if block.normalize_first else "marian"
