"""What commands do with a saved task or a checkpoint: translate, generate, evaluate, show, export, verify.

Each function takes a task, or the folder of one: of a saved task, of the run that made it, or of a checkpoint, whose name on the
hub will do. The command line calls these functions with its options, so Python gives the same answers for the same words.
"""

import collections
import contextlib
import itertools
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf

from keras_attn.data import read_plain_text
from keras_attn.data.text_files import Lines
from keras_attn.export import run_saved_model, verify_saved_model
from keras_attn.export.deployment import refuse_task
from keras_attn.files import not_there, replaced_file
from keras_attn.generation import DecodingOptions
from keras_attn.runs.data import open_pairs
from keras_attn.runs.evaluation import evaluate, evaluate_text
from keras_attn.runs.run_folder import example_texts
from keras_attn.runs.shortlists import evaluate_shortlist, shortlist_of
from keras_attn.tasks import TextGenerator, Translator, checkpoint_folder, load_task
from keras_attn.tasks.batches import noted_cuts
from keras_attn.tasks.loading import holds_checkpoint
from keras_attn.terminal import printable, say_aside, stage, write_answer
from keras_attn.text import as_utf8
from keras_attn.text.characters import are_many

_LINES_AT_ONCE = 1024
# More tokens than any text has.
_ANY_LENGTH = 2**31 - 1

Exported = collections.namedtuple("Exported", ["folder", "checks"])
Exported.__doc__ = """The folder that was written, and the checks of `verify`, a list, or None without."""


def translate_lines(
    translator,
    input_file=None,
    output_file=None,
    num_beams=None,
    length_penalty=None,
    texts=(),
    **checkpoint_options,
):
    """Translates UTF-8 text line by line: as many lines out as in, an empty line for an empty line.

    Only line feeds end lines. Invalid UTF-8 is repaired; a line feed inside a translation becomes a space. Standard error says
    where many characters are not in the model's training data.

    Args:
        translator: A `Translator`, or its folder.
        input_file, output_file: Paths; None is standard input or output. The output file appears when all is
            translated; an error leaves what was there before.
        num_beams, length_penalty: Replace the translator's own.
        texts: Strings, which are translated instead of lines.
        **checkpoint_options: What the files of a checkpoint leave open, as in `keras_attn.load`.

    Raises:
        ValueError: if both files are one, or if there are texts and an input file.
    """
    translator = _as_task(translator, Translator, checkpoint_options)
    if texts and input_file:
        raise ValueError(
            f"Give the texts themselves or a file of them, not both. Received: {texts[0]!r} and the file {input_file}."
        )
    if input_file and output_file and _is_same_file(input_file, output_file):
        raise ValueError(f"The output must be another file than the input. Received: {output_file} for both.")
    with contextlib.ExitStack() as stack:
        source = sys.stdin.buffer
        if texts:
            source = map(os.fsencode, texts)
        elif input_file:
            source = stack.enter_context(open(input_file, "rb"))
        target = sys.stdout.buffer
        if output_file:
            target = stack.enter_context(_output(output_file))
        # A user who types waits for each line; a file is read in large chunks.
        is_typed = source is sys.stdin.buffer and sys.stdin.isatty()
        lines_at_once = 1 if is_typed else _LINES_AT_ONCE
        num_lines = 0
        unknown = []
        while lines := list(itertools.islice(source, lines_at_once)):
            batch = [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]
            with noted_cuts() as cuts:
                translations = translator(batch, num_beams=num_beams, length_penalty=length_penalty)
            for translation in translations:
                line = translation.replace("\n", " ")
                if target.isatty():
                    line = printable(line)
                target.write(line.encode("utf-8") + b"\n")
            target.flush()
            if cuts:
                _say_too_long(translator, batch, num_lines)
            unknown += _unknown_characters(translator.source_tokenizer, batch, num_lines)
            num_lines += len(batch)
            if is_typed:
                _say_unknown_characters(unknown, 1)
                unknown = []
        _say_unknown_characters(unknown, num_lines)


def _say_too_long(translator, texts, num_before):
    """Says which of these texts, before which there were so many, have more tokens than the translator reads."""
    limit = translator.model.max_sequence_length
    token_ids, _ = translator.source_token_ids(tf.constant(as_utf8(texts)), longest=_ANY_LENGTH)
    lengths = token_ids.row_lengths().numpy()
    for row in np.flatnonzero(lengths > limit):
        say_aside(
            f"Line {num_before + row + 1} is too long ({lengths[row]:,} tokens): only the first {limit:,} were read. Split it."
        )


def _unknown_characters(tokenizer, texts, num_before):
    """(line, how many of its characters are unknown, of how many), for lines where that is worth a word."""
    counts = tokenizer.count_unknown_characters(texts)
    if counts is None:
        return []
    num_unknown, num_characters = (count.numpy() for count in counts)
    rows = np.flatnonzero(are_many(num_unknown, num_characters))
    return [(num_before + int(row) + 1, int(num_unknown[row]), int(num_characters[row])) for row in rows]


def _say_unknown_characters(unknown, num_lines):
    if not unknown:
        return
    line, num_unknown, num_characters = unknown[0]
    sentence = f"{num_unknown} of {num_characters} characters are not in this model's training data."
    if num_lines > 1:
        sentence = f"Line {line}: {sentence}"
    if len(unknown) > 1:
        sentence += f" So it is in {len(unknown):,} of {num_lines:,} lines."
    say_aside(sentence)


@contextlib.contextmanager
def _output(file):
    path = pathlib.Path(file)
    if path.exists() and not path.is_file():  # a device or a pipe
        with open(path, "wb") as target:
            yield target
        return
    with replaced_file(path) as aside, open(aside, "wb") as target:
        yield target


def _is_same_file(one, other):
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def generate_texts(
    generator,
    prompts=(),
    num_return_sequences=None,
    *,
    num_beams=None,
    length_penalty=None,
    max_length=None,
    ignored_fields=None,
    **options,
):
    """Prints prompts and their continuations.

    One prompt that is continued greedily is printed piece by piece. Several answers are set apart by empty lines.

    Args:
        generator: A `TextGenerator`, or its folder.
        prompts: List of strings; without any, each line of standard input is one.
        num_return_sequences: Integer, how many continuations of each prompt.
        num_beams, length_penalty, max_length: As in a call of the generator.
        ignored_fields: Of a checkpoint, as in `keras_attn.load`.
        **options: Fields of `DecodingOptions`, each with one value.
    """
    generator = _as_task(generator, TextGenerator, _given(ignored_fields=ignored_fields))
    options = DecodingOptions(**options)
    beams = num_beams or generator.num_beams
    is_greedy = beams == 1 and not options.given()
    if not prompts:
        prompts = (line.rstrip(b"\r\n").decode("utf-8", "replace") for line in sys.stdin.buffer)
    for number, prompt in enumerate(prompts):
        if number:
            write_answer("")
        if is_greedy and num_return_sequences is None:
            write_answer(prompt, end="")
            for piece in generator.stream(prompt, max_length):
                write_answer(piece, end="")
            write_answer("")
            continue
        answers = generator(
            prompt,
            num_return_sequences=num_return_sequences or 1,
            options=options,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_length=max_length,
        )
        write_answer("\n\n".join(prompt + answer for answer in answers))


def evaluate_task(
    task,
    data,
    split="test",
    *,
    data_dir=None,
    source_language="en",
    target_language="de",
    num_beams=None,
    length_penalty=None,
    bleu_tokenize="13a",
    shortlist=None,
    ignored_fields=None,
):
    """Evaluates a translator on text pairs, or a text generator on a text.

    Args:
        task: A `Translator` or `TextGenerator`, or its folder.
        data, data_dir, source_language, target_language: As in `Recipe`.
        split: String, the part of built-in data: "train", "validation" or "test".
        num_beams, length_penalty, bleu_tokenize: As in `evaluate`.
        shortlist: A file; what it changes is told instead of all scores.
        ignored_fields: Of a checkpoint, as in `keras_attn.load`.

    Returns:
        An `Evaluation`, `TextEvaluation` or `ShortlistReport`, each with a `report()`.

    Raises:
        ValueError: for another task, or for an option of translators beside a text generator.
    """
    task = _as_task(task, None, _given(ignored_fields=ignored_fields))
    if isinstance(task, TextGenerator):
        if num_beams is not None or length_penalty is not None or shortlist:
            raise ValueError("--num-beams, --length-penalty and --shortlist are for translators.")
        return evaluate_text(task, read_plain_text(*data))
    if not isinstance(task, Translator):
        raise ValueError(f"`evaluate` is for translators and text generators. Received: a {task.name}.")
    languages = (source_language, target_language)
    pairs = open_pairs(data, split, folder=data_dir, languages=languages)
    if shortlist:
        return evaluate_shortlist(task, pairs, shortlist, num_beams, length_penalty, bleu_tokenize)
    return evaluate(task, pairs, num_beams, length_penalty, bleu_tokenize)


def write_shortlist(
    translator,
    data,
    output,
    *,
    data_dir=None,
    source_language="en",
    target_language="de",
    ignored_fields=None,
    **sizes,
):
    """Writes which target tokens may come for each source token, by the word alignments of training data.

    Args:
        translator: A `Translator`, or its folder.
        data, data_dir, source_language, target_language: As in `Recipe`.
        output: Path of the file.
        ignored_fields: Of a checkpoint, as in `keras_attn.load`.
        **sizes: `alignments`, `num_anywhere`, `num_of_source`, as in `shortlist_of`.
    """
    translator = _as_task(translator, Translator, _given(ignored_fields=ignored_fields))
    languages = (source_language, target_language)
    pairs = open_pairs(data, "train", folder=data_dir, languages=languages)
    shortlist = shortlist_of(translator, pairs, **sizes)
    shortlist.save(output, translator.source_tokenizer, translator.target_tokenizer)


def show_task(
    task,
    text,
    output="attention.html",
    *,
    target=None,
    pair=None,
    grid=None,
    num_beams=None,
    max_length=None,
    title=None,
    compare=None,
    **checkpoint_options,
):
    """Writes a page on which to explore what a model attends to in a text.

    Args:
        task: A task, or its folder.
        text: String, what the model reads; of an image classifier the file of an image.
        output: Path of the page.
        target, pair, grid, num_beams, max_length, title: As in `show` of the task, which takes some of them.
        compare: Folder of another such task with the same tokens, which is shown beside it.
        **checkpoint_options: What the files of a checkpoint leave open, as in `keras_attn.load`.

    Returns:
        The path of the page.

    Raises:
        ValueError: for an argument that the task's `show` does not take.
    """
    shown = _as_task(task, None, checkpoint_options)
    options = _given(
        target=target, pair=pair, grid=grid, num_beams=num_beams, max_length=max_length, title=title
    )
    if compare:
        # A run may stand beside the checkpoint that it began with.
        if not holds_checkpoint(checkpoint_folder(compare)):
            checkpoint_options = {}
        other = load_task(compare, **checkpoint_options)
        folder = "this task" if _is_task(task) else task
        name, other_name = _distinct_names(folder, compare)
        options |= {"compare": {other_name: other}, "name": name}
    return shown.show(text, **options).save(output)


def _distinct_names(*folders):
    """The names of folders; where they are alike, as that of each run's `translator` is, the folders as they are given."""
    names = [pathlib.Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(map(str, folders))


def export_task(
    task,
    folder,
    format="saved_model",
    *,
    quantization=None,
    shortlist=None,
    examples=None,
    signatures=None,
    attention=False,
    xla=False,
    verify=False,
    **checkpoint_options,
):
    """Exports a task as a SavedModel for TF Serving, or as what another engine runs.

    Args:
        task: A task, or its folder.
        folder: Path of the export.
        format: String: "saved_model", "ctranslate2", "onnx", "litert" or "huggingface".
        quantization: As in `export` or `export_model` of the task.
        shortlist: File of a translator's shortlist.
        examples: File of typical input texts, one a line. Defaults to some of the validation data of the run.
        signatures, attention, xla: As in `export` of the task.
        verify: Boolean, whether the SavedModel is then checked, as `keras_attn.runs.verify` does.
        **checkpoint_options: What the files of a checkpoint leave open, as in `keras_attn.load`.

    Returns:
        An `Exported`.

    Raises:
        ValueError: if the task has no such export.
    """
    is_saved_model = format == "saved_model"
    if not is_saved_model and (xla or examples or signatures or attention or verify):
        raise ValueError(
            "--xla, --examples, --signatures, --attention and --verify are for a SavedModel. "
            f"Received: --format {format}."
        )
    stage("reading the task", done=0.0)
    if examples is None and not _is_task(task):
        examples = example_texts(task)
    elif examples is not None:
        examples = list(filter(str.strip, Lines(examples)))
    task = _as_task(task, None, checkpoint_options)
    if shortlist:
        if not isinstance(task, Translator):
            raise ValueError(f"--shortlist is for translators. Received: {task.article.lower()} {task.name}.")
        task = task.replaced(shortlist=shortlist)
    if not is_saved_model:
        return Exported(task.export_model(folder, format, quantization), None)
    options = _given(quantization=quantization, attention=attention or None, xla=xla or None)
    version = task.export(folder, examples, signatures=signatures, **options)
    checks = task.verify(version) if verify else None
    return Exported(version, checks)


def verify(version, task=None, *, ignored_fields=None):
    """Checks whether TF Serving can serve an export, and whether its answers are those of the task.

    The task is compared as it was exported: with the export's shortlist and its quantization.

    Args:
        version: Path of a version folder, or of the folder of an exported model for its newest version.
        task: The task that was exported, or its folder; None to compare no answers.
        ignored_fields: Of a checkpoint, as in `keras_attn.load`.

    Returns:
        A list of `Check`s, as of `keras_attn.export.verify_saved_model`.

    Raises:
        FileNotFoundError: if `version` does not exist, or is a run, a saved task or a checkpoint, which is exported first.

    Example: `runs.verify("saved_models/dates", "runs/dates")`
    """
    folder = pathlib.Path(version)
    if not folder.exists():
        raise FileNotFoundError(not_there(version))
    refuse_task(folder)
    if task is not None:
        stage("reading the task", done=0.0)
        task = _as_task(task, None, _given(ignored_fields=ignored_fields))
    folder = version_folder(version)
    return verify_saved_model(folder) if task is None else task.verify(folder)


def version_folder(folder):
    """The folder, or the newest version in the folder of a model."""
    folder = pathlib.Path(folder)
    versions = [path.parent for path in folder.glob("*/saved_model.pb") if path.parent.name.isdecimal()]
    if not versions or (folder / "saved_model.pb").is_file():
        return folder
    return max(versions, key=lambda path: int(path.name))


def check_export(translator, version_folder, texts):
    """Compares the translations of an exported translator with those of the Python object.

    The export runs through TensorFlow's C library in a new process without Python TensorFlow and with XLA
    off, as TF Serving runs it.

    Args:
        translator: The `Translator` that was exported.
        version_folder: The path that `Translator.export` returned.
        texts: List of strings.

    Returns:
        The translations, a list of strings.

    Raises:
        RuntimeError: if the export fails, or its answers differ from the translator's.
    """
    [answer] = run_saved_model(version_folder, [{"inputs": {"inputs": list(texts)}}])
    if "error" in answer:
        raise RuntimeError(f"The export in {version_folder} fails when it is run: {answer['error']}")
    served = answer["outputs"]["outputs"]
    expected = translator(list(texts))
    for text, one, other in zip(texts, served, expected):
        if one != other:
            raise RuntimeError(
                f"The export in {version_folder} translates {text!r} as {one!r}, Python as {other!r}."
            )
    return served


def _is_task(task):
    return not isinstance(task, str | os.PathLike)


def _as_task(task, task_class, checkpoint_options):
    """A task, or the task that a folder holds, of a class unless that is None."""
    if _is_task(task):
        if checkpoint_options:
            raise ValueError(f"Options are for checkpoints. Received: {sorted(checkpoint_options)}.")
        return task
    folder = task
    if task_class is not None and not checkpoint_options:
        folder = checkpoint_folder(folder)
        if not holds_checkpoint(folder):
            return task_class.load(folder)
    task = load_task(folder, **checkpoint_options)
    if task_class is not None and not isinstance(task, task_class):
        raise ValueError(
            f"The checkpoint {folder} is for a {type(task).__name__}, not a {task_class.__name__}."
        )
    return task


def _given(**options):
    """The options that are given."""
    return {name: value for name, value in options.items() if value is not None}
