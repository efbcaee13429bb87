"""Copies of models, made from their configuration, user-made classes included."""

import copy
import itertools

import keras

from keras_attn.compat.keras import all_layers
from keras_attn.layers.layer_slots import (
    construction_policy,
    global_policy,
    layer_from_description,
    plain_policies,
    plain_policy,
    run_without_values,
    with_construction_policy,
)
from keras_attn.models.weight_names import match_names, named_weights

# The names of dtypes and policies in configurations; integers and booleans are no policies.
_FLOATS = {"float16", "bfloat16", "float32", "float64", "mixed_float16", "mixed_bfloat16"}


def make_twin(model, change_policy=None):
    """A model with the configuration of another one, built, with weights of its own.

    Args:
        model: A built `keras.Model`.
        change_policy: Function from the name of a dtype policy in the configuration to that in the twin's, or None for
            the same policies.

    Raises:
        ValueError: if the configuration does not give a model with as many weights.

    Example:

    ```python
    from keras_attn.models.model_copies import make_twin

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert make_twin(model).count_params() == model.count_params()
    ```
    """
    if change_policy is None:
        change_policy = str
    config = _with_policies(model.get_config(), change_policy)
    with global_policy(change_policy(construction_policy(model))):
        twin = type(model).from_config(config)
        if len(twin.weights) != len(_shapes(model)):
            twin.build_from_config(model.get_build_config() or {})
            twin.built = True  # as Keras says of a model that it loads
    check_rebuilt(twin, model)
    for layer, old_policy in zip(all_layers(twin), plain_policies(model)):
        policy = change_policy(old_policy)
        if plain_policy(layer.dtype_policy) != policy:
            _set_policy(layer, policy)
    return twin


def copy_with_policies(model, change_policy):
    """As `make_twin`, with the weights of the model."""
    twin = make_twin(model, change_policy)
    assign_by_name(twin, named_weights(model))
    return twin


def assign_by_name(twin, values):
    """Assigns the values of a model's weights, {name in the model: value}, to those of its twin.

    Layers are matched by name, and those with names made by Keras by rank.
    """
    names = match_names(twin, values)
    if names is None:
        raise ValueError(
            f"The configuration of {type(twin).__name__} does not give the names of its weights."
        )
    for name, variable in named_weights(twin).items():
        variable.assign(values[names[name]])
    finalize_layers(twin)


def describe_model(model):
    """Keras' description of a model without its compile config, from which `rebuild_model` makes it again."""
    description = keras.saving.serialize_keras_object(model)
    description.pop("compile_config", None)
    return with_construction_policy(description, model)


def rebuild_model(description):
    """The model that `describe_model` described, of any registered class, with new weights: the same under any global policy."""
    # Keras empties the description of a functional model, so it gets a copy.
    return layer_from_description(copy.deepcopy(description))


def check_rebuilt(twin, model):
    """Raises ValueError unless a model that was made from the configuration of another has its weights."""
    if _shapes(twin) != _shapes(model):
        raise ValueError(
            f"The configuration of {type(model).__name__} does not give its weights: a model made from it has others, or "
            "none. Make all layers in the constructor, return its arguments from "
            "`get_config`, and build the layers there or in `build(input_shape)`."
        )


def check_comes_back(model, make):
    """Raises ValueError unless a model comes back from its configuration: weights, dtype policies and quantisation.

    Args:
        model: A `keras.Model`, built.
        make: Function without arguments that makes the other model; it is made without values.
    """
    run_without_values(lambda: _check_same_layers(make(), model))


def _check_same_layers(twin, model):
    kind = type(model).__name__
    for layer, other in itertools.zip_longest(all_layers(model), all_layers(twin)):
        if layer is None or other is None:
            break
        mode = stored_mode(layer)
        if mode != stored_mode(other):
            raise ValueError(
                f"{kind} in {mode} cannot be saved. Save it before, and quantise it again after it is "
                f"loaded: the configuration does not say that layer {layer.path!r} is stored so, because the class that "
                "makes this layer does not."
            )
        policy = plain_policy(layer.dtype_policy)
        other_policy = plain_policy(other.dtype_policy)
        if policy != other_policy:
            raise ValueError(
                f"{kind} cannot be saved: its layers have other dtype policies than its configuration gives them. "
                "Pass `dtype=self.dtype_policy` to the layers that the class makes, and return those of "
                f"`super().get_config()` too. Received: layer {layer.path!r} in {policy}, where it would come back in "
                f"{other_policy}."
            )
    check_rebuilt(twin, model)


def stored_mode(layer):
    """What quantises a layer itself: "bfloat16", a mode of Keras, or None."""
    mode = getattr(layer, "quantization_mode", None)
    if mode is None and hasattr(layer, "store_in_bfloat16") and layer.variable_dtype == "bfloat16":
        return "bfloat16"
    return mode


def _set_policy(layer, policy):
    """Sets the policy of a layer that a class made with another one, if its weights keep their dtype."""
    old = layer.dtype_policy
    new = keras.DTypePolicy(policy)
    if old.quantization_mode is not None or old.variable_dtype != new.variable_dtype:
        raise ValueError(
            "A class made a layer with a dtype policy of its own, which cannot be changed. Pass "
            f"`dtype=self.dtype_policy` to the layers that the class makes. Received: layer {layer.path!r} in {old.name}, "
            f"where {policy} is wanted."
        )
    layer.dtype_policy = new


def is_lora_weight(weight):
    """Whether a weight is one of LoRA's matrices, which no configuration has."""
    return weight.name.startswith("lora_")


def _shapes(model):
    return sorted(tuple(weight.shape) for weight in model.weights if not is_lora_weight(weight))


def finalize_layers(model):
    """Lets layers recompute the values that they derive from assigned weights, as Keras' `Normalization` does.

    Other layers with this method, such as `Discretization`, have no weights: their state is in their configuration.
    """
    for layer in all_layers(model):
        if layer.weights and hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _with_policies(config, change_policy):
    """A config with other dtype policies, also in all nested configs."""
    if type(config) in (list, tuple):
        return type(config)(_with_policies(part, change_policy) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return {**config, "config": {"name": change_policy(config["config"]["name"])}}
    changed = {}
    for key, part in config.items():
        if key in ("dtype", "made_under") and isinstance(part, str) and part in _FLOATS:
            changed[key] = change_policy(part)
        else:
            changed[key] = _with_policies(part, change_policy)
    return changed
