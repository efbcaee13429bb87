"""Tasks of encoders from a checkpoint's folder."""

from keras_attn.huggingface import (
    is_sentence_transformer,
    labels,
    load_model,
    load_sentence_encoder,
    read_tokenizer,
)
from keras_attn.tasks.fill_mask import FillMask
from keras_attn.tasks.question_answerer import QuestionAnswerer
from keras_attn.tasks.text_classifier import TextClassifier
from keras_attn.tasks.text_embedder import TextEmbedder
from keras_attn.tasks.token_classifier import TokenClassifier

# Every function takes the folder, `pathlib.Path`; the content of its config.json; and as options `max_length`, the most tokens
# of a text, and `dtype` and `ignored_fields` as `keras_attn.huggingface.load_model` does.


def text_embedder(folder, config, pooling="mean", normalize=True, max_length=None, **of_loading):
    """The `TextEmbedder` of a sentence-transformers folder, or of an encoder alone with the pooling that is given."""
    if is_sentence_transformer(folder):
        found = load_sentence_encoder(folder, **of_loading)
        options = {"pooling": found.pooling, "normalize": found.normalize}
        max_length, folder, model = max_length or found.max_length, found.folder, found.model
    else:
        options = {"pooling": pooling, "normalize": normalize}
        model = load_model(folder, head=False, **of_loading)
    return TextEmbedder(model, read_tokenizer(folder), max_length=max_length, **options)


def text_classifier(folder, config, max_length=None, **of_loading):
    """The `TextClassifier` of a model for sequence classification, with the labels of its config."""
    found = labels(config)
    return TextClassifier(
        *_parts(folder, of_loading),
        found.names,
        multi_label=found.is_multi_label,
        activation="linear" if config.get("problem_type") == "regression" else None,
        max_length=max_length,
    )


def token_classifier(folder, config, max_length=None, **of_loading):
    """The `TokenClassifier` of a model for token classification, with the labels of its config."""
    return TokenClassifier(*_parts(folder, of_loading), labels(config).names, max_length=max_length)


def fill_mask(folder, config, max_length=None, **of_loading):
    """The `FillMask` of a masked language model."""
    return FillMask(*_parts(folder, of_loading), max_length=max_length)


def question_answerer(folder, config, max_length=None, **of_loading):
    """The `QuestionAnswerer` of a model for question answering."""
    return QuestionAnswerer(*_parts(folder, of_loading), max_length=max_length)


def _parts(folder, of_loading):
    return load_model(folder, **of_loading), read_tokenizer(folder)
