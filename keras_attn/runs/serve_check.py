from keras_attn.export import run_saved_model


def check_export(translator, version_folder, texts):
    """Compares the translations of an exported translator with those of the Python object.

    The export runs through TensorFlow's C library in a new process without Python TensorFlow and with XLA
    off, as TF Serving runs it.

    Args:
        translator: The `Translator` that was exported.
        version_folder: The path that `Translator.export` returned.
        texts: List of strings.

    Returns:
        The translations, a list of strings.

    Raises:
        RuntimeError: if the export fails, or its answers differ from the translator's.
    """
    (answer,) = run_saved_model(version_folder, [{"inputs": {"inputs": list(texts)}}])
    if "error" in answer:
        raise RuntimeError(f"The export in {version_folder} fails when it is run: {answer['error']}")
    served, expected = answer["outputs"]["outputs"], translator(list(texts))
    for text, one, other in zip(texts, served, expected):
        if one != other:
            raise RuntimeError(
                f"The export in {version_folder} translates {text!r} as {one!r}, Python as {other!r}."
            )
    return served
