import keras


@keras.saving.register_keras_serializable(package="keras_attn")
class ScaledInitializer(keras.initializers.Initializer):
    """The values of another initializer, times a constant (the gain of torch's initializers).

    Args:
        initializer: Initializer, or its name.
        gain: Float.

    Call arguments:
        shape: Integers, of any rank.
        dtype: Name of a float dtype.

    Returns:
        Floats of that shape.
    """

    def __init__(self, initializer, gain):
        self.initializer = keras.initializers.get(initializer)
        self.gain = gain

    def __call__(self, shape, dtype=None):
        return self.initializer(shape, dtype=dtype) * self.gain

    def get_config(self):
        return {"initializer": keras.initializers.serialize(self.initializer), "gain": self.gain}
