"""Corpora that are not part of the library: in a folder, or downloaded once and checked.

Multi30k, task 1, is 31,014 English image descriptions with their German and French translations; tiny-shakespeare is one
text of 1.1 million characters.
"""

import os
import pathlib

import keras

from keras_attn.data.plain_text import PlainText
from keras_attn.data.text_files import read_text
from keras_attn.data.text_pairs import TextPairs, read_text_pairs

FOLDER_VARIABLE = "KERAS_ATTN_DATA"

LANGUAGES = ("en", "de", "fr")

_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
# Part of the file names of the lower-cased, normalised, Moses-tokenised files.
_TOKENIZED = ".lc.norm.tok"
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"
_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_FILE_STEMS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    "test_2016_flickr.lc.norm.tok.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
}


def multi30k_pairs(split, source_language="en", target_language="de", folder=None, tokenized=False):
    """Reads the sentence pairs of one split of Multi30k, from a folder or from the network.

    A folder is read as it is, without network access or checksums. Without one, the files are downloaded once
    from the public repository multi30k/dataset into Keras' cache (`~/.keras/datasets`) and checked against
    their SHA-256. The dataset carries no licence file, which is why it is not part of this package: check
    whether your use of it is permitted.

    Args:
        split: `"train"` (29,000 pairs), `"validation"` (1,014) or `"test"` (`test_2016_flickr`, 1,000).
        source_language: `"en"`, `"de"` or `"fr"`.
        target_language: Another one of them.
        folder: Path of a folder with files named as in the repository (`train.en` or `train.en.gz`). Defaults
            to the environment variable `KERAS_ATTN_DATA`; where that is unset or empty, the files are
            downloaded.
        tokenized: Whether to read the lower-cased, normalised and Moses-tokenised files
            (`train.lc.norm.tok.en`), on which most papers report, rather than the raw ones.

    Returns:
        `TextPairs`, in the order of the files.

    Raises:
        ValueError: If the split or a language is unknown, or if a file is not what `read_text_pairs` expects.
        FileNotFoundError: If the folder lacks a file, or if the download fails.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import multi30k_pairs

    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "val.en").write_text("A dog runs.\\n", encoding="utf-8")
    (folder / "val.de").write_text("Ein Hund rennt.\\n", encoding="utf-8")
    assert multi30k_pairs("validation", folder=folder).targets == ["Ein Hund rennt."]
    ```

    Reference:
        - Elliott, Frank, Sima'an and Specia, 2016, "Multi30K: Multilingual English-German Image
          Descriptions", section 2.2 (arXiv:1605.00459).
        - Elliott, Frank, Barrault, Bougares and Specia, 2017, "Findings of the Second Shared Task on Multimodal Machine
          Translation and Multilingual Image Description", section 2.1, the French translations (arXiv:1710.07177).
    """
    if split not in _FILE_STEMS:
        raise ValueError(f"`split` must be one of {', '.join(_FILE_STEMS)}. Received: split={split!r}.")
    languages = (source_language, target_language)
    if not set(languages) <= set(LANGUAGES) or source_language == target_language:
        raise ValueError(
            f"`source_language` and `target_language` must be two of {', '.join(LANGUAGES)}. "
            f"Received: source_language={source_language!r}, target_language={target_language!r}."
        )
    file_stem = _FILE_STEMS[split]
    if tokenized:
        file_stem += _TOKENIZED
    files = [_multi30k_file(f"{file_stem}.{language}", folder, tokenized) for language in languages]
    pairs = read_text_pairs(*files)
    name = f"multi30k {split} {'-'.join(languages)}"
    if tokenized:
        name += ", tokenized"
    return TextPairs(pairs.sources, pairs.targets, name=name)


def _multi30k_file(name, folder, tokenized):
    folder = folder or _data_folder()
    if folder:
        return _find(name, folder, "Multi30k")
    if tokenized:
        return _download(f"{_MULTI30K}/tok", name, _SHA256[name], "Multi30k")
    name = f"{name}.gz"
    return _download(f"{_MULTI30K}/raw", name, _SHA256[name], "Multi30k")


def shakespeare_text(folder=None):
    """Reads tiny-shakespeare, 1,115,394 characters of plays in the public domain.

    Args:
        folder: Path of a folder with `input.txt`, or `input.txt.gz`, read as it is. Defaults to the
            environment variable `KERAS_ATTN_DATA`; where that is unset or empty, the file is downloaded once
            from the public repository karpathy/char-rnn into Keras' cache and checked against its SHA-256.

    Returns:
        `PlainText`.

    Raises:
        FileNotFoundError: If the folder lacks the file, or if the download fails.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import shakespeare_text

    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "input.txt").write_text("First Citizen:\\nBefore we proceed any further, hear me speak.\\n")
    assert shakespeare_text(folder).text.startswith("First Citizen")
    ```
    """
    folder = folder or _data_folder()
    if folder:
        file = _find("input.txt", folder, "tinyshakespeare")
    else:
        file = _download(_SHAKESPEARE, "input.txt", _SHAKESPEARE_SHA256, "tinyshakespeare")
    return PlainText(read_text(file), "tiny-shakespeare")


def _data_folder():
    """The folder for such files from the environment variable, or None."""
    return os.environ.get(FOLDER_VARIABLE) or None


def _find(name, folder, dataset):
    """The path of a file, or of its gzipped version, in a folder.

    Raises:
        FileNotFoundError: if neither exists.
    """
    candidates = [pathlib.Path(folder) / name, pathlib.Path(folder) / f"{name}.gz"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{dataset}'s `{name}` was not found. Looked for {' and '.join(map(str, candidates))}. Give the folder "
        f"that holds it, or give none and unset {FOLDER_VARIABLE} to download it."
    )


def _download(address, name, sha256, dataset):
    """The path of a file in Keras' cache, downloaded if it is not there, and checked.

    Raises:
        FileNotFoundError: if the download fails.
    """
    try:
        return keras.utils.get_file(
            fname=name,
            origin=f"{address}/{name}",
            file_hash=sha256,
            hash_algorithm="sha256",
            cache_subdir=f"datasets/{dataset.lower()}",
        )
    # `get_file` raises a bare `Exception` where an address does not answer.
    except Exception as error:
        raise FileNotFoundError(
            f"{dataset}'s `{name}` could not be downloaded ({error}). Download it by hand from {address}/{name} and give "
            f"its folder, as `folder` or in the environment variable {FOLDER_VARIABLE}."
        ) from error
