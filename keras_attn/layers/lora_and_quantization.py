"""LoRA through layers that are made of others, and the dtype policies that let such layers be saved quantised."""

import re

import keras

from keras_attn.checks import check_positive

_CONFIGS_WITH_QUANTIZERS = (keras.quantizers.Int8QuantizationConfig, keras.quantizers.Int4QuantizationConfig)


class Adaptable:
    """For layers whose kernels lie in sub-layers: `enable_lora`, and a config that remembers what is quantised.

    `model.quantize` finds the sub-layers by itself. Keras' `MultiHeadAttention` forgets them when it is saved, so that
    a quantised model with one cannot be loaded; here the dtype policy in the config becomes a `DTypePolicyMap` with
    those of the quantised sub-layers. Its keys match below any parent, so that a layer can be loaded into another
    place than it was saved from.

    A subclass lists its sub-layers in `_parts`, and makes each that has a kernel with the policy that `_policy_of`
    tells.
    """

    # The names of the sub-layers that LoRA adapts by default, and the constructor arguments that are layers.
    _LORA_TARGETS = ("query", "value")
    _SLOTS = ()

    def _parts(self):
        """The sub-layers with kernels, and those that have such sub-layers; known once the layer is built."""
        raise NotImplementedError

    def _policy_of(self, name):
        """The dtype policy of the sub-layer `name`: a policy of its own, never a map, which Keras cannot quantise."""
        policy = self.dtype_policy
        if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return policy
        return policy[f"{self.path or self.name}/{name}"]

    def get_config(self):
        config = super().get_config()
        quantized = dict(_quantized_policies(self, self.name)) if self.built else {}
        if not quantized:
            return config
        policy, others = self.dtype_policy, {}
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            others = {path: other for path, other in policy.items() if other.quantization_mode is None}
            policy = policy.default_policy
        policies = others | {f"(.*/)?{re.escape(path)}": policy for path, policy in quantized.items()}
        policy = keras.dtype_policies.DTypePolicyMap(policy.name, policies)
        return {**config, "dtype": keras.dtype_policies.serialize(policy)}

    def enable_lora(self, rank, lora_alpha=None, target_layer_names=None):
        """Freezes all weights, and adds a trainable product of two thin matrices to some of the kernels.

        As `enable_lora` of KerasHub's backbones, which keeps the biases of the adapted layers trainable; the paper,
        and this method, train the new matrices alone. The answers stay what they are until these are trained. Compile
        a model after the call, or once more.

        What is saved as `.keras` or `.weights.h5` has the products merged into the kernels, is loaded without LoRA,
        and is trainable as a whole again; `keras_attn.models.save_weights` keeps the matrices apart. Read
        `.weights.h5` before the call: Keras sets both matrices to 0 when it reads them after it, where no gradient
        moves them.

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
        names = self._LORA_TARGETS if target_layer_names is None else tuple(target_layer_names)
        leaves = list({id(leaf): leaf for leaf in _leaves(self)}.values())  # a shared layer once
        targets = [leaf for leaf in leaves if leaf.name in names]
        _check_targets(names, targets, leaves)
        self.trainable = True
        for leaf in targets:
            leaf.enable_lora(rank, lora_alpha=lora_alpha)
        for leaf in leaves:
            # Not by its weights alone: a frozen layer, of a kind that was given, leaves its moving statistics too.
            leaf.trainable = leaf in targets
        for weight in self.weights:
            weight.trainable = weight.name.startswith("lora_")


class QuantizableSubclass:
    """For a subclass of a Keras layer: quantised as that layer is. By itself, Keras quantises no subclass."""

    def quantize(self, mode=None, type_check=True, config=None):
        super().quantize(mode=mode, type_check=False, config=config)


def _leaves(layer):
    """The parts of the parts: layers that hold kernels themselves, and layers of other libraries as a whole."""
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
            continue  # it has a config of its own
        part_path = f"{path}/{part.name}"
        if isinstance(part, Adaptable):
            yield from _quantized_policies(part, part_path)
        elif part.quantization_mode is not None:
            _check_quantization_config(part)
            yield part_path, part.dtype_policy


def _check_quantization_config(part):
    """A policy tells the mode and the block size, and no more: another quantizer of activations would be lost."""
    config = part.quantization_config
    if not isinstance(config, _CONFIGS_WITH_QUANTIZERS):
        return
    if _description(config.activation_quantizer) != _description(type(config)().activation_quantizer):
        raise ValueError(
            "A layer quantised with an `activation_quantizer` of its own has no config that could tell. Save the "
            "weights alone, and call `quantize` with the same config before you load them. Received: layer "
            f"{part.path!r}, {type(config).__name__}(activation_quantizer={config.activation_quantizer})."
        )


def _description(quantizer):
    if quantizer is None:
        return None
    # Left out, the axis is the last.
    return type(quantizer), {"axis": (-1,), **quantizer.get_config()}
