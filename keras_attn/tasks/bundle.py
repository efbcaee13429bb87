"""Files next to the graph of an export: warm-up requests, batching parameters, README."""

import numpy as np
import tensorflow as tf

from keras_attn.export import (
    write_batching_parameters,
    write_quantization,
    write_shortlist,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.tasks.image_readme import image_readme
from keras_attn.tasks.model_readme import model_readme
from keras_attn.tasks.quantization_report import answers_after

# Also the default batch size of a `Translator`.
MAX_BATCH_SIZE = 64


class Bundle:
    """The files next to the graph of one export.

    Args:
        signatures: `TaskSignatures`.
        model_name: String, the name under which the model will be served.
        examples: List of typical inputs, texts for instance. They are used as warm-up requests and shown in the
            README.

    Raises:
        ValueError: as `signatures.examples`.
    """

    def __init__(self, signatures, model_name, examples=None):
        self.signatures = signatures
        self.model_name = model_name
        self.examples = signatures.examples(examples)
        self.buckets = signatures.buckets
        self.max_batch_size = self.buckets.batch_sizes[-1] if self.buckets else MAX_BATCH_SIZE
        self.quantization = None  # of a quantised model: a dict with its mode, and the answers before
        self._functions = None

    def write(self, folder, functions):
        """Writes the files to `folder`; `functions` are the concrete functions of the export by name."""
        self._functions = functions
        write_warmup_requests(folder, self.model_name, self._warmup_requests())
        why_any_size = None
        if self.buckets:
            write_xla_buckets(folder, self.buckets.batch_sizes, self.buckets.lengths)
            why_any_size = "the graph itself fills batches up to the sizes that were compiled"
        if self.quantization is not None:
            write_quantization(folder, {**self.quantization, **answers_after(self)})
        shortlist = getattr(self.signatures.task, "shortlist", None)
        if shortlist is not None:
            write_shortlist(folder, shortlist.anywhere, shortlist.of_source)
        write_batching_parameters(folder, self.max_batch_size, why_any_size=why_any_size)
        (folder / "README.md").write_text(self._readme(folder), encoding="utf-8")

    def inputs(self, signature_name, texts):
        """A request: the texts, what else is needed, and the neutral value of each option."""
        neutral = self.signatures.neutral_values()
        _, specs = self.signatures.all()[signature_name]
        values = {spec.name: [neutral.get(spec.name)] * len(texts) for spec in specs}
        values |= self.signatures.example_inputs(signature_name, texts, self.ask)
        return {spec.name: np.array(values[spec.name], spec.dtype.as_numpy_dtype) for spec in specs}

    def ask(self, signature_name, inputs):
        """Answers a request with the graph that is exported."""
        _, specs = self.signatures.all()[signature_name]
        tensors = [tf.constant(inputs[spec.name], spec.dtype) for spec in specs]
        answer = self._functions[signature_name](*tensors)
        return {name: output.numpy() for name, output in answer.items()}

    def outputs(self, signature_name):
        """The specs of a signature's outputs by name."""
        return self._functions[signature_name].structured_outputs

    def _readme(self, folder):
        if self.signatures.takes == "images":
            return image_readme(self, folder)
        return model_readme(self)

    def _warmup_requests(self):
        if self.buckets:
            return list(self._requests_of_every_shape())
        return [(name, self.inputs(name, self.examples)) for name in self.signatures.all()]

    def _requests_of_every_shape(self):
        shortest = 0
        for length in self.buckets.lengths:
            text = self._text_of_length(shortest + 1, length)
            shortest = length
            for batch_size in self.buckets.batch_sizes:
                yield "serving_default", self.inputs("serving_default", [text] * batch_size)

    def _text_of_length(self, shortest, longest):
        """The examples, repeated and cut to at least `shortest` tokens and at most `longest`, as the model reads them."""
        tokenizer = next(iter(self.signatures.task.tokenizers.values()))
        (token_ids,) = tokenizer.encode([" ".join(self.examples)])
        token_ids = token_ids * (longest // max(len(token_ids), 1) + 1)
        for size in range(longest, -1, -1):
            (text,) = tokenizer.decode([token_ids[:size]])
            # A decoded text may have other tokens when it is tokenized again, and the model may read more than them.
            if shortest <= self.signatures.num_tokens(text) <= longest:
                return text
        raise ValueError(
            f"`examples` must be texts from which a text of {shortest} to {longest} tokens can be made, to warm up that "
            f"length. Received: examples={self.examples}."
        )
