"""What the server counts and times, as TF Serving does for Prometheus: the same names, labels, buckets and text.

prometheus_client is not used: it gives every counter a name that ends in `_total`, and TF Serving's do not.

References: tensorflow_serving/util/prometheus_exporter.cc (the text), servables/tensorflow/util.cc, model_servers/http_server.cc,
batching/batching_session.cc and servables/tensorflow/saved_model_warmup_util.cc (what is measured, and its buckets);
tensorflow/cc/saved_model/loader.cc; tensorflow/core/lib/monitoring/sampler.cc.
"""

import bisect
import collections
import itertools
import threading

from keras_attn.serve.errors import CODE_NAMES, OK

PATH = "/monitoring/prometheus/metrics"

# Names of models come from addresses, and so from strangers. Past so many of a metric's cells, new ones are not counted.
_MOST_CELLS = 1000


class _Counter:
    """Numbers that grow, one for each tuple of label values.

    Args:
        name: String.
        labels: Names of the labels.
    """

    kind = "counter"

    def __init__(self, name, *labels):
        self.name = name
        self._labels = labels
        self._cells = collections.Counter()

    def add(self, *values, amount=1):
        """Adds to the cell of these label values."""
        if values in self._cells or len(self._cells) < _MOST_CELLS:
            self._cells[values] += amount

    def lines(self):
        """The lines of the text format, without the type."""
        for values, number in sorted(self._cells.items()):
            yield f"{self.name}{_shown(self._labels, values)} {number}"


class _Histogram:
    """Distributions, one for each tuple of label values.

    Args:
        name: String.
        labels: Names of the labels.
        bounds: List of numbers, the buckets' ends. An end belongs to the bucket after it.
    """

    kind = "histogram"

    def __init__(self, name, *labels, bounds):
        self.name = name
        self._labels = labels
        self._bounds = bounds
        self._cells = {}

    def add(self, *values, sample):
        """Adds a sample to the cell of these label values."""
        if values not in self._cells and len(self._cells) >= _MOST_CELLS:
            return
        counts, samples = self._cells.setdefault(values, ([0] * (len(self._bounds) + 1), [0]))
        counts[bisect.bisect_right(self._bounds, sample)] += 1
        samples[0] += sample

    def lines(self):
        """As of `_Counter`."""
        ends = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        for values, (counts, (total,)) in sorted(self._cells.items()):
            for end, count in zip(ends, itertools.accumulate(counts), strict=True):
                yield f"{self.name}_bucket{_shown((*self._labels, 'le'), (*values, end))} {count}"
            labels = _shown(self._labels, values)
            yield f"{self.name}_sum{labels} {total}"
            yield f"{self.name}_count{labels} {sum(counts)}"


def _exponential(scale, growth, number):
    return [scale * growth**power for power in range(number)]


class Metrics:
    """What one server has counted and timed. Threads may use it at the same time; times are seconds, and shown in microseconds."""

    def __init__(self):
        latency_bounds = _exponential(10, 1.8, 33)
        self._lock = threading.Lock()
        self._load_attempts = _Counter(
            ":tensorflow:cc:saved_model:load_attempt_count", "model_path", "status"
        )
        self._load_time = _Counter(":tensorflow:cc:saved_model:load_latency", "model_path")
        self._batches = _Counter(":tensorflow:serving:batching_session:wrapped_run_count")
        self._requests = _Counter(":tensorflow:serving:request_count", "model_name", "status")
        self._waits = _Histogram(
            ":tensorflow:serving:batching_session:queuing_latency",
            "thread_pool_name",
            bounds=_exponential(100, 1.2, 52),
        )
        self._warm_ups = _Histogram(
            ":tensorflow:serving:model_warmup_latency", "model_path", "status", bounds=latency_bounds
        )
        self._request_times = _Histogram(
            ":tensorflow:serving:request_latency",
            "model_name",
            "API",
            "entrypoint",
            bounds=latency_bounds,
        )
        self._run_times = _Histogram(
            ":tensorflow:serving:runtime_latency", "model_name", "API", "runtime", bounds=latency_bounds
        )

    def record_request(self, model_name, api, code, seconds):
        """A request over REST was answered.

        Args:
            model_name: String, the name in its address, whether there is such a model or not; "" without one.
            api: String, `predict` for instance; "" for a question for the state or the signatures.
            code: `TF_Code`. The time of a request that failed is not recorded.
            seconds: Float.
        """
        with self._lock:
            self._requests.add(model_name, CODE_NAMES.get(code, "UNKNOWN"))
            if code == OK:
                self._request_times.add(model_name, api, "REST", sample=_microseconds(seconds))

    def record_run(self, model_name, seconds):
        """A model's graph has answered a request, the wait for a batch included."""
        with self._lock:
            self._run_times.add(model_name, "Predict", "TF1", sample=_microseconds(seconds))

    def record_batch(self, waits):
        """A batch runs, whose requests have waited for these times in seconds."""
        with self._lock:
            self._batches.add()
            for seconds in waits:
                # The server's name for its threads, where batching.config does not say another.
                self._waits.add("model_server_batch_threads", sample=_microseconds(seconds))

    def record_load(self, folder, seconds):
        """A version was loaded from a folder."""
        with self._lock:
            self._load_attempts.add(str(folder), "success")
            self._load_time.add(str(folder), amount=_microseconds(seconds))

    def record_warm_up(self, folder, seconds):
        """A version has answered its warm-up requests."""
        with self._lock:
            self._warm_ups.add(str(folder), "OK", sample=_microseconds(seconds))

    def text(self):
        """All of it in Prometheus' text format."""
        metrics = [value for value in vars(self).values() if isinstance(value, _Counter | _Histogram)]
        lines = []
        with self._lock:
            for metric in sorted(metrics, key=lambda metric: metric.name):
                lines.append(f"# TYPE {metric.name} {metric.kind}")
                lines += metric.lines()
        return "\n".join(lines) + "\n"


def _microseconds(seconds):
    return round(seconds * 1e6)


def _shown(labels, values):
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)]
    return f"{{{','.join(pairs)}}}"


def _escaped(value):
    """A label's value. Of a text that is not UTF-8 the reader would refuse the whole page."""
    text = value.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
