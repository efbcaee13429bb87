"""A server in the tests' process, a client of it, and signatures whose answers are plain."""

import contextlib
import http.client
import json
import threading

import tensorflow as tf

from keras_attn.serve.app import App
from keras_attn.serve.folders import find_versions
from keras_attn.serve.models import loaded_models
from keras_attn.serve.server import Server

MOST_ROWS = 5


class Client:
    """One connection that stays open."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method, path, body=b"", headers=None):
        """(status, bytes)."""
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self.connection.request(method, path, body, headers or {})
        reply = self.connection.getresponse()
        self.headers = reply.headers
        return reply.status, reply.read()

    def close(self):
        self.connection.close()

    def predict(self, body, model="plain", status=200):
        """The answer to a `:predict` as a value of JSON."""
        found, content = self.ask("POST", f"/v1/models/{model}:predict", body)
        assert found == status, content
        return json.loads(content.decode("utf-8", "surrogateescape"))


def ask_once(port, path, body):
    """(status, bytes) of a POST on a connection of its own."""
    with contextlib.closing(Client(port)) as client:
        return client.ask("POST", path, body)


@contextlib.contextmanager
def running(folders, host="127.0.0.1"):
    """Gives (port, `ServedModels`) of a server in a thread."""
    with loaded_models(find_versions(folders)) as models:
        server = Server(App(models, host), host, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.port, models
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def signatures():
    """Signatures whose answers a reader can tell without running them."""

    def spec(name, dtype, *shape):
        return tf.TensorSpec(shape, dtype, name=name)

    def join(inputs):
        return {"outputs": tf.strings.join(["<", inputs, ">"])}

    def several(text, numbers, count, large, flag):
        return {
            "text": text,
            "text_bytes": text,
            "sums": tf.reduce_sum(numbers, axis=1),
            "next": count + 1,
            "large": large,
            "opposite": tf.logical_not(flag),
        }

    def widest(inputs):
        """As many columns as the longest text of the batch has letters."""
        return {"outputs": tf.strings.unicode_split(inputs, "UTF-8").to_tensor("")}

    def careful(inputs):
        check = tf.debugging.Assert(tf.reduce_all(inputs != "bad"), ["a bad text"])
        with tf.control_dependencies([check]):
            return {"outputs": tf.strings.join([inputs, "!"])}

    def summed(inputs):
        return {"outputs": tf.reduce_sum(inputs)}

    def slow(inputs):
        ones = tf.ones([800, 800])
        steps = tf.cast(inputs[0], tf.int32)
        _, result = tf.while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, x @ x / 800.0), [0, ones])
        return {"outputs": inputs * result[0, 0]}

    return {
        "serving_default": (join, [spec("inputs", tf.string, None)]),
        "several": (
            several,
            [
                spec("text", tf.string, None),
                spec("numbers", tf.float32, None, 3),
                spec("count", tf.int32, None),
                spec("large", tf.int64, None),
                spec("flag", tf.bool, None),
            ],
        ),
        "widest": (widest, [spec("inputs", tf.string, None)]),
        "careful": (careful, [spec("inputs", tf.string, None)]),
        "summed": (summed, [spec("inputs", tf.float32, None)]),
        "slow": (slow, [spec("inputs", tf.float32, None)]),
    }
