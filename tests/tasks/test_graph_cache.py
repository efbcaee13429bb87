"""A task answers as it is now, and the graphs that it keeps are few."""

import copy
import gc
import pickle
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import word_tokenizer
from helpers_seed import set_seed
from helpers_text_generators import byte_generator
from helpers_translators import SENTENCES, byte_translator

import keras_attn
from keras_attn import layers
from keras_attn.models import EncoderTransformer, EncoderWithHead, quantize
from keras_attn.tasks.graph_cache import MOST_GRAPHS, GraphCache, TraceGuard
from keras_attn.tasks.image_preprocessing import ImagePreprocessing
from keras_attn.text import ByteTokenizer

TEXTS = ["Ada lives in London.", "the dog runs"]


def encoder(seed=3, **options):
    set_seed(seed)
    sizes = {"hidden_dim": 22, "num_heads": 2, "intermediate_dim": 13, "max_sequence_length": 23, **options}
    return randomized(EncoderTransformer.from_sizes(262, 2, **sizes), seed)


def randomized(model, seed=3):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    return model


def adapt(task):
    task.model.enable_lora(rank=2)
    randomized(task.model, seed=5)


def block_of_list(task):
    block = layers.EncoderBlock(13, num_heads=2)
    block.build((None, None, 22))
    task.model.blocks[1] = randomized(block, seed=7)


def set_in_layer(task, name, value):
    setattr(task.model.blocks[0].feed_forward_layer, name, value)


def window(task):
    for block in task.model.blocks:
        block.self_attention_layer.sliding_window = 2


def policy(task):
    for layer in task.model._flatten_layers():
        layer.dtype_policy = "bfloat16"


# More than tests/meetings changes: there it is weights, LoRA, quantisation, models and every option of each task.
CHANGES = {
    "policies": policy,
    "block": block_of_list,
    "attribute": window,
    "tokenizer": lambda task: setattr(task, "tokenizer", word_tokenizer()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_task_answers_as_a_new_one(change):
    task = keras_attn.TextEmbedder(encoder(), ByteTokenizer())
    before = task(TEXTS)
    CHANGES[change](task)
    changed = task(TEXTS)
    np.testing.assert_array_equal(changed, task.replaced()(TEXTS))
    assert np.abs(changed - before).max() > 1e-4


def test_copies_and_the_first_go_their_own_ways():
    task = keras_attn.TextEmbedder(encoder(), ByteTokenizer())
    before = task(TEXTS)
    for twin in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        np.testing.assert_allclose(twin(TEXTS), before, atol=1e-6)
        twin.model = encoder(seed=13)
        assert np.abs(twin(TEXTS) - before).max() > 1e-3
    np.testing.assert_array_equal(task(TEXTS), before)


@pytest.mark.extended
def test_two_tasks_of_one_model_both_see_that_it_changes():
    tasks = [keras_attn.TextEmbedder(encoder(), ByteTokenizer())]
    tasks.append(keras_attn.TextEmbedder(tasks[0].model, ByteTokenizer(), pooling="max"))
    before = [task(TEXTS) for task in tasks]
    adapt(tasks[0])
    for task, old in zip(tasks, before):
        np.testing.assert_array_equal(task(TEXTS), task.replaced()(TEXTS))
        assert np.abs(task(TEXTS) - old).max() > 1e-3


@pytest.mark.extended
def test_what_changes_no_answer_leaves_the_graphs():
    """Training, saving and looking, which set attributes of layers and models."""
    model = EncoderWithHead(encoder(), layers.ClassificationHead(2))
    structure = TraceGuard(model)
    ids, labels = np.full((3, 5), 7), np.zeros((3,), int)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with keras_attn.capture_attention(model):
        model(ids)
        assert structure.is_unchanged()
    model.fit(ids, labels, epochs=2, validation_data=(ids, labels), verbose=0)
    model.fit(ids, labels, verbose=0)
    model.evaluate(ids, labels, verbose=0)
    model.predict(ids, verbose=0)
    model.set_weights(model.get_weights())
    model.get_config()
    model.trainable = False
    assert structure.is_unchanged()
    model.encoder.blocks[0].feed_forward_layer.layer_norm_epsilon = 0.5
    assert not structure.is_unchanged()


def test_a_variable_of_one_number_is_known_by_its_identity():
    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(1,), initializer="ones")

    layer = Scale()
    layer.build((3,))
    structure, old = TraceGuard(layer), layer.scale
    layer._untrack_variable(old)
    layer._tracker.unlock()
    layer.scale = layer.add_weight(shape=(1,), initializer="ones")
    assert not structure.is_unchanged()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["labels", "adapt"])
def test_an_image_classifier_answers_anew(name):
    set_seed(3)
    model = keras.Sequential(
        [keras.Input((5, 7, 3)), keras.layers.Normalization(), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    task = keras_attn.ImageClassifier(model, ImagePreprocessing((5, 7)), ["cat", "dog"])
    image = np.random.default_rng(0).integers(0, 255, (5, 7, 3), "uint8")
    before = task(image, return_scores=True)
    if name == "labels":
        task.labels = ["Katze", "Hund"]
    else:  # what the layer subtracts is a constant of a graph
        model.layers[0].adapt(np.random.default_rng(1).normal(size=(4, 5, 7, 3)) + 3)
    assert task(image, return_scores=True) == task.replaced()(image, return_scores=True) != before


def test_an_argument_is_checked_when_it_is_set():
    model = EncoderWithHead(encoder(), layers.ClassificationHead(2))
    model.build((None, None))
    task = keras_attn.TextClassifier(model, ByteTokenizer(), ["bad", "good"])
    for name, value, message in [
        ("labels", ["one"], "`labels` must be 2 different strings"),
        ("max_length", 24, "`max_length` must have room"),
        ("activation", "soft", "activation"),
        ("model", encoder(), "`model` must be a keras_attn.models.EncoderWithHead"),
    ]:
        with pytest.raises(ValueError, match=message):
            setattr(task, name, value)
    assert (task.labels, task.max_length, task.model) == (("bad", "good"), 23, model)
    task.anything = "else"
    assert task.anything == "else"


@pytest.mark.extended
def test_limits_and_penalties_are_data():
    """One graph for all of them; the answers are those of the model's own eager search."""
    translator, ids = byte_translator(), [[*SENTENCES[0].encode()][:23]]
    for number, (max_length, penalty) in enumerate([(2, 0.0), (5, 0.6), (11, 1.7), (16, -0.3), (13, 1.0)]):
        count = number % 3 + 1
        texts, scores = translator(
            bytes(ids[0]), 3, penalty, max_length, num_return_sequences=count, return_scores=True
        )
        expected = translator.model.generate(
            np.array([[3 + i for i in ids[0]] + [2]]),
            start_token_id=1,
            end_token_id=2,
            num_beams=3,
            length_penalty=penalty,
            max_length=max_length,
            num_return_sequences=count,
            unwritable_token_ids=translator.unwritable_token_ids,
        )
        np.testing.assert_allclose(scores, np.array(expected.scores)[0], rtol=1e-5)
        assert texts == translator.target_tokenizer.decode(np.array(expected.token_ids)[0])
    assert len([key for key in translator._graphs.cached_keys() if key[0] != "texts"]) == 1
    translator.length_penalty, translator.max_length, translator.num_beams = 0.3, 7, 2
    translator(SENTENCES[0], 3)
    assert len(translator._graphs) == 2


@pytest.mark.extended
def test_streams_of_all_limits_are_two_graphs():
    generator = byte_generator(num_beams=1)
    for max_length in (3, 9, 16):
        assert "".join(generator.stream("ab", max_length)) == generator("ab", max_length=max_length)
    kinds = [key[0] for key in generator._graphs.cached_keys()]
    assert sorted(map(str, kinds)) == ["1", "stream_start", "stream_step", "texts"]


def test_a_limit_out_of_range_is_refused():
    with pytest.raises(
        ValueError, match=r"`max_length` must be at most `max_sequence_length`\. Received: max"
    ):
        byte_translator()("a", max_length=38)
    with pytest.raises(ValueError, match="`num_return_sequences` must be at least 1 and at most `num_beams`"):
        byte_translator()("a", num_return_sequences=4)


class Owner:
    def __init__(self):
        self.value = 1


class Graph:
    """What is kept in the place of a graph."""


def test_the_graphs_that_were_not_used_for_longest_go():
    owner = Owner()
    graphs, made = GraphCache(owner), []
    for number in range(MOST_GRAPHS):
        made.append(weakref.ref(graphs.get(number, Graph)))
    graphs.get(0, Graph)
    graphs.get("new", Graph)
    assert len(graphs) == MOST_GRAPHS
    assert made[0]() is not None
    assert made[1]() is None
    owner.value = 2
    graphs.get("newest", Graph)
    assert graphs.cached_keys() == ["newest"]


def test_a_graph_that_is_there_does_not_wait_for_one_that_is_made():
    graphs = GraphCache(Owner())
    graphs.get("there", Graph)
    begun, may_end = threading.Event(), threading.Event()
    slow = threading.Thread(target=graphs.get, args=("slow", lambda: begun.set() or may_end.wait(60)))
    slow.start()
    begun.wait(60)
    assert isinstance(graphs.get("there", Graph), Graph)
    may_end.set()
    slow.join()


@pytest.mark.extended
def test_what_a_task_forgets_is_free():
    """Graphs that are put out, and the model that was there before."""
    task = keras_attn.TextEmbedder(encoder(), ByteTokenizer())
    task(TEXTS)
    [key] = task._graphs.cached_keys()
    gone = [weakref.ref(task.model.blocks[0]), weakref.ref(task._graphs.get(key, None).graph)]
    # TensorFlow never forgets a custom gradient, which holds the graph that it was traced in.
    assert not [one for one in task._graphs.get(key, None).graph.get_operations() if one.type == "IdentityN"]
    task.model = encoder(seed=13)
    task(TEXTS)
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.extended
def test_predict_after_lora_is_not_what_was_compiled_before():
    model = encoder()
    ids = np.full((3, 5), 7)
    model.predict(ids, verbose=0)
    model.enable_lora(rank=2)
    randomized(model, seed=5)
    np.testing.assert_allclose(model.predict(ids, verbose=0), model(ids), atol=1e-5)
    plain = encoder()
    plain.predict(ids, verbose=0)
    quantize(plain, "bfloat16")
    randomized(plain, seed=5)
    np.testing.assert_allclose(plain.predict(ids, verbose=0), tf.cast(plain(ids), "float32"), atol=1e-2)
