"""What the library uses of Keras that Keras does not promise. It needs no TensorFlow: all backends use it.

Versions are those in which a name was seen: Keras 3.0.5, 3.3.3, 3.5.0, 3.8.0, 3.10.0, 3.12.0, 3.15.1 and 3.16.0.dev2026102704.
"""

import contextlib

import keras

# Layers


def all_layers(layer):
    """A layer and all layers inside it, a list: `Layer._flatten_layers`.

    Why: `Model.layers` lists the layers right below a model, and plain layers have no such attribute.
    Since: Keras 3.0.
    If it goes: quantisation, LoRA, copies, `check_masks` and step matrices find no layers.
    """
    return layer._flatten_layers()


def direct_sublayers(layer):
    """The layers right below a layer, in the order in which they became its attributes: `Layer._flatten_layers`.

    Why: plain layers have no public list of their layers.
    Since: Keras 3.0.
    If it goes: `attention_layers`, and all of `inspection`, find no layers.
    """
    return layer._flatten_layers(include_self=False, recursive=False)


def layers_and_variables_of_its_own(layer):
    """The lists that Keras keeps of a layer's own sub-layers, trainable and other variables, and changes in place.

    Why: public properties make new lists, of all nested layers, in each call; `tasks.graph_cache` reads these in each answer
    of a task.
    Since: Keras 3.0: `_layers`, `_trainable_variables`, `_non_trainable_variables`.
    If it goes: a task does not notice that its model was changed, or cannot answer.
    """
    return [layer._layers, layer._trainable_variables, layer._non_trainable_variables]


def bookkeeping_attributes():
    """The names of the attributes in which Keras keeps what no answer of a model depends on, a frozenset.

    Why: they are not listed; they are what a plain layer and a plain model have, and what `compile` and `fit` add.
    Since: `_compiled_trainable_state` is in Keras 3.15, all others in 3.0.
    If it goes: a task whose model was trained or compiled makes its graphs anew, which takes time and is not wrong.
    """
    plain = [keras.layers.Layer(name="any"), keras.Model(name="any")]
    names = {name for owner in plain for name in vars(owner)}
    return frozenset(names.union(_ADDED_BY_TRAINING) - {DTYPE_POLICY})


_ADDED_BY_TRAINING = (
    "optimizer",
    "history",
    "stop_training",
    "stop_evaluating",
    "stop_predicting",
    "_compile_config",
    "_compiled_trainable_state",
    "_eval_epoch_iterator",
    "_jax_state",
)
# The attribute that holds a layer's dtype policy, the one of Keras' own attributes on which answers depend. Since Keras 3.0.
DTYPE_POLICY = "_dtype_policy"


def is_tracking_attribute(name):
    """Whether Keras, or TensorFlow below it, tracks its own objects under this attribute's name.

    Why: TensorFlow's `Trackable`, which layers extend on that backend, adds attributes of these names when it saves.
    Since: TensorFlow 2.0.
    If it goes: a task whose model was saved makes its graphs anew.
    """
    return name.startswith("_self_")


@contextlib.contextmanager
def unlocked(layer):
    """Lets a built layer get new weights in the block: `Layer._tracker.unlock`.

    Why: Keras locks what a layer tracks once it is built; its own `quantize` and `enable_lora` unlock it in this way.
    Since: Keras 3.0.
    If it goes: `store_in_bfloat16` raises.
    """
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def delete_variable(layer, name):
    """Deletes an attribute that is a variable of a layer, and ends its tracking: `Layer._untrack_variable`.

    Why: `Layer.__delattr__` also collects garbage after each variable, which takes many seconds for a model that is
    quantised. No circle of references holds a variable, so its memory is free at once.
    Since: Keras 3.3, the collection too.
    If it goes: quantised models keep their float weights, or quantising raises.
    """
    layer._untrack_variable(getattr(layer, name))
    super(keras.layers.Layer, layer).__delattr__(name)


def stored_matrix(layer):
    """The variable that holds the matrix of a `Dense`, `EinsumDense` or `Embedding`: `_kernel`, `_embeddings`.

    Why: the public `kernel` and `embeddings` are tensors with LoRA's product added, once there is LoRA.
    Since: Keras 3.0.
    If it goes: LoRA is not merged, and int8 weights are not read.
    """
    return layer._embeddings if isinstance(layer, keras.layers.Embedding) else layer._kernel


def called_method(layer):
    """The name of the method that Keras calls for a layer: `call`, or `quantized_call` where it is quantised.

    Why: `Layer.__call__` chooses it. `quantized_call` has no underscore and no documentation.
    Since: Keras 3.3.
    If it goes: quantised layers compute in floats, and `check_masks` does not see their calls.
    """
    return "call" if getattr(layer, "quantization_mode", None) is None else "quantized_call"


@contextlib.contextmanager
def replaced_method(owner, name, method):
    """In the block, one layer or model has another method of this name: an entry of its `__dict__`.

    Why: Keras has no hooks that see what goes into a call and what comes out of it. It calls `self.call(...)`, which finds the
    entry first. `setattr` would do the same, but Keras tracks and may refuse what is set.
    Since: Keras 3.0.
    If it goes: `capture_attention`, `attention_gradients` and `check_masks` see nothing.
    """
    missing = object()
    before = owner.__dict__.get(name, missing)
    owner.__dict__[name] = method
    try:
        yield
    finally:
        if before is missing:
            del owner.__dict__[name]
        else:
            owner.__dict__[name] = before


def synchronize_jax_state(model):
    """Writes what a JAX training loop has computed into the model's variables: `jax_state_sync`; nothing on other backends.

    Why: on JAX the variables are stale during `fit`. Keras' own callbacks call this method, which is not documented.
    Since: Keras 3.0.
    If it goes: on JAX a run saves, and plans with, stale values.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


# Tensors


def implicit_mask(tensor):
    """The mask that Keras carries on `tensor` (`mask_zero=True`, `Masking`), or None; it stays there: `_keras_mask`.

    Why: Keras passes a mask as an argument of a call only where the layer's `call` has one of the right name, and removes it
    from the tensor if it passes it. Layers that promise to honour every mask read it here.
    Since: Keras 3.0.
    If it goes: implicit masks are ignored.
    """
    return getattr(tensor, "_keras_mask", None)


def set_implicit_mask(tensor, mask):
    """Lets Keras carry `mask`, or None, on `tensor`: `_keras_mask`.

    Why: a tensor that stands in for another must carry its mask, which only a layer's call would set.
    Since: Keras 3.0.
    If it goes: `check_masks` reports leaks that are none, and a capture changes the model's answer.
    """
    tensor._keras_mask = mask


def symbolic_history(tensor):
    """The operation that made a symbolic tensor (`operation`, `node_index`, `tensor_index`), or None: `_keras_history`.

    Why: Keras has no public way from a tensor of a functional model to what made it.
    Since: Keras 3.0.
    If it goes: nobody is warned that `x + y` dropped a mask.
    """
    history = getattr(tensor, "_keras_history", None)
    return None if history is None or history.operation is None else history


def calls_of(operation):
    """The nodes of an operation, one for each call on symbolic tensors, a list: `_inbound_nodes`.

    A node has `arguments` (with `args` and `kwargs`), `input_tensors` and `output_tensors`.

    Why: Keras has no public way to what an operation was called on.
    Since: Keras 3.0.
    If it goes: nobody is warned of a dropped mask, and `load` does not check the sizes of a stranger's model.
    """
    return operation._inbound_nodes


def functional_model(model):
    """The functional model that a `Sequential` runs, or the model itself: `Sequential._functional`.

    Why: a `Sequential` has layers and no `operations`.
    Since: Keras 3.0.
    If it goes: `load` does not check the sizes of a stranger's `Sequential`.
    """
    return getattr(model, "_functional", None) or model


def comes_from_activation(tensor):
    """Whether a tensor is known to be the output of a softmax or sigmoid: `_keras_logits`.

    Why: Keras marks the outputs of both so that its own losses can do without the activation.
    Since: Keras 3.0.
    If it goes: probabilities that are given as logits are not refused.
    """
    return hasattr(tensor, "_keras_logits")


# Keras' attention layers


# The method of `MultiHeadAttention` and `GroupQueryAttention` that attends, given projected heads. Since Keras 3.0. If it goes,
# the attention of Keras' layers is not captured.
ATTENTION_METHOD = "_compute_attention"


def attention_axes(layer):
    """The axes over which an attention layer of Keras attends, or None for the one of time: `_attention_axes`.

    Why: the constructor's argument is not public afterwards.
    Since: Keras 3.0.
    If it goes: the scores of layers that attend over several axes have a wrong shape.
    """
    return getattr(layer, "_attention_axes", None)


def causal_mask_of_layer(layer, query, value):
    """The mask (1, T, S) of an attention layer that is called with `use_causal_mask`: `_compute_causal_mask`.

    Why: the layer makes it inside of its call.
    Since: Keras 3.0.
    If it goes: `explain_masks` cannot say what Keras' layers mask.
    """
    return layer._compute_causal_mask(query, value)


def combine_equation(layer):
    """The equation by which an attention layer multiplies scores and values: `_combine_equation`.

    Why: it depends on the rank and the axes of the layer's inputs.
    Since: Keras 3.0.
    If it goes: `attention_gradients` does not work for Keras' layers.
    """
    return layer._combine_equation


# What makes an attention layer of Keras compute its scores and return them: `_return_attention_scores` and
# `_flash_attention`. Since Keras 3.8. If they go, scores cannot be captured where a fused kernel computes the attention.
WITH_ATTENTION_SCORES = {"_return_attention_scores": True, "_flash_attention": False}


def attention_dropout_attribute(layer):
    """The name of the attribute with the rate of the scores' dropout of an attention layer of Keras; None for other layers.

    Why: `MultiHeadAttention` has no public one.
    Since: Keras 3.0.
    If it goes: `check_masks` does not check the path that a layer with dropout takes.
    """
    if isinstance(layer, keras.layers.MultiHeadAttention):
        return "_dropout"
    return "dropout" if isinstance(layer, keras.layers.GroupQueryAttention) else None


# Optimizers


def backend_optimizer_class(optimizer):
    """The class of the object that calling the class `optimizer` makes on this backend.

    Why: on PyTorch the constructor of an optimizer returns a subclass, which updates all variables together. A subclass of
    ours must extend that one.
    Since: Keras 3.0.
    If it goes: on PyTorch each variable is updated by itself, with the same numbers.
    """
    return type(optimizer.__new__(optimizer))


def adam_moments(optimizer, variable):
    """The first and second moment that Adam keeps of a variable: `_get_variable_index`, `_momentums`, `_velocities`.

    Why: `Optimizer.variables` lists all of them without saying which is whose.
    Since: Keras 3.0.
    If it goes: `training.Adam` and `training.AdamW` raise on TensorFlow.
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def learning_rate_schedule(optimizer):
    """The schedule of an optimizer, or None for a fixed learning rate: `_learning_rate`.

    Why: the public `learning_rate` is the current value.
    Since: Keras 3.0.
    If it goes: the learning rate of a run is reported one update late.
    """
    schedule = getattr(optimizer, "_learning_rate", None)
    return schedule if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule) else None


def trained_variables(optimizer):
    """The variables that an optimizer was built for, in its order: `_trainable_variables`.

    Why: the model's own list has others in other places once a part of it was frozen or thawed.
    Since: Keras 3.0.
    If it goes: training states and averages cannot be matched with their weights.
    """
    return optimizer._trainable_variables


def moving_averages(optimizer):
    """The moving averages of `trained_variables`, in their order, None where there is none: `_model_variables_moving_average`.

    Why: Keras gives them only by overwriting the model's weights.
    Since: Keras 3.0.
    If it goes: `averaged_weights` raises.
    """
    return optimizer._model_variables_moving_average
