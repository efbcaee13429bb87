import dataclasses
import importlib.metadata
import json
import pathlib
import time

import keras

from keras_attn.data import translation_batches
from keras_attn.models import (
    Seq2SeqTransformer,
    assign_weights,
    average_weights,
    read_weights,
    save_weights,
    write_weights,
)
from keras_attn.runs.evaluation import evaluate
from keras_attn.tasks import Translator
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer
from keras_attn.training import (
    InverseSquareRootSchedule,
    KeepBest,
    LabelSmoothedCrossentropy,
    LearningRateLogger,
    Perplexity,
    StopOnInvalidLoss,
    TranslationQuality,
)


def train(recipe, data, folder, verbose=1):
    """Runs a recipe: tokenizers, batches, model, `fit`, averaging, evaluation; the result is a `Translator`.

    The run folder holds `run.json` (recipe, versions, results), `translator/` (what `Translator.load` reads: the best
    so far at any moment of the run), `checkpoints/` (weights of the last epochs and the best one), `history.csv` and
    `tensorboard/`. Ctrl-C ends training early; what follows it, from the best weights so far, is the same.

    Args:
        recipe: A `Recipe`.
        data: `DataSplits`.
        folder: Path of the run folder; must not hold another run.
        verbose: 0 is silent, 1 shows progress bars, 2 a line an epoch.

    Returns:
        `Translator`.

    Raises:
        ValueError: if `folder` holds a run already, or the data do not fit the recipe.
        FloatingPointError: when the loss is no longer finite.

    Example:

    ```python
    pairs = keras_attn.data.TextPairs(["a b", "b c", "c d"], ["A B", "B C", "C D"], "capitals")
    recipe = DATES.replace(epochs=1, stop_at=0.0)
    translator = train(recipe, DataSplits(pairs, pairs, None), "runs/capitals", verbose=0)
    ```
    """
    folder = pathlib.Path(folder)
    if (folder / "run.json").exists():
        raise ValueError(f"{folder} holds a run already. Choose another folder, or remove it.")
    return _Run(recipe, data, folder, verbose).go()


class _Run:
    def __init__(self, recipe, data, folder, verbose):
        self.recipe = recipe
        self.data = data
        self.folder = folder
        self.verbose = verbose
        self.checkpoints = folder / "checkpoints"
        self.results = {}

    def go(self):
        keras.utils.set_random_seed(self.recipe.seed)
        self.say(f"Training on {self.data.train.name}, in {self.folder}.")
        source_tokenizer, target_tokenizer = self.make_tokenizers()
        self.model = self.make_model(source_tokenizer, target_tokenizer)
        batches = self.make_batches(source_tokenizer, target_tokenizer)
        self.translator = Translator(
            self.model,
            source_tokenizer,
            target_tokenizer,
            num_beams=self.recipe.num_beams,
            length_penalty=self.recipe.length_penalty,
            max_length=self.recipe.max_length,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_record()
        self.fit(batches)
        self.choose_weights()
        self.translator.save(self.folder / "translator")
        self.evaluate()
        self.write_record()
        return self.translator

    def make_tokenizers(self):
        recipe = self.recipe
        if recipe.tokenizer == "bytes":
            tokenizer = ByteTokenizer()
        else:
            tokenizer = SentencePieceTokenizer.train(
                self.data.train.sources + self.data.train.targets,
                vocabulary_size=recipe.vocabulary_size,
                model_type=recipe.tokenizer,
            )
        return tokenizer, tokenizer

    def make_model(self, source_tokenizer, target_tokenizer):
        shared = source_tokenizer is target_tokenizer
        model = Seq2SeqTransformer(
            vocabulary_size=source_tokenizer.vocabulary_size,
            target_vocabulary_size=None if shared else target_tokenizer.vocabulary_size,
            dtype=self.recipe.dtype_policy,
            name="transformer",
            **self.recipe.model,
        )
        schedule = InverseSquareRootSchedule(self.recipe.learning_rate, self.recipe.warmup_steps)
        model.compile(
            optimizer=keras.optimizers.Adam(
                schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=self.recipe.global_clipnorm
            ),
            loss=LabelSmoothedCrossentropy(self.recipe.label_smoothing),
            metrics=[Perplexity()],
        )
        self.say(f"{model.count_params():,} parameters, {model.dtype_policy.name}.")
        return model

    def make_batches(self, source_tokenizer, target_tokenizer):
        batches = translation_batches(
            self.data.train,
            source_tokenizer,
            target_tokenizer,
            max_tokens=self.recipe.max_tokens,
            max_sequence_length=self.model.max_sequence_length,
            bucket_boundaries=self.recipe.bucket_boundaries,
            seed=self.recipe.seed,
        )
        self.say(batches.report())
        return batches

    def fit(self, batches):
        monitor = f"val_{self.recipe.metric}"
        self.keep_best = KeepBest(self.save_best, monitor=monitor)
        writers = [
            self.translation_quality(),
            keras.callbacks.CSVLogger(str(self.folder / "history.csv")),
            keras.callbacks.TensorBoard(str(self.folder / "tensorboard")),
        ]
        callbacks = [
            StopOnInvalidLoss(last_checkpoint=self.last_checkpoint),
            writers[0],
            LearningRateLogger(),
            self.keep_best,
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: self.after_epoch(epoch, logs[monitor])
            ),
            *writers[1:],
        ]
        started = time.monotonic()
        try:
            self.model.fit(
                batches.dataset,
                epochs=self.recipe.epochs,
                shuffle=False,  # the data set's own work
                callbacks=callbacks,
                verbose=self.verbose,
            )
        except (KeyboardInterrupt, FloatingPointError) as error:
            for writer in writers:
                writer.on_train_end()
            if isinstance(error, FloatingPointError):
                raise
            if self.keep_best.best_epoch is None:
                save_weights(self.model, self.checkpoints / "best.safetensors")
            self.say("\nInterrupted: going on with the best weights so far.")
        self.results["training_seconds"] = round(time.monotonic() - started, 1)

    def translation_quality(self):
        validation = self.data.validation
        return TranslationQuality(
            lambda texts: self.translator(texts, num_beams=1),
            validation.sources,
            validation.targets,
            metrics=(self.recipe.metric,),
            log_dir=str(self.folder / "tensorboard"),
        )

    def save_best(self, epoch):
        save_weights(self.model, self.checkpoints / "best.safetensors")
        self.translator.save(self.folder / "translator")

    def after_epoch(self, epoch, score):
        if self.recipe.num_averaged > 1:
            save_weights(self.model, self.epoch_file(epoch))
            self.epoch_file(epoch - self.recipe.num_averaged).unlink(missing_ok=True)
        if self.recipe.stop_at is not None and score >= self.recipe.stop_at:
            self.model.stop_training = True

    def epoch_file(self, epoch):
        return self.checkpoints / f"epoch-{epoch + 1:03d}.safetensors"

    def last_checkpoint(self):
        files = sorted(self.checkpoints.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
        return files[-1] if files else None

    def choose_weights(self):
        """The average of the last epochs if it scores better on validation than the best epoch, else that."""
        best_file = self.checkpoints / "best.safetensors"
        epoch_files = sorted(self.checkpoints.glob("epoch-*.safetensors"))
        self.use(read_weights(best_file))
        if len(epoch_files) < 2:
            return
        best = self.validate("best epoch")
        average = average_weights(epoch_files)
        self.use(average)
        if self.validate(f"average of the last {len(epoch_files)} epochs") >= best:
            write_weights(average, self.checkpoints / "average.safetensors")
        else:
            self.use(read_weights(best_file))

    def use(self, weights):
        assign_weights(self.model, weights)

    def validate(self, name):
        evaluation = evaluate(self.translator, self.data.validation)
        self.results[f"validation, {name}"] = dataclasses.asdict(evaluation)
        score = getattr(evaluation, self.recipe.metric)
        self.say(f"Validation {self.recipe.metric}, {name}: {score:.2f}")
        return score

    def evaluate(self):
        self.say("")
        for split in ("validation", "test"):
            pairs = getattr(self.data, split)
            if pairs is None:
                continue
            evaluation = evaluate(self.translator, pairs)
            self.results[split] = dataclasses.asdict(evaluation)
            self.say(evaluation.report())
        self.say(
            f"Trained for {self.results['training_seconds']:.0f} s. The translator lies in {self.folder / 'translator'}; "
            f"TensorBoard: tensorboard --logdir {self.folder / 'tensorboard'}"
        )

    def write_record(self):
        packages = ("keras", "tensorflow", "tensorflow-text", "sentencepiece", "sacrebleu", "numpy")
        record = {
            "recipe": dataclasses.asdict(self.recipe),
            "dtype_policy": self.recipe.dtype_policy,
            "data": {split: getattr(pairs, "name", None) for split, pairs in self.data._asdict().items()},
            "versions": {name: _version(name) for name in packages},
            "results": self.results,
        }
        (self.folder / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def say(self, text):
        if self.verbose:
            print(text, flush=True)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
