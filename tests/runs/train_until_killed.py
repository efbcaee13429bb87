"""Processes that train in a folder, and send themselves a signal at a given moment.

    python train_until_killed.py

It has imported the library and started nothing; each line that it reads, [FOLDER, SIZE, KIND, COUNT] in JSON, is a process
of its own, whose exit code it prints. KIND is `never`; `batch` (SIGKILL after COUNT batches), or SIGKILL at a stage of the COUNT-th save: `half_written`,
`written`, `renamed`; `translation`, SIGKILL when half of the COUNT-th line of a teacher's translations is written; `SIGINT` or `SIGTERM` after COUNT batches; or `twice` (SIGINT, and another one in the evaluation).
"""

import json
import multiprocessing
import os
import pathlib
import signal
import sys

import safetensors.numpy

from keras_attn import runs
from keras_attn.data import PlainText, date_pairs, multi30k_pairs
from keras_attn.runs import distillation

TINY = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 11,
    "dropout": 0.2,
    "max_sequence_length": 64,
}
# Its rate does not depend on the number of epochs.
LONG = runs.Recipe.load("dates").replace(
    model=TINY, max_tokens=257, epochs=3, steps_per_epoch=7, num_averaged=2, num_beams=1, max_length=5
)
SIZES = {
    # dropout, accumulation, a moving average, best-epoch averaging and early stopping: all that has a state
    "small": runs.Recipe(
        model=TINY,
        tokenizer="bytes",
        max_tokens=257,
        gradient_accumulation_steps=2,
        epochs=3,
        steps_per_epoch=14,
        schedule="cosine",
        optimizer="adamw",
        weight_decay=0.01,
        learning_rate=0.01,
        warmup_steps=5,
        ema_momentum=0.9,
        dtype="mixed_float16",
        metric="chrf",
        num_averaged=2,
        averaged="best",
        patience=2,
        save_updates=3,
        num_beams=1,
        max_length=5,
    ),
    "student": LONG.replace(epochs=2, save_updates=3),
    "short": LONG.replace(epochs=2),
    "long": LONG,
    # Three updates are an epoch of its data, so a save is in the middle of one.
    "sampled": LONG.replace(
        tokenizer="bpe", vocabulary_size=400, subword_sampling=0.1, steps_per_epoch=8, save_updates=4
    ),
    "language_model": runs.Recipe.load("shakespeare").replace(
        model={
            "kind": "decoder",
            "num_layers": 1,
            "hidden_dim": 8,
            "num_heads": 2,
            "intermediate_dim": 11,
            "dropout": 0.2,
            "max_sequence_length": 16,
        },
        max_tokens=80,
        epochs=3,
        steps_per_epoch=7,
        save_updates=3,
    ),
    "tiny": runs.Recipe.load("multi30k").replace(
        epochs=3,
        steps_per_epoch=70,
        max_tokens=512,
        vocabulary_size=4000,
        num_averaged=2,
        save_updates=7,
        max_length=5,
        num_beams=1,
    ),
}


def make_data(size):
    if size == "language_model":
        training, validation = PlainText("\n".join(date_pairs("train", size=300).sources), "dates").split()
        return runs.DataSplits(training, validation, None)
    if size == "tiny" and os.environ.get("KERAS_ATTN_DATA"):
        train, validation = multi30k_pairs("train"), multi30k_pairs("validation")
    else:
        train, validation = date_pairs("train", size=4000), date_pairs("validation")
    if size in ("student", "sampled"):
        train = _first(train, 60)
    train, validation = _first(train, 4000), _first(validation, 17)
    return runs.DataSplits(train, validation, None)


def _first(pairs, count):
    return type(pairs)(pairs.sources[:count], pairs.targets[:count], pairs.name)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_save(kind, count):
    """Breaks the write of a state at one of its stages: any other is as it is."""
    saves = 0
    save_file, replace = safetensors.numpy.save_file, os.replace

    def counted_save(arrays, path, metadata=None):
        nonlocal saves
        is_state = "state-" in pathlib.Path(path).name
        saves += is_state
        save_file(arrays, path, metadata=metadata)
        if is_state and saves == count and kind == "half_written":
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    def counted_replace(source, destination):
        is_chosen = "state-" in pathlib.Path(destination).name and saves == count
        if is_chosen and kind == "written":
            die()
        replace(source, destination)
        if is_chosen and kind == "renamed":
            die()

    safetensors.numpy.save_file, os.replace = counted_save, counted_replace


def die_in_translations(count):
    """Dies when half of a line of `teacher.jsonl` is written."""
    lines, append = 0, distillation.TeacherTranslations._append

    def counted(self, value):
        nonlocal lines
        lines += 1
        append(self, value)
        if lines == count:
            os.truncate(self.path, os.path.getsize(self.path) - 9)
            die()

    distillation.TeacherTranslations._append = counted


def send_after_batches(number, count):
    on_train_batch_end = runs.progress.Progress.on_train_batch_end
    batches = 0

    def counted(self, batch, logs=None):
        nonlocal batches
        on_train_batch_end(self, batch, logs)
        batches += 1
        if batches == count:
            os.kill(os.getpid(), number)

    runs.progress.Progress.on_train_batch_end = counted


def train(folder, size, kind, count):
    if kind == "batch":
        send_after_batches(signal.SIGKILL, count)
    elif kind in ("SIGINT", "SIGTERM", "twice"):
        send_after_batches(signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT, count)
        if kind == "twice":
            runs.translation_run.evaluate = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
    elif kind == "translation":
        die_in_translations(count)
    elif kind != "never":
        die_in_save(kind, count)
    recipe = SIZES[size]
    if size == "student":
        distillation._SOURCES_A_PIECE = 17
        recipe = recipe.replace(distill={"teachers": [str(pathlib.Path(folder).parent / "teacher")]})
    runs.train(make_data(size), folder, recipe, verbose=0)


def main():
    # Only exit codes go to stdout; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        process = multiprocessing.get_context("fork").Process(target=train, args=json.loads(line))
        process.start()
        process.join()
        print(process.exitcode, file=answers, flush=True)


if __name__ == "__main__":
    main()
