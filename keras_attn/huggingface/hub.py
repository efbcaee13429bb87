"""Checkpoints by their names on Hugging Face's hub."""

import pathlib
import re

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights without pickles, configs, and the files of tokenizers.
_FILES = ("*.safetensors", "*.json", "*.model", "*.spm", "vocab.txt", "merges.txt", "*.jinja")


def checkpoint_folder(name):
    """The folder of a checkpoint: the folder itself, or for a name like "org/name", that of what is downloaded.

    A name is looked for on the hub only if neither it nor a folder of its first part is here. Safetensors files, JSON and
    the files of tokenizers are downloaded, no code and no pickle, into huggingface_hub's cache.

    Args:
        name: Path of a folder, or a name on the hub.

    Returns:
        A `pathlib.Path`. It need not exist if `name` is no name on the hub.

    Raises:
        ImportError: if huggingface_hub is needed and not installed.
        OSError: if the hub has no such checkpoint, or cannot be reached.

    Example:

    ```python
    folder = checkpoint_folder("opus-mt-en-de")
    ```
    """
    path = pathlib.Path(name)
    if path.exists() or path.parent.is_dir() or not _NAME.fullmatch(str(name)):
        return path
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name}. To download it as a checkpoint of the hub, install huggingface_hub: "
            'pip install "keras_attn[hub]".'
        ) from error
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(str(name), allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:
        raise OSError(f"There is no folder {name}, and the hub did not give it: {error}") from error
