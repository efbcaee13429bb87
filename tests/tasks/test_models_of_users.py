"""Tasks of models that users wrote: saved, loaded, quantised; what would not come back is not written."""

import keras
import numpy as np
import pytest

import keras_attn
from keras_attn.export import verify_saved_model
from keras_attn.layers import EncoderBlock
from keras_attn.layers.layer_slots import global_policy
from keras_attn.models import Seq2SeqTransformer, quantization_of
from keras_attn.tasks import ImagePreprocessing
from keras_attn.text import ByteTokenizer

SIZE, LABELS = (6, 9), ["cat", "dog", "eel"]
IMAGES = np.random.default_rng(5).integers(0, 256, (4, *SIZE, 3)).astype("uint8")


class Columns(keras.Model):
    """Normalised columns of pixels, between which a block attends; its first call makes the weights."""

    def __init__(self, width=10, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.normalization = keras.layers.Normalization()
        self.embedding = keras.layers.Dense(width)
        self.block = EncoderBlock(13, num_heads=2)
        self.head = keras.layers.Dense(len(LABELS))

    def call(self, inputs):
        columns = keras.ops.swapaxes(self.normalization(inputs), 1, 2)
        columns = keras.ops.reshape(columns, (-1, SIZE[1], 3 * SIZE[0]))
        return self.head(keras.ops.mean(self.block(self.embedding(columns)), axis=1))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@keras.saving.register_keras_serializable(package="tests")
class RegisteredColumns(Columns):
    pass


@keras.saving.register_keras_serializable(package="tests")
class WithoutItsWidth(Columns):
    def get_config(self):
        return {name: value for name, value in super().get_config().items() if name != "width"}


@keras.saving.register_keras_serializable(package="tests")
class OwnTransformer(Seq2SeqTransformer):
    pass


def classifier(model_class, **options):
    model = model_class(**options)
    model.normalization.adapt(IMAGES / 255.0)
    model(np.zeros((1, *SIZE, 3), "float32"))
    return keras_attn.ImageClassifier(model, ImagePreprocessing(SIZE), LABELS)


def answers(task):
    return task(list(IMAGES), top_k=3, return_scores=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("made", "read"), [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32"), ("float32", "float32")]
)
def test_a_folder_gives_the_task_back_under_any_global_policy(made, read, tmp_path):
    with global_policy(made):
        task = classifier(RegisteredColumns)
        task.save(tmp_path)
    with global_policy(read):
        assert answers(keras_attn.load(tmp_path)) == answers(task)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["int8", "bfloat16"])
def test_a_quantised_one_answers_and_is_not_saved(mode, tmp_path):
    task = classifier(RegisteredColumns)
    quantized = task.quantized(mode, xla=True)  # which no machine refuses
    (labels, scores), (_, expected) = answers(quantized), answers(task)
    assert sorted(labels[0]) == LABELS
    np.testing.assert_allclose(np.sort(scores), np.sort(expected), atol=3e-2)
    assert scores != expected
    with pytest.raises(ValueError, match=f"RegisteredColumns in {mode} cannot be saved. Save it before"):
        quantized.save(tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_layers_that_change_images_for_training_do_not_in_answers(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((*SIZE, 3)),
            keras.layers.RandomFlip(),
            keras.layers.RandomRotation(0.4),
            keras.layers.Flatten(),
            keras.layers.Dense(len(LABELS)),
        ]
    )
    task = keras_attn.ImageClassifier(model, ImagePreprocessing(SIZE), LABELS)
    expected = keras.ops.softmax(model(IMAGES / 255.0, training=False))
    labels, scores = answers(task)
    for row, of_row in enumerate(labels):
        in_order = [expected[row, LABELS.index(label)] for label in of_row]
        np.testing.assert_allclose(scores[row], in_order, rtol=1e-5)
    assert answers(task) == (labels, scores)
    version = task.export(tmp_path / "it", signatures=["classify_images"])
    checks = verify_saved_model(version, task.verification_inputs(), task.default_answers)
    assert not any(check.problems for check in checks)


def test_no_softmax_of_a_softmax_is_answered():
    model = keras.Sequential(
        [keras.Input((*SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    )
    with pytest.raises(ValueError, match=r'ends in a softmax.*`activation="linear"`'):
        answers(keras_attn.ImageClassifier(model, ImagePreprocessing(SIZE), LABELS))
    task = keras_attn.ImageClassifier(model, ImagePreprocessing(SIZE), LABELS, activation="linear")
    _, scores = answers(task)
    np.testing.assert_allclose(np.sort(scores), np.sort(model(IMAGES / 255.0)), rtol=1e-5)


@pytest.mark.parametrize(
    ("model_class", "why"),
    [
        (
            Columns,
            "of the class Columns cannot be saved: Could not locate class.*register_keras_serializable",
        ),
        (WithoutItsWidth, "configuration of WithoutItsWidth does not give its weights.*`get_config`"),
    ],
)
def test_what_would_not_come_back_is_not_written(model_class, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        classifier(model_class, width=14).save(tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["int8", "bfloat16"])
def test_a_quantised_class_of_ours_with_another_name_is_saved(mode, tmp_path):
    model = OwnTransformer.from_sizes(
        259, 1, 1, hidden_dim=10, num_heads=2, intermediate_dim=13, max_sequence_length=17
    )
    tokenizer = ByteTokenizer()
    task = keras_attn.Translator(model, tokenizer, tokenizer, max_length=5).quantized(mode, xla=True)
    task.save(tmp_path / "it")
    loaded = keras_attn.load(tmp_path / "it")
    assert type(loaded.model) is OwnTransformer
    assert quantization_of(loaded.model) == mode
    np.testing.assert_array_equal(*(task.score(["ab"], ["cd"]) for task in (loaded, task)))
