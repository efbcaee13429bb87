"""What the image processors of Hugging Face do, read from the file of a checkpoint."""

import numbers
import re

from keras_attn.files import read_json
from keras_attn.tasks.image_preprocessing import ImagePreprocessing

PREPROCESSOR_FILE = "preprocessor_config.json"

# What an image processor does where its file says nothing, by the beginning of its class's name.
_DEFAULTS = {
    "ViT": {"size": 224, "resample": 2, "image_mean": 0.5, "image_std": 0.5},
    "DeiT": {
        "size": 256,
        "resample": 3,
        "do_center_crop": True,
        "crop_size": 224,
        "image_mean": 0.5,
        "image_std": 0.5,
    },
    "Bit": {
        "size": {"shortest_edge": 224},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": 224,
        # OPENAI_CLIP_MEAN and OPENAI_CLIP_STD of transformers
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}
_OF_ALL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
# The processor of old files, which do not name one.
_OF_MODEL_TYPES = {
    "vit": "ViT",
    "deit": "DeiT",
    "swin": "ViT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
}
# Fields that say how a call gives its result, or what is done here in any case.
_WITHOUT_MEANING = {
    *("image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"),
    *(
        "data_format",
        "input_data_format",
        "return_tensors",
        "device",
        "disable_grouping",
        "default_to_square",
    ),
    "do_convert_rgb",
}
# Pillow's numbers of resampling filters.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}


def read_preprocessing(folder, config):
    """The `ImagePreprocessing` of a checkpoint's preprocessor_config.json.

    Args:
        folder: `pathlib.Path`.
        config: Dict, the content of config.json, for files that do not name their processor.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds what is not known, or what `ImagePreprocessing` does not do.
    """
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no {path}, which says how images are resized and normalised. Give `preprocessing=`, a "
            "keras_attn.tasks.ImagePreprocessing."
        )
    try:
        return _preprocessing(read_json(path), config.get("model_type"), config.get("num_channels", 3))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def processor_fields(preprocessing):
    """The content of a preprocessor_config.json with which transformers does the same, a dict.

    Raises:
        ValueError: if no processor of transformers does it.
    """
    if not preprocessing.antialias or preprocessing.num_channels == 1:
        raise ValueError(
            "The image processors of transformers resize with antialias, and make no grey of colours. Received: "
            f"antialias={preprocessing.antialias}, num_channels={preprocessing.num_channels}."
        )
    height, width = preprocessing.resize_to if isinstance(preprocessing.resize_to, tuple) else (None, None)
    size = (
        {"shortest_edge": preprocessing.resize_to} if height is None else {"height": height, "width": width}
    )
    is_cropped = preprocessing.resize_to != preprocessing.image_size
    kind = "Bit" if height is None else "DeiT" if is_cropped else "ViT"
    crop = dict(zip(("height", "width"), preprocessing.image_size))
    (number,) = (n for n, name in _INTERPOLATIONS.items() if name == preprocessing.interpolation)
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": number,
        **({"do_center_crop": True, "crop_size": crop} if is_cropped else {}),
        "do_rescale": True,
        "rescale_factor": preprocessing.scale,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }


def _preprocessing(given, model_type, num_channels):
    fields = {**_OF_ALL, **_DEFAULTS[_kind(given, model_type)]}
    fields |= {name: value for name, value in given.items() if value is not None}
    unknown = {
        name: value
        for name, value in fields.items()
        if name not in {*_OF_ALL, *_DEFAULTS["DeiT"], *_WITHOUT_MEANING} and value is not False
    }
    if unknown:
        raise ValueError(f"it has fields that are not known: {unknown}.")
    if not fields["do_resize"]:
        raise ValueError(
            "images must be resized, so that a batch of them has one size. Received: do_resize=False."
        )
    if fields["resample"] not in _INTERPOLATIONS:
        raise ValueError(
            f"`resample` must be one of {_INTERPOLATIONS}. Received: resample={fields['resample']!r}."
        )
    is_bit = _kind(given, model_type) == "Bit"
    resize_to = _size(fields["size"], of_shorter_side=is_bit)
    is_cropped = fields.get("do_center_crop", False)
    image_size = _size(fields["crop_size"]) if is_cropped else resize_to
    if isinstance(image_size, int):
        raise ValueError(
            "an image that keeps its aspect ratio must be cropped. Received: do_center_crop=False."
        )
    is_normalised = fields["do_normalize"]
    return ImagePreprocessing(
        image_size,
        num_channels,
        resize_to,
        _INTERPOLATIONS[fields["resample"]],
        scale=fields["rescale_factor"] if fields["do_rescale"] else 1.0,
        mean=fields["image_mean"] if is_normalised else 0.0,
        std=fields["image_std"] if is_normalised else 1.0,
    )


def _kind(given, model_type):
    """The key in `_DEFAULTS` of a processor."""
    name = given.get("image_processor_type") or given.get("feature_extractor_type")
    if name is None:
        kind = _OF_MODEL_TYPES.get(model_type)
    else:
        kind = re.sub(r"(FeatureExtractor|ImageProcessor)(Fast|Pil)?$", "", str(name))
    if kind not in _DEFAULTS:
        raise ValueError(
            f"its processor must be one of {', '.join(f'{kind}ImageProcessor' for kind in _DEFAULTS)}. "
            f"Received: {name!r}."
        )
    return kind


def _size(value, of_shorter_side=False):
    """(height, width), or the length of the shorter side as an integer."""
    if isinstance(value, numbers.Integral):
        return int(value) if of_shorter_side else (int(value), int(value))
    if isinstance(value, dict) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        return value["shortest_edge"]
    raise ValueError(f"a size must have a height and a width, or a shortest edge. Received: {value!r}.")
