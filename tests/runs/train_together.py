"""One of the processes that train a small model together, or a process with several devices.

python train_together.py FOLDER one | devices | mirrored | model_parallel
python train_together.py FOLDER two PORT NUMBER [KILLED_AFTER_BATCHES]
"""

import contextlib
import os
import signal
import sys

folder, how, *rest = sys.argv[1:]
if how in ("devices", "model_parallel"):
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
if how == "two":
    os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = f"localhost:{rest[0]}"
    os.environ["KERAS_DISTRIBUTION_NUM_PROCESSES"] = "2"
    os.environ["KERAS_DISTRIBUTION_PROCESS_ID"] = rest[1]

import keras  # noqa: E402 -- after the flags
import tensorflow as tf  # noqa: E402
from train_until_killed import make_data, send_after_batches  # noqa: E402

from keras_attn import runs  # noqa: E402

RECIPE = runs.Recipe(
    model={
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "num_heads": 2,
        "intermediate_dim": 22,
        "dropout": 0.0,
        "max_sequence_length": 64,
        "normalize_first": True,
        "activation": "gelu",  # at the edge of a ReLU, rounding decides on a slope
    },
    tokenizer="bpe",
    vocabulary_size=400,
    max_tokens=643,
    padding="buckets",
    bucket_boundaries=(32, 64),
    epochs=2,
    steps_per_epoch=13,
    learning_rate=0.01,
    warmup_steps=5,
    epsilon=1e-3,  # or Adam makes as much of rounding, where the gradient is 0, as of a gradient
    dtype="float32",
    metric="chrf",
    num_averaged=2,
    save_updates=5,
    num_beams=1,
    max_length=7,
)


def distribution():
    if how == "two":
        _, _, *killed_after = rest
        if killed_after:
            send_after_batches(signal.SIGKILL, int(killed_after[0]))
    if how == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
    if how == "model_parallel":
        mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], keras.distribution.list_devices())
        layout_map = keras.distribution.LayoutMap(mesh)
        layout_map[".*feed_forward/intermediate/kernel"] = (None, "model")
        layout_map[".*(query|key|value)/kernel"] = (None, "model", None)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layout_map, auto_shard_dataset=False)
        )
    return contextlib.nullcontext()


def main():
    with distribution():
        translator = runs.train(make_data("small"), folder, RECIPE, verbose=0)
    print("sharded" if _is_sharded(translator.model) else "whole")


def _is_sharded(model):
    if keras.backend.backend() != "jax":
        return False
    return any(not weight.value.is_fully_replicated for weight in model.weights)


if __name__ == "__main__":
    main()
