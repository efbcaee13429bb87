"""The fields of a config.json, read by name and checked; fields that nothing here obeys are refused."""

import numbers

from keras_attn.huggingface.activations import our_activation
from keras_attn.huggingface.heads import labels
from keras_attn.huggingface.model_types import MODEL_TYPES

FULL, LOCAL = "full_attention", "sliding_attention"  # the kinds of layers in `layer_types`
_MISSING = object()

# Fields of transformers' config classes that do not change what a model's layers compute in inference. No architecture reads
# them; heads and tasks read some.
_WITHOUT_EFFECT = set(
    (
        # of files, versions and dtypes
        "_name_or_path _attn_implementation attn_implementation architectures dtype model_type "
        "tokenizer_class torch_dtype transformers_version "
        # of training
        "activation_dropout classifier_dropout classifier_dropout_prob decoder_layerdrop "
        "encoder_layerdrop gradient_checkpointing hidden_dropout init_std initializer_cutoff_factor "
        "initializer_factor initializer_range problem_type qa_dropout seq_classif_dropout "
        "summary_first_dropout summary_last_dropout "
        # of heads and labels
        "_num_labels classifier_activation classifier_bias classifier_pooling finetuning_task id2label "
        "label2id num_labels summary_activation summary_proj_to_labels summary_type summary_use_proj "
        "tie_word_embeddings "
        # of search and prompts
        "bos_token_id cls_token_id decoder_start_token_id eos_token_id forced_bos_token_id "
        "forced_eos_token_id is_encoder_decoder mask_token_id prefix sep_token_id task_specific_params "
        "use_cache "
        # of how outputs are computed and returned
        "chunk_size_feed_forward output_attentions output_hidden_states output_past pretraining_tp "
        "reorder_and_upcast_attn return_dict torchscript use_bfloat16 use_return_dict"
    ).split()
)
# Fields that change every model of transformers and are not implemented here.
_NOT_OBEYED = {
    "compression_config": "weights that are compressed",
    "per_layer_config": "layers with sizes of their own",
    "quantization_config": "weights that are quantised",
}


class Fields:
    """Reads the fields of a config, checks them, and remembers which were read.

    Sizes are compared with the weight files, before memory of these sizes is taken.

    Args:
        config: Dict, a config.json.
        num_values: Integer, how many numbers the weight files hold.
        num_tensors: Integer, how many tensors.
        ignored_fields: Names of fields to leave out: the caller knows that they change nothing.

    Example:

    ```python
    fields = Fields({"hidden_size": 12, "hidden_act": "gelu_new"}, num_values=100, num_tensors=3)
    fields.size("hidden_size"), fields.activation("hidden_act")  # (12, "gelu_tanh")
    fields.refuse_not_obeyed()
    ```
    """

    def __init__(self, config, num_values, num_tensors, ignored_fields=()):
        known = {name: value for name, value in config.items() if name not in ignored_fields}
        self._config = _with_own_names(known)
        self._num_values = num_values
        self._num_tensors = num_tensors
        self._read = set()

    def get(self, name, default=_MISSING):
        """The value of a field.

        Raises:
            ValueError: if it is missing and there is no default.
        """
        self._read.add(name)
        value = self._config.get(name, default)
        if value is _MISSING:
            raise ValueError(f"config.json lacks the field `{name}`.")
        return value

    def size(self, name, default=_MISSING, most=None):
        """A positive integer, at most `most`, or as many as there are numbers in the weight files; None if that is the default."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        if most is None:
            most = self._num_values
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._wrong(name, value, "a positive integer")
        if value > most:
            content = f"{self._num_values:,} numbers in {self._num_tensors:,} tensors"
            raise self._wrong(name, value, f"at most {most:,}: the weight files hold {content}")
        return value

    def pair(self, name, default=_MISSING):
        """A pair of positive integers, given as one or as two: the height and width of an image."""
        value = self.get(name, default)
        pair = value if isinstance(value, list | tuple) else (value, value)
        if len(pair) != 2 or not all(type(size) is int and 0 < size < 2**31 for size in pair):
            raise self._wrong(name, value, "a positive integer, or two")
        return tuple(pair)

    def layer_counts(self, name, default=_MISSING):
        """A tuple of numbers of layers, whose sum is no more than there are tensors in the weight files."""
        values = self._integers(name, default)
        if sum(values) > self._num_tensors:
            raise self._wrong(
                name, list(values), f"at most {self._num_tensors:,} layers, as there are tensors"
            )
        return values

    def sizes(self, name, default=_MISSING):
        """A tuple of positive integers, each as in `size`."""
        values = self._integers(name, default)
        if max(values) > self._num_values:
            raise self._wrong(name, list(values), f"at most {self._num_values:,} each")
        return values

    def _integers(self, name, default):
        values = self.get(name, default)
        values = tuple(values) if isinstance(values, list | tuple) else ()
        if not values or not all(type(value) is int and value > 0 for value in values):
            raise self._wrong(name, self.get(name, default), "a list of positive integers")
        return values

    def natural(self, name, default=_MISSING):
        """0, or a positive integer as in `size`."""
        if self.get(name, default) == 0:
            return 0
        return self.size(name, default)

    def size_or_null(self, name, default, most=None):
        """A positive integer as in `size`, or None if the field is null."""
        if self.get(name, default) is None:
            return None
        return self.size(name, default, most)

    def layer_count(self, name, default=_MISSING):
        """A number of layers, no more than there are tensors in the weight files."""
        return self.size(name, default, most=self._num_tensors)

    def number(self, name, default=_MISSING):
        """A number, as a float."""
        value = self.get(name, default)
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name, default=_MISSING):
        """A boolean."""
        value = self.get(name, default)
        if value is None:
            value = default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def expect(self, **expected):
        """Checks fields that may be missing or null, and for which one value is implemented."""
        for name, value in expected.items():
            received = self.get(name, None)
            if received not in (None, value):
                error = self._wrong(name, received, f"{value!r}: nothing else is known here")
                raise ValueError(f"{error} {way_out(name)}")

    def activation(self, name, default=_MISSING):
        """The name of an activation in this library."""
        return self.activation_named(self.get(name, default), name)

    def activation_named(self, value, name):
        """The name in this library of the activation that they call `value`, which is from the field `name`."""
        try:
            return our_activation(value)
        except ValueError as error:
            model_type = self._config.get("model_type")
            raise ValueError(f"`{name}` of a {model_type} config cannot be {value!r:.50}: {error}.") from None

    def layer_types(self, num_layers, default):
        """`FULL` or `LOCAL` for each layer: the field `layer_types`, or `default`, a function of the layer's number."""
        types = self.get("layer_types", None)
        if types is None:
            return [default(i) for i in range(num_layers)]
        if not isinstance(types, list) or len(types) != num_layers or not set(types) <= {FULL, LOCAL}:
            raise self._wrong("layer_types", types, f"a list of {num_layers} out of {[FULL, LOCAL]}")
        return types

    def rate(self, *names):
        """A dropout rate: the first of these fields that is there and not null, or 0."""
        for name in names:
            if self.get(name, None) is not None:
                return self.number(name)
        return 0.0

    def num_labels(self):
        """The number of labels of a classifier."""
        if self.get("id2label", None) is None and self.get("num_labels", None) is not None:
            self.size("num_labels")
        return len(labels(self._config).names)

    def pad_token_id(self):
        """The id of the pad, or -1 if the model has none: then no token is taken for one.

        A config that does not have the field, which is not a null, means the default of its `model_type`.
        """
        model_type = MODEL_TYPES.get(self._config.get("model_type"))
        default = None if model_type is None else model_type.pad_token_id
        value = self.get("pad_token_id", default)
        if value is None:
            return -1
        if not isinstance(value, int):
            raise self._wrong("pad_token_id", value, "an integer or null")
        return value

    def refuse_not_obeyed(self):
        """Refuses fields that change every model of transformers, and that no architecture here obeys.

        Raises:
            ValueError: if there is such a field, and it is not null.
        """
        for name in sorted(_NOT_OBEYED.keys() & self._given - self._read):
            raise ValueError(not_obeyed("config.json", name, self._config[name], _NOT_OBEYED[name]))

    @property
    def unknown_names(self):
        """List of the names of fields that transformers' class does not have either, so that they change nothing."""
        return sorted(self._given - self._read - _WITHOUT_EFFECT - set(_NOT_OBEYED))

    @property
    def _given(self):
        return {name for name, value in self._config.items() if value is not None}

    def _wrong(self, name, value, wanted):
        model_type = self._config.get("model_type")
        return ValueError(f"`{name}` of a {model_type} config must be {wanted}. Received: {name}={value!r}.")


def not_obeyed(file, name, value, meaning):
    """The message of an error: a field of a file that changes answers is not obeyed here.

    Args:
        file: Name of the file.
        name, value: Of the field.
        meaning: What the field asks for.
    """
    return f"{file} asks for {meaning}, which nothing here does: {name}={value!r:.80}. {way_out(name)}"


def way_out(name):
    """The sentence that says how to go on without a field of a checkpoint's files."""
    return f'To go on without it, give `ignored_fields=("{name}",)`, or `--ignored-fields {name}` to the command.'


def _with_own_names(config):
    """The config with its fields under the names that the architecture reads."""
    model_type = MODEL_TYPES.get(config.get("model_type"))
    aliases = {} if model_type is None else model_type.aliases
    own = {name: value for name, value in config.items() if name not in aliases}
    for alias, name in aliases.items():
        if config.get(alias) is not None:
            own[name] = config[alias]
    return own
