"""A translator from a folder of OpenNMT-tf."""

from keras_attn.generation import DecodingOptions
from keras_attn.opennmt import Settings, load_model, read_tokenizer
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.translator import Translator

# What OpenNMT-tf's `--auto_config` gives a Transformer, and its default.
_NUM_BEAMS, _MAX_LENGTH = 4, 250


def opennmt_translator(
    folder,
    max_length=None,
    num_beams=None,
    length_penalty=None,
    num_heads=None,
    model_type=None,
    checkpoint=None,
    dtype=None,
    ignored_fields=(),
):
    """The `Translator` of a Transformer of OpenNMT-tf 2.

    Its `params` in the YAML file are the defaults: `beam_width`, `maximum_decoding_length`, `minimum_decoding_length`, and
    `length_penalty`, which is that of Wu et al. 2016 there: `wu_length_penalty` of `DecodingOptions` here.

    Args:
        folder: Path of what OpenNMT-tf calls `model_dir`, with the YAML file and the vocabularies; or of its `avg`.
        max_length, num_beams: As in `Translator`.
        length_penalty: As in `Translator`, in place of Wu's.
        num_heads, model_type, checkpoint, dtype: As in `keras_attn.opennmt.load_model`.
        ignored_fields: Names in `params` that are not followed, "coverage_penalty" for instance.

    Raises:
        FileNotFoundError, ValueError: as `load_model` and `read_tokenizer`, or for an option of a search that has no equal.
    """
    settings = Settings.read(folder, model_type)
    settings.check_params(ignored_fields)
    marks_start, marks_end = settings.source_marks()
    source = read_tokenizer(settings, "source")
    target = source if settings.has_one_tokenizer else read_tokenizer(settings, "target")
    model = load_model(folder, num_heads, model_type, checkpoint, dtype)
    for side, tokenizer, size in (
        ("source", source, model.vocabulary_size),
        ("target", target, model.target_vocabulary_size or model.vocabulary_size),
    ):
        if tokenizer.vocabulary_size != size:
            raise ValueError(
                f"The {side} vocabulary must have {size - 1} lines, one fewer than the rows of the embedding. "
                f"Received: {tokenizer.vocabulary_size - 1} lines."
            )
    found, options = {"length_penalty": 0.0}, {}
    if length_penalty is None:
        options["wu_length_penalty"] = float(settings.param("length_penalty", 0)) or None
    found["num_beams"] = int(settings.param("beam_width", _NUM_BEAMS))
    found["max_length"] = int(settings.param("maximum_decoding_length", _MAX_LENGTH))
    if shortest := int(settings.param("minimum_decoding_length", 0)):
        options["min_length"] = shortest + 1  # END counts here
    given = {"max_length": max_length, "num_beams": num_beams, "length_penalty": length_penalty}
    return Translator(
        model,
        source,
        target,
        options=DecodingOptions(**{name: value for name, value in options.items() if value is not None}),
        source_form=SourceForm((source.start_token_id,) * marks_start, (source.end_token_id,) * marks_end),
        **(found | {name: value for name, value in given.items() if value is not None}),
    )
