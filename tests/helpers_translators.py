"""Small translators for tests of translating, saving, exporting and the command line."""

import contextlib
import fcntl
import json
import pathlib
import subprocess
import sys
import tempfile

from helpers_seed import set_seed

import keras_attn
from keras_attn.export import saved_model_runner
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

SENTENCES = [
    "a dog runs through the snow .",
    "two children play in the park .",
    "a man reads a book on a bench .",
    "ein Hund läuft durch den Schnee .",
    "zwei Kinder spielen im Park .",
]

# Every row of the table of odd texts that ends in an answer: the texts, and whether the answer must be "".
ODD_TEXTS = ["", "   ", "\t\r\n", "a\0b", "word " * 300, "😀 emoji 👩‍👩‍👧", "مرحبا بالعالم", "x" * 5000, "�"]
INVALID_UTF8 = b"caf\xe9 \xff\xfe"
# What `exported_once` warms up and shows in its README.
EXAMPLES = ['it\'s "quoted" ü', *SENTENCES[:2]]


def byte_translator(**options):
    """1 + 1 layers over bytes; untrained, so that its search runs to the limit and ties are unlikely."""
    set_seed(3)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259,
        1,
        1,
        hidden_dim=20,
        num_heads=2,
        intermediate_dim=23,
        max_sequence_length=37,
        normalize_first=True,
    )
    tokenizer = ByteTokenizer()
    return keras_attn.Translator(model, tokenizer, tokenizer, **{"num_beams": 3, "max_length": 11, **options})


def exported_once(tmp_path_factory, make_translator):
    """(the translator, the version folder that it exported); the first of the tests' processes exports for all of them."""
    translator = make_translator()
    folder = tmp_path_factory.getbasetemp() / "exported" / make_translator.__name__
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        versions = list(folder.glob("1"))
        return translator, versions[0] if versions else translator.export(folder, EXAMPLES)


def subword_translator():
    """Separate vocabularies, one BPE and one unigram."""
    set_seed(5)
    source = SentencePieceTokenizer.train(SENTENCES[:3], vocabulary_size=290, model_type="bpe")
    target = SentencePieceTokenizer.train(SENTENCES[3:], vocabulary_size=285, model_type="unigram")
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        source.vocabulary_size,
        1,
        2,
        hidden_dim=12,
        num_heads=3,
        intermediate_dim=17,
        target_vocabulary_size=target.vocabulary_size,
        tie_output=False,
        max_sequence_length=41,
    )
    return keras_attn.Translator(model, source, target, num_beams=2, length_penalty=0.5, max_length=13)


def in_new_process(code, *arguments):
    """The JSON that `code` prints last, run in a new Python process with `arguments` as sys.argv[1:]."""
    child = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def request_of(task_class, signature, texts, **given):
    """A request of one signature; other inputs are neutral. A value of `given` is for all texts, or a list of one for each."""
    inputs = {"inputs": list(texts)}
    for name in task_class.signatures[signature].inputs[1:]:
        neutral = 1.0 if name == "length_penalty" else task_class.signature_inputs[name].neutral
        value = given.get(name)
        inputs[name] = (
            value if isinstance(value, list) else [neutral if value is None else value] * len(texts)
        )
    return {"signature": signature, "inputs": inputs}


@contextlib.contextmanager
def serving(folder):
    """Gives a function of requests to their outputs; one process answers, as each `run_saved_model` starts its own."""
    command = [sys.executable, "-P", saved_model_runner.__file__, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, **pipes, stderr=errors) as process:

        def outputs_of(request):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                raise RuntimeError(errors.read().decode(errors="replace"))
            answer = json.loads(line)
            assert "error" not in answer, answer
            return answer["outputs"]

        yield lambda *requests: [outputs_of(request) for request in requests]
    assert process.returncode == 0


def files_below(folder):
    """The files below `folder`, as sorted relative paths."""
    folder = pathlib.Path(folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
