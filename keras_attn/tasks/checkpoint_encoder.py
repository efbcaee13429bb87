"""Tasks of encoders from a checkpoint's folder."""

from keras_attn.huggingface import (
    is_sentence_transformer,
    labels,
    load_model,
    load_sentence_encoder,
    read_sentence_tokenizer,
    read_tokenizer,
)
from keras_attn.tasks.fill_mask import FillMask
from keras_attn.tasks.question_answerer import QuestionAnswerer
from keras_attn.tasks.text_classifier import TextClassifier
from keras_attn.tasks.text_embedder import TextEmbedder
from keras_attn.tasks.token_classifier import TokenClassifier

# Every function takes the folder, `pathlib.Path`; the content of its config.json; and as options `max_length`, the most tokens
# of a text, `jit_compile` as in the task, and `dtype` and `ignored_fields` as `keras_attn.huggingface.load_model` does.


def text_embedder(
    folder, config, pooling="mean", normalize=True, max_length=None, jit_compile=False, **of_loading
):
    """The `TextEmbedder` of a sentence-transformers folder, or of an encoder alone with the pooling that is given."""
    if is_sentence_transformer(folder):
        found = load_sentence_encoder(folder, **of_loading)
        options = {"pooling": found.pooling, "normalize": found.normalize}
        max_length, model = max_length or found.max_length, found.model
        tokenizer = read_sentence_tokenizer(found.folder, of_loading.get("ignored_fields", ()))
    else:
        options = {"pooling": pooling, "normalize": normalize}
        model, tokenizer = load_model(folder, head=False, **of_loading), _tokenizer(folder, of_loading)
    options |= {"max_length": max_length, "jit_compile": jit_compile}
    return TextEmbedder(model, tokenizer, **options)


def text_classifier(folder, config, **options):
    """The `TextClassifier` of a model for sequence classification, with the labels of its config."""
    found = labels(config)
    parts, of_task = _parts_and_options(folder, **options)
    return TextClassifier(
        *parts,
        found.names,
        multi_label=found.is_multi_label,
        activation="linear" if config.get("problem_type") == "regression" else None,
        **of_task,
    )


def token_classifier(folder, config, **options):
    """The `TokenClassifier` of a model for token classification, with the labels of its config."""
    parts, of_task = _parts_and_options(folder, **options)
    return TokenClassifier(*parts, labels(config).names, **of_task)


def fill_mask(folder, config, **options):
    """The `FillMask` of a masked language model."""
    parts, of_task = _parts_and_options(folder, **options)
    return FillMask(*parts, **of_task)


def question_answerer(folder, config, **options):
    """The `QuestionAnswerer` of a model for question answering."""
    parts, of_task = _parts_and_options(folder, **options)
    return QuestionAnswerer(*parts, **of_task)


def _parts_and_options(folder, max_length=None, jit_compile=False, **of_loading):
    parts = load_model(folder, **of_loading), _tokenizer(folder, of_loading)
    return parts, {"max_length": max_length, "jit_compile": jit_compile}


def _tokenizer(folder, of_loading):
    return read_tokenizer(folder, ignored_fields=of_loading.get("ignored_fields", ()))
