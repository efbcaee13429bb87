"""Tasks of images from a checkpoint's folder."""

from keras_attn.huggingface import labels, load_model
from keras_attn.tasks.image_classifier import ImageClassifier
from keras_attn.tasks.image_processors import read_preprocessing


def image_classifier(folder, config, preprocessing=None, **of_loading):
    """The `ImageClassifier` of a model for image classification, with the labels of its config.

    Args:
        folder: `pathlib.Path`.
        config: Dict, the content of its config.json.
        preprocessing: `ImagePreprocessing`; by default what preprocessor_config.json says.
        **of_loading: `dtype` and `ignored_fields`, as in `keras_attn.huggingface.load_model`; fields of
            preprocessor_config.json may be ignored too.
    """
    found = labels(config)
    return ImageClassifier(
        load_model(folder, **of_loading),
        preprocessing or read_preprocessing(folder, config, of_loading.get("ignored_fields", ())),
        found.names,
        multi_label=found.is_multi_label,
        activation="linear" if config.get("problem_type") == "regression" else None,
    )
