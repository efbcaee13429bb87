"""Reading a tokenizer back from its folder."""

from keras_attn.files import read_json, restored_folder
from keras_attn.text.byte_level_bpe_tokenizer import ByteLevelBPETokenizer
from keras_attn.text.byte_tokenizer import ByteTokenizer
from keras_attn.text.pipeline_tokenizer import PipelineTokenizer
from keras_attn.text.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_attn.text.tokenizer import CHARACTERS_FILE, TOKENIZER_FILE
from keras_attn.text.wordpiece_tokenizer import WordPieceTokenizer

# A folder only names its class; it cannot choose what is imported.
_CLASSES = {
    cls.__name__: cls
    for cls in (
        ByteLevelBPETokenizer,
        ByteTokenizer,
        PipelineTokenizer,
        SentencePieceTokenizer,
        WordPieceTokenizer,
    )
}


def load_tokenizer(folder):
    """Reads the tokenizer that `Tokenizer.save` wrote to a folder.

    A folder from an untrusted source is safe to load: the class comes from a fixed table, and the files are
    JSON and a sentencepiece model or a list of words, none of which can hold code.

    Args:
        folder: Path of the folder.

    Returns:
        A `Tokenizer` that gives the same ids as the one saved.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged or names an unknown class.

    Example:

    ```
    import tempfile
    from keras_attn.text import ByteTokenizer, load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        ByteTokenizer().save(folder)
        assert load_tokenizer(folder).encode(["a"]) == [[100]]
    ```
    """
    folder = restored_folder(folder)
    class_name, config = _read_description(folder)
    if class_name not in _CLASSES:
        raise ValueError(
            f"{folder / TOKENIZER_FILE} must name one of {sorted(_CLASSES)}. Received: class_name={class_name!r}."
        )
    try:
        tokenizer = _CLASSES[class_name]._read_config(folder, config)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / TOKENIZER_FILE} must hold the config of a {class_name}. Received: config={config!r}."
        ) from error
    characters = folder / CHARACTERS_FILE
    if characters.is_file():
        try:
            tokenizer.characters = characters.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{characters} must be UTF-8. It cannot be read: {error}.") from error
    return tokenizer


def _read_description(folder):
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise FileNotFoundError(f"`folder` must hold {TOKENIZER_FILE}. Received: folder={str(folder)!r}.")
    try:
        description = read_json(path)
        return str(description["class_name"]), dict(description["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be JSON with `class_name` and `config`, as `Tokenizer.save` writes it. "
            f"It cannot be read: {error!r}."
        ) from error
