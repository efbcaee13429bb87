"""Data files that are not part of the library: in a folder, or downloaded once and checked."""

import os
import pathlib

import keras

FOLDER_VARIABLE = "KERAS_ATTN_DATA"


def data_folder():
    """The folder for such files from the environment variable, or None."""
    return os.environ.get(FOLDER_VARIABLE) or None


def find(name, folder, dataset):
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


def download(address, sha256, dataset):
    """The path of a file in Keras' cache, downloaded if it is not there, and checked.

    Raises:
        FileNotFoundError: if the download fails.
    """
    name = address.rpartition("/")[2]
    try:
        return keras.utils.get_file(
            fname=name,
            origin=address,
            file_hash=sha256,
            hash_algorithm="sha256",
            cache_subdir=f"datasets/{dataset.lower()}",
        )
    # `get_file` raises a bare `Exception` where an address does not answer.
    except Exception as error:
        raise FileNotFoundError(
            f"{dataset}'s `{name}` could not be downloaded ({error}). Download it by hand from {address} and give "
            f"its folder, as `folder` or in the environment variable {FOLDER_VARIABLE}."
        ) from error
