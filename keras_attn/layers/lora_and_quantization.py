"""LoRA for layers with sub-layers, and the dtype policies with which such layers can be saved quantised."""

import re

import keras

from keras_attn.checks import check_positive
from keras_attn.compat.keras import delete_variable, unlocked
from keras_attn.layers.base_layer import BaseLayer
from keras_attn.ops import runs_int8_products

_CONFIGS_WITH_QUANTIZERS = (keras.quantizers.Int8QuantizationConfig, keras.quantizers.Int4QuantizationConfig)

_ANYWHERE = "(.*/)?"  # what may stand before a path in a map of policies


class Adaptable(BaseLayer):
    """For layers whose kernels are in sub-layers: `enable_lora`, and a config that records what is quantised.

    `model.quantize` finds the sub-layers by itself. Keras' `MultiHeadAttention` does not save which are
    quantised, so that a quantised model with one cannot be loaded. Here the dtype policy in the config
    becomes a `DTypePolicyMap` with the policies of the quantised sub-layers. Its keys match below any parent,
    so that a layer can be loaded into a different parent.

    A subclass lists its sub-layers in `_parts`, and makes each sub-layer that has a kernel with the policy
    from `_policy_of`.
    """

    # The names of the sub-layers that LoRA adapts by default, and the constructor arguments that are layers.
    _LORA_TARGETS = ("query", "value")
    _SLOTS = ()

    def _parts(self):
        """The sub-layers that have kernels, or have such sub-layers; known once the layer is built."""
        raise NotImplementedError

    def _policy_of(self, name):
        """The dtype policy of the sub-layer `name`: never a map, which Keras cannot quantise."""
        policy = self.dtype_policy
        if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return policy
        return policy[f"{self.path or self.name}/{name}"]

    def _sublayer_options(self, name, dtype=None):
        """The constructor arguments that this layer passes to the sub-layer `name`: copied initializers, a policy and a name.

        By default, the policy is the one from `_policy_of`. A sub-layer that has sub-layers takes the policy of this layer,
        which may be a map with their policies.
        """
        if dtype is None:
            dtype = self._policy_of(name)
        return {
            "kernel_initializer": copy_initializer(self.kernel_initializer),
            "bias_initializer": copy_initializer(self.bias_initializer),
            "dtype": dtype,
            "name": name,
        }

    def _policies_of(self, name):
        """The policy, or the map, of a sub-layer that makes its own sub-layers before it knows its path."""
        policy = self.dtype_policy
        if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return policy
        start = f"{_ANYWHERE}{re.escape(f'{self.name}/{name}/')}"
        policies_below = {}
        for path, policy_below in policy.items():
            if path.startswith(start):
                policies_below[f"{_ANYWHERE}{re.escape(name)}/{path.removeprefix(start)}"] = policy_below
        return keras.dtype_policies.DTypePolicyMap(policy.default_policy.name, policies_below)

    def get_config(self):
        config = super().get_config()
        if not self.built:
            return config
        quantized_policies = dict(_quantized_policies(self, self.name))
        if not quantized_policies:
            return config
        policy = self.dtype_policy
        policies = {}
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            policies = {path: other for path, other in policy.items() if other.quantization_mode is None}
            policy = policy.default_policy
        for path, quantized_policy in quantized_policies.items():
            policies[f"{_ANYWHERE}{re.escape(path)}"] = quantized_policy
        policy = keras.dtype_policies.DTypePolicyMap(policy.name, policies)
        return {**config, "dtype": keras.dtype_policies.serialize(policy)}

    def enable_lora(self, rank, lora_alpha=None, target_layer_names=None):
        """Freezes all weights, and adds a trainable product of two thin matrices to some of the kernels.

        Like `enable_lora` of KerasHub's backbones, except that those keep the biases of the adapted layers
        trainable; the paper and this method train only the new matrices. Outputs do not change until these
        are trained. Compile a model after the call, or again: a model of this library forgets what it had compiled for
        `predict`, but a model around the layer cannot.

        A saved `.keras` or `.weights.h5` file has the products merged into the kernels. It is loaded without
        LoRA, and all weights are trainable again; `keras_attn.models.save_weights` keeps the matrices
        separate. Read `.weights.h5` before the call: after it, Keras sets both matrices to 0, and their
        gradients are then 0 too.

        Args:
            rank: Integer, the inner size of the products. Keras shares the second matrix of a kernel (D, N, H)
                among the heads: (D, N, rank) times (rank, H).
            lora_alpha: Float; a product is multiplied by `lora_alpha / rank`. Defaults to `rank`.
            target_layer_names: Names of the projections to adapt. Defaults to the queries' and the values',
                `("query", "value")`, which the paper found best for a given number of weights (section 7.1).

        Raises:
            ValueError: if `rank` is not a positive integer, the layer is not built, has LoRA already, or has no
                projection of such a name.

        Example:

        ```python
        model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
        model.enable_lora(rank=4)
        assert all("lora" in weight.name for weight in model.trainable_weights)
        ```

        Reference: [Hu et al., 2021](https://arxiv.org/abs/2106.09685), section 4.2.
        """
        check_positive("rank", rank)
        if not self.built:
            raise ValueError(
                f"`enable_lora` needs a built layer. Received: {self.name!r}, which is not built."
            )
        names = self._LORA_TARGETS
        if target_layer_names is not None:
            names = tuple(target_layer_names)
        leaves = list({id(leaf): leaf for leaf in _leaves(self)}.values())  # a shared layer once
        targets = [leaf for leaf in leaves if leaf.name in names]
        _check_targets(names, targets, leaves)
        self.trainable = True
        for leaf in targets:
            leaf.enable_lora(rank, lora_alpha=lora_alpha)
        for leaf in leaves:
            # Not only its weights: a frozen layer also leaves its moving statistics unchanged.
            leaf.trainable = leaf in targets
        for weight in self.weights:
            weight.trainable = weight.name.startswith("lora_")
        forget_compiled(self)


class QuantizableSubclass(BaseLayer):
    """For a subclass of a Keras layer: quantised like that layer. Keras quantises no subclasses.

    Where a graph is only run (`keras_attn.ops.inference_scope`), an int8 layer multiplies integers with the fastest
    operation that TensorFlow has; elsewhere, in training for example, it is called as Keras calls it.
    """

    def quantize(self, mode=None, type_check=True, config=None):
        super().quantize(mode=mode, type_check=False, config=config)

    def __delattr__(self, name):
        if isinstance(getattr(self, name), keras.Variable):
            delete_variable(self, name)
        else:
            super().__delattr__(name)

    def has_int8_product(self):
        """Whether a call now is a product of integers."""
        return (
            self.quantization_mode == "int8"
            and not self.lora_enabled
            and self.inputs_quantizer is not None
            and runs_int8_products()
        )

    def makes_step_matrix(self):
        """Whether a loop would make this layer's matrix again in every step."""
        return self.has_int8_product()

    def store_in_bfloat16(self):
        """Makes all weights anew, in the same order, and computes in bfloat16 from now on."""
        if self.quantization_mode is not None or self.lora_enabled:
            raise ValueError(
                "Only a layer without LoRA that is not quantised can be stored in bfloat16. Merge LoRA first, with "
                f"`keras_attn.models.merge_lora`. Received: layer {self.path!r}."
            )
        self.dtype_policy = "bfloat16"
        with unlocked(self):
            for name, variable in list(vars(self).items()):
                if isinstance(variable, keras.Variable):
                    self._replace_in_bfloat16(name, variable)

    def _replace_in_bfloat16(self, name, variable):
        value = keras.ops.convert_to_numpy(variable)
        delattr(self, name)
        stored = self.add_weight(
            shape=value.shape, name=variable.name, dtype="bfloat16", trainable=variable.trainable
        )
        stored.assign(value)
        setattr(self, name, stored)


def copy_initializer(initializer):
    """A new copy, because one unseeded instance would give all of its weights the same values."""
    return initializer.__class__.from_config(initializer.get_config())


def forget_compiled(model):
    """Lets a model compile `fit`, `evaluate` and `predict` anew: what it compiled before has other variables."""
    for name in ("train_function", "test_function", "predict_function"):
        if hasattr(model, name):
            setattr(model, name, None)


def _leaves(layer):
    """The innermost parts: layers that hold kernels themselves, and layers of other libraries as a whole."""
    for part in layer._parts():
        if isinstance(part, Adaptable):
            yield from _leaves(part)
        else:
            yield part


def _check_targets(names, targets, leaves):
    missing = set(names) - {leaf.name for leaf in targets if hasattr(leaf, "enable_lora")}
    if missing or not names:
        known = sorted({leaf.name for leaf in leaves if hasattr(leaf, "enable_lora")})
        raise ValueError(
            f"`target_layer_names` must be some of {known}. Received: target_layer_names={names}."
        )
    if any(getattr(leaf, "lora_enabled", False) for leaf in leaves):
        raise ValueError("`enable_lora` can be called once a layer, and this layer has LoRA already.")


def _quantized_policies(layer, path):
    """The path and the dtype policy of each quantised part that the layer would build again from its config."""
    given = [getattr(layer, slot) for slot in layer._SLOTS]
    for part in layer._parts():
        if any(part is slot for slot in given):
            continue  # it has its own config
        part_path = f"{path}/{part.name}"
        if isinstance(part, Adaptable):
            yield from _quantized_policies(part, part_path)
        elif part.quantization_mode is not None:
            _check_quantization_config(part)
            yield part_path, part.dtype_policy
        elif part.dtype_policy.name == "bfloat16" != layer._policy_of(part.name).name:
            yield part_path, part.dtype_policy


def _check_quantization_config(part):
    """A policy holds only the mode and the block size: another quantizer of activations would be lost."""
    config = part.quantization_config
    if not isinstance(config, _CONFIGS_WITH_QUANTIZERS):
        return
    if _description(config.activation_quantizer) != _description(type(config)().activation_quantizer):
        raise ValueError(
            "A layer quantised with an `activation_quantizer` of its own cannot be described in a config. Save the "
            "weights alone, and call `quantize` with the same config before you load them. Received: layer "
            f"{part.path!r}, {type(config).__name__}(activation_quantizer={config.activation_quantizer})."
        )


def _description(quantizer):
    if quantizer is None:
        return None
    # By default, the axis is the last.
    return type(quantizer), {"axis": (-1,), **quantizer.get_config()}
