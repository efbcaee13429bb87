"""What a run pays for its saves, and for going on after it was killed, in steps of `tiny`.

    python tests/benchmarks/save_and_resume.py [FILE FILE]

Each round is three processes: one trains and saves its state every few steps; one is killed after its first save; one
goes on in the folder of that. The states are those of the recipe, in the background as in every run.
"""

from helpers_benchmarks import parser, print_table  # isort: skip -- quietens TensorFlow

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from keras_attn import runs
from keras_attn.runs.progress import Progress
from keras_attn.runs.run_folder import SavedStates
from keras_attn.runs.training_run import TrainingRun

SAVE_UPDATES, WARM_UP = 10, 20
STEPS, EPOCH = 90 * 247, 247  # of the run of docs/results/tok-s1, and of one of its epochs


class Watch:
    """When things begin and end in this process, in seconds since it was started."""

    def __init__(self, started):
        self.started = started
        self.spans = {}

    def of(self, owner, name, after=lambda number: None):
        """Has every call of a method noted."""
        method, spans = getattr(owner, name), self.spans.setdefault(name, [])

        def watched(*args, **kwargs):
            begin = time.time() - self.started
            result = method(*args, **kwargs)
            spans.append((begin, time.time() - self.started))
            after(len(spans))
            return result

        setattr(owner, name, watched)


def child(started, folder, num_steps, kill_at, files):
    """Trains, prints what was noted as JSON, and kills itself before if it is to."""

    def die(number):
        if number == kill_at:
            print(json.dumps(watch.spans), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    watch = Watch(started)
    watch.of(Progress, "on_train_batch_end", after=die)
    watch.of(TrainingRun, "save_state")
    watch.of(TrainingRun, "resume")
    watch.of(SavedStates, "_write")
    recipe = runs.Recipe.load("multi30k").replace(
        data=tuple(files) or ("dates",),
        tokenizer="bpe" if files else "bytes",
        epochs=1,
        steps_per_epoch=num_steps,
        save_updates=SAVE_UPDATES,
        num_averaged=1,
        num_beams=1,
        max_length=3,
    )
    data = runs.open_splits(recipe)
    validation = type(data.validation)(data.validation.sources[:8], data.validation.targets[:8], "a few")
    runs.train(data._replace(validation=validation, test=None), folder, recipe, verbose=0)
    print(json.dumps(watch.spans), flush=True)


def spans_of(folder, num_steps, kill_at, files):
    """What a new process noted."""
    command = [sys.executable, __file__, "--child", folder, str(num_steps), str(kill_at), str(time.time())]
    done = subprocess.run([*command, "--files", *files], capture_output=True, text=True)
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def step_times(spans):
    """Seconds of the steps (without a save, of which a state is being written, in which one is saved)."""
    ends = [end for _, end in spans["on_train_batch_end"]]
    plain, writing, saving = [], [], []
    for begin, end in list(itertools.pairwise(ends))[WARM_UP:]:
        if any(begin <= start <= end for start, _ in spans["save_state"]):
            saving.append(end - begin)
        elif any(start < end and stop > begin for start, stop in spans["_write"]):
            writing.append(end - begin)
        else:
            plain.append(end - begin)
    return plain, writing, saving


def main():
    options = parser(__doc__.splitlines()[0], rounds=3)
    options.add_argument(
        "files", nargs="*", metavar="FILE", help="source and target; without, the built-in dates"
    )
    options.add_argument("--steps", type=int, default=120, help="of a run")
    options = options.parse_args()
    plain, writing, saving, fresh, resumed, restoring = ([] for _ in range(6))
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            spans = spans_of(os.path.join(folder, "saved"), options.steps, 0, options.files)
            for times, more in zip((plain, writing, saving), step_times(spans)):
                times += more
            killed = os.path.join(folder, "killed")
            spans = spans_of(killed, options.steps, SAVE_UPDATES + 1, options.files)
            fresh.append(spans["on_train_batch_end"][0][1])
            spans = spans_of(killed, options.steps, 0, options.files)
            resumed.append(spans["on_train_batch_end"][0][1])
            restoring.append(spans["resume"][0][1] - spans["resume"][0][0])
    step = statistics.median(plain)
    in_save = statistics.median(saving) - step
    beside = (statistics.median(writing) - step) * len(writing) / len(saving) if writing else 0.0
    rows = [
        ["a step", f"{1000 * step:.1f} ms", ""],
        ["a save: its own step longer by", f"{1000 * in_save:.1f} ms", f"{in_save / step:.1%} of a step"],
        [
            "a save: the steps while it is written longer by",
            f"{1000 * beside:.1f} ms",
            f"{beside / step:.1%} of a step",
        ],
        ["saves of a run, one in 10 minutes", "", f"{(in_save + beside) / 600:.3%} of the run"],
        ["start of a process to its first step", f"{statistics.median(fresh):.1f} s", ""],
        ["the same of a run that goes on", f"{statistics.median(resumed):.1f} s", ""],
        ["of which reading the state", f"{1000 * statistics.median(restoring):.0f} ms", ""],
        [
            "to go on once: that start, and half an epoch again",
            f"{statistics.median(resumed) + step * EPOCH / 2:.0f} s",
            f"{(statistics.median(resumed) + step * EPOCH / 2) / (step * STEPS):.2%} of the run",
        ],
    ]
    print_table(
        f"`tiny`, batches of 2,048 positions, {len(saving)} saves, {options.rounds} runs killed; medians.",
        ["", "", ""],
        rows,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        folder, num_steps, kill_at, started, _, *files = sys.argv[2:]
        child(float(started), folder, int(num_steps), int(kill_at), files)
    else:
        main()
