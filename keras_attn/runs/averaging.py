"""A translator whose weights are the mean of several checkpoints."""

from keras_attn.models import assign_weights, average_weights
from keras_attn.tasks import Translator


def average_translator(checkpoints, translator, folder):
    """Writes a translator with the mean of the weights in several files.

    Args:
        checkpoints: Paths of weight files of one model, such as `runs/mine/checkpoints/epoch-*.safetensors`.
        translator: Path of a saved `Translator` of that model, for its tokenizers and options.
        folder: Path that the new translator is saved to.

    Returns:
        The `Translator`.

    Raises:
        FileNotFoundError: if a file or the translator is missing.
        ValueError: if the files do not hold the weights of that model.

    Example:

    ```python
    files = ["runs/dates/checkpoints/epoch-011.safetensors", "runs/dates/checkpoints/epoch-012.safetensors"]
    average_translator(files, "runs/dates/translator", "averaged")
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    averaged = Translator.load(translator)
    assign_weights(averaged.model, average_weights(checkpoints), "The average")
    averaged.save(folder)
    return averaged
