"""The fused update against the formula in NumPy and against Keras' own optimizers."""

import keras
import numpy as np
import pytest

from keras_attn.training import Adam, AdamW, NoamSchedule, restore_training_state, training_state

OPTIONS = {"learning_rate": 0.07, "beta_1": 0.83, "beta_2": 0.91, "epsilon": 1e-3}


def updated(optimizer, values, gradients):
    """Variables of these values after an update by each of the gradients."""
    variables = [keras.Variable(value, name=f"variable_{i}") for i, value in enumerate(values)]
    optimizer.build(variables)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(x) for x in gradient], variables)
    return [np.array(variable) for variable in variables]


def draw(rng, num_updates=5):
    shapes = (3, 5), (7,), ()
    values = [rng.normal(size=shape).astype("float32") for shape in shapes]
    return values, [
        [rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(num_updates)
    ]


def test_updates_are_those_of_the_paper(rng):
    values, gradients = draw(rng)
    expected = []
    for i, w in enumerate(x.astype("float64") for x in values):
        m = v = np.zeros_like(w)
        for t, gradient in enumerate((x[i].astype("float64") for x in gradients), 1):
            m = OPTIONS["beta_1"] * m + (1 - OPTIONS["beta_1"]) * gradient
            v = OPTIONS["beta_2"] * v + (1 - OPTIONS["beta_2"]) * gradient**2
            rate = (
                OPTIONS["learning_rate"] * np.sqrt(1 - OPTIONS["beta_2"] ** t) / (1 - OPTIONS["beta_1"] ** t)
            )
            w = w - rate * m / (np.sqrt(v) + OPTIONS["epsilon"])
        expected.append(w)
    for actual, array in zip(updated(Adam(**OPTIONS), values, gradients), expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (Adam, keras.optimizers.Adam, {"learning_rate": NoamSchedule(16, warmup_steps=3)}),
        (Adam, keras.optimizers.Adam, {"amsgrad": True}),
        (Adam, keras.optimizers.Adam, {"global_clipnorm": 0.5, "use_ema": True, "ema_momentum": 0.9}),
        (Adam, keras.optimizers.Adam, {"gradient_accumulation_steps": 2}),
        (AdamW, keras.optimizers.AdamW, {"weight_decay": 0.3}),
    ],
    ids=["schedule", "amsgrad", "clipped", "accumulated", "decayed"],
)
def test_updates_are_those_of_keras(ours, theirs, options, rng):
    values, gradients = draw(rng)
    options = {**OPTIONS, **options}
    expected = updated(theirs(**options), values, gradients)
    for actual, array in zip(updated(ours(**options), values, gradients), expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=2e-6, atol=2e-6)


def train(optimizer, jit_compile=False, one_hot=False):
    keras.utils.set_random_seed(3)
    table = np.random.default_rng(2).normal(size=(11, 3))
    ids = np.arange(35).reshape(7, 5) % 9  # each batch has some of them twice
    if one_hot:
        x, first = np.eye(11)[ids], keras.layers.Dense(3, use_bias=False)
    else:
        x, first = ids, keras.layers.Embedding(11, 3)
    model = keras.Sequential([keras.Input(x.shape[1:]), first, keras.layers.Dense(2)])
    first.set_weights([table])
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    model.fit(x, np.ones((7, 5, 2)), batch_size=3, epochs=2, shuffle=False, verbose=0)
    return model


@pytest.mark.extended
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_row_of_an_embedding_that_occurs_twice_has_the_sum_of_its_gradients(jit_compile):
    """Keras on TensorFlow squares them one by one."""
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("Keras compiles nothing on PyTorch")
    expected = train(keras.optimizers.Adam(0.1), one_hot=True)
    actual = train(Adam(0.1), jit_compile)
    for ours, theirs in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.extended
def test_a_state_of_keras_optimizer_is_continued(tmp_path):
    """Runs that Keras' optimizer began go on with ours: the variables are the same."""
    theirs, ours = train(keras.optimizers.Adam(0.1)), train(Adam(0.1))
    restore_training_state(ours, training_state(theirs))
    for a, b in zip(ours.optimizer.variables, theirs.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_model_comes_back_with_its_optimizer(tmp_path):
    model = train(AdamW(0.1, weight_decay=0.02))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert type(again) is AdamW
    assert again.get_config() == model.optimizer.get_config()
    for a, b in zip(again.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_the_update_of_the_backend_is_kept(optimizer):
    """PyTorch updates all variables together, by a class that Keras makes in place of its own."""
    kind = {Adam: keras.optimizers.Adam, AdamW: keras.optimizers.AdamW}[optimizer]
    assert isinstance(optimizer(**OPTIONS), type(kind(**OPTIONS)))
