"""The public tasks, with small models, and questions that each answers."""

import dataclasses
from collections.abc import Callable

import helpers_encoder_tasks as encoder_tasks
import numpy as np
from helpers_images import HEIGHT, LABELS, WIDTH, encoded, linear_model, pixels
from helpers_seed import set_seed
from helpers_text_generators import with_varied_weights

import keras_attn
from keras_attn import layers
from keras_attn.generation import DecodingOptions
from keras_attn.tasks import ImagePreprocessing
from keras_attn.text import ByteTokenizer

SIZES = {"hidden_dim": 14, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 37}
TEXTS = ["Ada Lovelace lives in London.", "", "the dog runs"]
SOURCES, TARGETS = ["a dog", "in the park", ""], ["ein Hund", "im Park", "x"]


@dataclasses.dataclass(frozen=True)
class TaskThing:
    """A task.

    Attributes:
        name: The public name, then what tells this form from others.
        model: Function of a seed to a model of this task.
        around: Function of a model to the task.
        asks: Functions of the task to an answer with numbers, by name; the first is the quickest.
        options: Other values of its attributes, by name.
        writes: Whether it searches for texts, with beams, penalties and limits.
    """

    name: str
    model: Callable
    around: Callable
    asks: dict
    options: dict
    writes: bool = False

    @property
    def public_name(self):
        return self.name.partition("-")[0]


def flattened(answer):
    """(the strings, the numbers) of an answer."""
    strings, numbers = [], []

    def visit(part):
        if isinstance(part, dict):
            visit(list(part.values()))
        elif isinstance(part, (list, tuple)):
            for one in part:
                visit(one)
        elif isinstance(part, str | bytes):
            strings.append(part)
        elif part is not None:
            numbers.extend(np.asarray(part, "float64").ravel().tolist())

    visit(answer)
    return strings, np.array(numbers)


def translation_model(seed):
    set_seed(seed)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(259, 1, 1, **SIZES)
    return with_varied_weights(model, seed)


def recurrent_model(seed):
    set_seed(seed)
    model = keras_attn.models.RNNSeq2Seq(259, hidden_dim=14, max_sequence_length=37)
    return with_varied_weights(model, seed)


def language_model(seed):
    set_seed(seed)
    return with_varied_weights(keras_attn.models.DecoderTransformer.from_sizes(259, 1, **SIZES), seed)


def headed(make_head):
    def model(seed):
        set_seed(seed)
        body = encoder_tasks.encoder()
        return encoder_tasks.with_random_weights(
            keras_attn.models.EncoderWithHead(body, make_head(body)), seed
        )

    return model


def translator(model):
    return keras_attn.Translator(model, ByteTokenizer(), ByteTokenizer(), num_beams=2, max_length=4)


TRANSLATION_ASKS = {
    "score": lambda task: task.score(SOURCES, TARGETS),
    "call": lambda task: task(SOURCES, return_scores=True),
    "n_best": lambda task: task(SOURCES, num_return_sequences=2, return_scores=True),
}
SEARCH_OPTIONS = {
    "options": DecodingOptions(min_length=3, repetition_penalty=1.4),
    "num_beams": 1,
    "length_penalty": 0.2,
    "max_length": 3,
}
IMAGES = [encoded(pixels(HEIGHT, WIDTH, seed=seed)) for seed in range(2)]
WORDS = encoder_tasks.word_tokenizer
TASKS = [
    TaskThing("Translator", translation_model, translator, TRANSLATION_ASKS, SEARCH_OPTIONS, writes=True),
    TaskThing(
        "Translator-recurrent", recurrent_model, translator, TRANSLATION_ASKS, SEARCH_OPTIONS, writes=True
    ),
    TaskThing(
        "TextGenerator",
        language_model,
        lambda model: keras_attn.TextGenerator(model, ByteTokenizer(), max_length=4, start_token_id=13),
        {"score": lambda task: task.score(SOURCES), "call": lambda task: task(SOURCES, return_scores=True)},
        SEARCH_OPTIONS,
        writes=True,
    ),
    TaskThing(
        "TextEmbedder",
        lambda seed: encoder_tasks.with_random_weights(encoder_tasks.encoder(), seed),
        lambda model: keras_attn.TextEmbedder(model, WORDS()),
        {"call": lambda task: task(TEXTS), "similarity": lambda task: task.similarity(TEXTS, TEXTS[:2])},
        {"pooling": "max", "normalize": False, "max_length": 5},
    ),
    TaskThing(
        "TextClassifier",
        headed(lambda body: layers.ClassificationHead(3, intermediate_dim=encoder_tasks.D)),
        lambda model: keras_attn.TextClassifier(model, WORDS(), ["good", "bad", "é"]),
        {"call": lambda task: task(TEXTS, top_k=3, return_scores=True)},
        {"labels": ("one", "two", "three"), "max_length": 5},
    ),
    TaskThing(
        "TokenClassifier",
        headed(lambda body: layers.TokenClassificationHead(5)),
        lambda model: keras_attn.TokenClassifier(model, WORDS(), encoder_tasks.LABELS),
        {"call": lambda task: task(TEXTS)},
        {"max_length": 5},
    ),
    TaskThing(
        "FillMask",
        headed(lambda body: layers.MaskedLanguageModelHead(body.embedding.token)),
        lambda model: keras_attn.FillMask(model, WORDS(), top_k=3),
        {"call": lambda task: task("Ada [MASK] in london.")},
        {"top_k": 5, "max_length": 7},
    ),
    TaskThing(
        "QuestionAnswerer",
        headed(lambda body: layers.TokenClassificationHead(2)),
        lambda model: keras_attn.QuestionAnswerer(model, WORDS(), max_answer_length=4),
        {"call": lambda task: task("where?", encoder_tasks.CONTEXT)},
        {"max_answer_length": 1},
    ),
    TaskThing(
        "ImageClassifier",
        lambda seed: linear_model(seed=seed),
        lambda model: keras_attn.ImageClassifier(model, ImagePreprocessing((HEIGHT, WIDTH)), LABELS),
        {"call": lambda task: task(IMAGES, top_k=3, return_scores=True)},
        {},
    ),
]


TASK_THINGS = {thing.name: thing for thing in TASKS}
