"""What the image processors of Hugging Face do, read from the file of a checkpoint."""

import numbers
import re

from keras_attn.files import read_json
from keras_attn.huggingface.config_fields import not_obeyed
from keras_attn.huggingface.dry_run import note_without_effect
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
_OBEYED = {*_OF_ALL, *_DEFAULTS["DeiT"], "default_to_square"}
# What the fields that are obeyed for some values ask for otherwise.
_REFUSED = {
    "do_resize": "images of sizes of their own, of which no batch can be made",
    "resample": "another filter than those of numbers 0 to 3",
    "pad_size": "margins around images",
}
# Fields of the class that change no pixel: they say how a call gives its result, or what is done here in any case.
WITHOUT_EFFECT = {
    *("do_convert_rgb", "data_format", "input_data_format", "return_tensors", "device", "disable_grouping"),
    *("image_seq_length", "do_pad"),
}
_OF_FILE = {"image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"}
# Pillow's numbers of resampling filters.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}


def read_preprocessing(folder, config, ignored_fields=()):
    """The `ImagePreprocessing` of a checkpoint's preprocessor_config.json.

    Args:
        folder: `pathlib.Path`.
        config: Dict, the content of config.json, for files that do not name their processor.
        ignored_fields: Names of fields that are taken for absent.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if its processor is not known, or it asks for what `ImagePreprocessing` does not do.
    """
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no {path}, which says how images are resized and normalised. Give `preprocessing=`, a "
            "keras_attn.tasks.ImagePreprocessing."
        )
    try:
        given = {name: value for name, value in read_json(path).items() if name not in ignored_fields}
        return _preprocessing(given, config.get("model_type"), config.get("num_channels", 3))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def processor_fields(preprocessing):
    """The content of a preprocessor_config.json with which transformers does the same, a dict.

    Raises:
        ValueError: if no processor of transformers does it.
    """
    if not preprocessing.antialias:
        raise ValueError(
            f"The image processors of transformers resize with antialias. Received: antialias={preprocessing.antialias}."
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
        # Theirs make no grey of colours: grey images stay so, and others have too many channels for the model.
        "do_convert_rgb": preprocessing.num_channels == 3,
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
    fields |= given  # a null stands for nothing to do, and not for the default
    note_without_effect(PREPROCESSOR_FILE, sorted(set(fields) - _OBEYED - _OF_FILE - {"pad_size"}))
    is_refused = {
        "do_resize": not fields["do_resize"],
        "resample": fields["resample"] not in _INTERPOLATIONS,
        # Without a size, the images of a batch are padded to that of the largest: all have one here.
        "pad_size": bool(fields.get("do_pad")) and fields.get("pad_size") is not None,
    }
    for name, meaning in _REFUSED.items():
        if is_refused[name]:
            raise ValueError(not_obeyed(PREPROCESSOR_FILE, name, fields[name], meaning))
    is_square = fields.get("default_to_square", _kind(given, model_type) != "Bit")
    resize_to = _size(fields["size"], of_shorter_side=not is_square)
    is_cropped = fields.get("do_center_crop", False)
    if is_cropped and "crop_size" not in fields:
        raise ValueError("a crop must have a size. Received: do_center_crop=True, and no crop_size.")
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
    if isinstance(value, list) and len(value) == 2:
        return tuple(value)
    if isinstance(value, dict) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        return value["shortest_edge"]
    raise ValueError(f"a size must have a height and a width, or a shortest edge. Received: {value!r}.")
