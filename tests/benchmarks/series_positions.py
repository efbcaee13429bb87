"""How well models of a time series forecast longer histories than those in training, by their positions.

python tests/benchmarks/series_positions.py
"""

import argparse

import keras
import numpy as np

from keras_attn import layers

ATTENTION = {
    "sinusoidal, added": {},
    "none": {},
    "rotary": {"rotary_embedding": layers.RotaryEmbedding},
    "alibi": {"position_bias": layers.AlibiBias},
    "rotary, window of 24": {"rotary_embedding": layers.RotaryEmbedding, "sliding_window": lambda: 24},
}


def make_series(num_hours, seed):
    """An hourly load with a daily and a weekly cycle and noise, and whether it is weekend: (hours, 2)."""
    hours = np.arange(num_hours)
    load = np.sin(2 * np.pi * hours / 24) + 0.3 * np.sin(2 * np.pi * hours / 168)
    load = load + 0.1 * np.random.default_rng(seed).normal(size=num_hours)
    return np.stack([load, hours % 168 >= 120], axis=-1).astype("float32")


def windows(series, length):
    rows = np.lib.stride_tricks.sliding_window_view(series, length + 1, axis=0).swapaxes(1, 2)
    return rows[:, :-1], rows[:, 1:, :1]


def make_model(name):
    inputs = keras.Input((None, 2))
    x = keras.layers.Dense(32)(inputs)
    if name == "sinusoidal, added":
        x = keras.layers.Add()([x, layers.SinusoidalPositionEncoding()(x)])
    for _ in range(2):
        arguments = {argument: make() for argument, make in ATTENTION[name].items()}
        attention = layers.MultiHeadAttention(4, 8, **arguments)
        x = layers.DecoderBlock(64, self_attention=attention, normalize_first=True)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LayerNormalization()(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    series = make_series(1500, arguments.seed)
    inputs, targets = windows(series[:1248], 48)
    for name in ATTENTION:
        keras.utils.set_random_seed(arguments.seed)
        model = make_model(name)
        model.compile(keras.optimizers.Adam(3e-3), "mse")
        model.fit(inputs, targets, batch_size=32, epochs=arguments.epochs, verbose=0)
        errors = []
        for length in (48, 96, 192):
            later, expected = windows(series[1200:], length)
            difference = model.predict(later, verbose=0)[:, -12:] - expected[:, -12:]
            errors.append(f"{length} hours {np.mean(difference**2):.3f}")
        print(f"{name}: mean squared error of the last 12 hours: {', '.join(errors)}", flush=True)


if __name__ == "__main__":
    main()
