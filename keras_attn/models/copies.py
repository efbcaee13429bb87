"""Models made again from the configuration of another, also those that users wrote."""

import concurrent.futures

import keras

# The names of dtypes and policies in configurations; integers and booleans are no policies.
_FLOATS = {"float16", "bfloat16", "float32", "float64", "mixed_float16", "mixed_bfloat16"}


def twin_of(model, policy_of=None):
    """A model with the configuration of another one, built, with weights of its own.

    Args:
        model: A built `keras.Model`.
        policy_of: Function from the name of a dtype policy in the configuration to that in the twin's, or None for the
            same policies.

    Raises:
        ValueError: if the configuration does not give a model with as many weights.

    Example:

    ```python
    from keras_attn.models.copies import twin_of

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert twin_of(model).count_params() == model.count_params()
    ```
    """
    config = model.get_config()
    twin = type(model).from_config(config if policy_of is None else _with_policies(config, policy_of))
    if len(twin.weights) != len(_shapes(model)):
        twin.build_from_config(model.get_build_config() or {})
        twin.built = True  # as Keras says of a model that it loads
    check_rebuilt(twin, model)
    return twin


def copy_in_policies(model, policy_of):
    """As `twin_of`, with the weights of the model."""
    twin = twin_of(model, policy_of)
    twin.set_weights(model.get_weights())
    finalize_layers(twin)
    return twin


def without_values(function):
    """What a function gives that makes models; their variables have shapes and no values, and so take no memory."""

    def run():
        with keras.StatelessScope(initialize_variables=False):
            return function()

    # Keras keeps the variables that a scope did not initialise per thread: they are dropped with this thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def check_rebuilt(twin, model):
    """Raises ValueError unless a model that was made from the configuration of another has its weights."""
    if _shapes(twin) != _shapes(model):
        raise ValueError(
            f"The configuration of {type(model).__name__} does not give its weights: a model made from it has others, or "
            "none. Make all layers in the constructor, return its arguments from "
            "`get_config`, and build the layers there or in `build(input_shape)`."
        )


def is_of_lora(weight):
    """Whether a weight is one of LoRA's matrices, which no configuration has."""
    return weight.name.startswith("lora_")


def _shapes(model):
    return [tuple(weight.shape) for weight in model.weights if not is_of_lora(weight)]


def finalize_layers(model):
    """Lets layers compute anew what they keep of weights that were assigned: Keras' `Normalization` does.

    Others with this method, `Discretization` for instance, have no weights: all that they keep is in their configuration.
    """
    for layer in model._flatten_layers():
        if layer.weights and hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _with_policies(config, policy_of):
    """A config with other dtype policies, also in all nested configs."""
    if type(config) in (list, tuple):
        return type(config)(_with_policies(part, policy_of) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return {**config, "config": {"name": policy_of(config["config"]["name"])}}
    return {
        key: policy_of(part)
        if key == "dtype" and isinstance(part, str) and part in _FLOATS
        else _with_policies(part, policy_of)
        for key, part in config.items()
    }
