"""Tokenizers inside a SavedModel that a new process loads without this library."""

import json
import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_attn.text import ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer, as_utf8

TEXTS = ["der müde Hund", "", "a\0b 👩‍👩‍👧", "שלום"]
# Of each word the lower case is another one in Turkish, or by Unicode's rules for a letter among others.
CASED, LOWER = "TITI \u0130 \u039f\u03a3", ["titi", "i\u0307", "\u03bf\u03c3"]

CHILD = """
import json, sys
import tensorflow as tf
import tensorflow_text

assert "keras_attn" not in sys.modules
loaded = tf.saved_model.load(sys.argv[1])
request = json.load(sys.stdin)
texts = tf.constant([text.encode() for text in request["texts"]] + [b"a\\xff"], tf.string)
answer = {}
for name in ("byte", "sentencepiece", "wordpiece", "lowercase"):
    tokenize, detokenize = getattr(loaded, name + "_tokenize"), getattr(loaded, name + "_detokenize")
    token_ids = tokenize(texts)["token_ids"]
    tf.random.set_seed(7)  # empties the cache of kernels, with what belongs to them
    beyond = tf.fill([tf.shape(token_ids)[0], 1], 2**30)
    answer[name] = {
        "token_ids": token_ids.numpy().tolist(),
        "texts": [text.decode() for text in detokenize(tf.concat([token_ids, beyond], 1))["outputs"].numpy()],
        "empty_ids": tokenize(tf.constant([], tf.string))["token_ids"].shape.as_list(),
        "empty_texts": detokenize(tf.zeros((0, 3), tf.int32))["outputs"].shape.as_list(),
    }
json.dump(answer, sys.stdout)
"""


def add_endpoints(archive, name, tokenizer):
    archive.add_endpoint(
        f"{name}_tokenize",
        lambda inputs: {"token_ids": tokenizer.tokenize(inputs).to_tensor()},
        input_signature=[tf.TensorSpec([None], tf.string, "inputs")],
    )
    archive.add_endpoint(
        f"{name}_detokenize",
        lambda inputs: {"outputs": tokenizer.detokenize(inputs)},
        input_signature=[tf.TensorSpec([None, None], tf.int32, "inputs")],
    )


def export(tokenizers, folder):
    module = tf.Module()
    module.tokenizers = tokenizers
    archive = keras.export.ExportArchive()
    archive.track(module)
    for name, tokenizer in tokenizers.items():
        add_endpoints(archive, name, tokenizer)
    archive.write_out(folder, verbose=False)


def operations(folder):
    saved_model = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = saved_model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


@pytest.mark.extended
def test_export_and_reload_in_a_new_process(tmp_path):
    tokenizers = {
        "byte": ByteTokenizer(),
        "sentencepiece": SentencePieceTokenizer.train(["der müde Hund", "ein Hund ist müde"], 281),
        "wordpiece": WordPieceTokenizer.train(["der müde Hund", "ein Hund ist müde"], 41),
        "lowercase": WordPieceTokenizer(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LOWER], lowercase=True, strip_accents=False
        ),
    }
    folder = tmp_path / "1"
    export(tokenizers, folder)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        input=json.dumps({"texts": [*TEXTS, CASED]}),
        env=os.environ | {"LC_ALL": "tr_TR.UTF-8"},  # case does not depend on it
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert child.returncode == 0, child.stderr
    answer = json.loads(child.stdout)
    for name, tokenizer in tokenizers.items():
        token_ids = tokenizer.tokenize(as_utf8([*TEXTS, CASED, b"a\xff"]))
        assert answer[name]["token_ids"] == token_ids.to_tensor().numpy().tolist()
        assert answer[name]["texts"] == tokenizer.decode(token_ids)
        if name in ("byte", "sentencepiece"):
            assert answer[name]["texts"][:4] == TEXTS
        assert answer[name]["empty_ids"] == [0, 0]
        assert answer[name]["empty_texts"] == [0]
    assert answer["lowercase"]["texts"][4].split() == LOWER
    assert not {op for op in operations(folder) if "PyFunc" in op or "Xla" in op}
    assert "SentencepieceTokenizeOp" in operations(folder)
