"""A checkpoint's folder becomes an image classifier that answers as transformers does, from the file to the scores."""

import importlib
import json

import keras
import numpy as np
import pytest
from helpers_images import encoded, opened, pixels

import keras_attn
from keras_attn import layers, models
from keras_attn.tasks import ImagePreprocessing, image_preprocessing
from keras_attn.tasks.image_preprocessing import processor_fields, read_preprocessing

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIZE = {"height": 28, "width": 28}
# name: the architecture's class, the fields of its config, the module of its processor in transformers, its fields
CASES = {
    "vit": ("ViT", {}, "vit", {"size": SIZE}),
    "deit": ("DeiT", {}, "deit", {"size": {"height": 32, "width": 33}, "crop_size": SIZE, **IMAGENET}),
    "swin": (
        "Swin",
        {"patch_size": 2, "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 3], "window_size": 3},
        "vit",
        {"size": SIZE, "resample": 3},
    ),
    "dinov2": ("Dinov2", {}, "bit", {"size": {"shortest_edge": 32}, "crop_size": SIZE}),
}
# ImageNet has two cranes.
CONFIG_LABELS = ["cat", "dog", "crane", "crane", "é"]
LABELS = ["cat", "dog", "crane", "crane (3)", "é"]


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory):
    """The folder, transformers' model and its processor."""
    import torch
    import transformers

    name, fields, module, of_processor = CASES[request.param]
    sizes = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "patch_size": 7,
        "image_size": 28,
    }
    config = getattr(transformers, f"{name}Config")(
        **({"image_size": 28} if name == "Swin" else sizes), **fields
    )
    config.id2label, config.label2id = dict(enumerate(CONFIG_LABELS)), {}
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    try:
        processors = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    except ImportError:
        pytest.skip("transformers 5 has image processors of Pillow in these modules")
    kind = {"vit": "ViT", "deit": "DeiT", "bit": "Bit"}[module]
    processor = getattr(processors, f"{kind}ImageProcessorPil")(**of_processor)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder, model, processor


@pytest.mark.extended
def test_scores_are_those_of_transformers(checkpoint):
    import torch

    folder, model, processor = checkpoint
    task = keras_attn.load(folder)
    assert task.labels == tuple(LABELS)
    for content in (encoded(pixels(61, 89)), encoded(pixels(300, 200), "JPEG"), encoded(pixels(37, 41, 1))):
        inputs = processor(images=opened(content).convert("RGB"), return_tensors="pt")
        expected = np.moveaxis(inputs["pixel_values"][0].numpy(), 0, -1)
        difference = np.abs(task.preprocessing.decoded(content) - expected) * task.preprocessing.std * 255
        assert difference.max() < 1.01  # levels
        assert np.mean(difference > 0.1) < 0.01
        with torch.no_grad():
            scores = model(**inputs).logits[0].softmax(-1).numpy()
        labels, found = task(content, top_k=5, return_scores=True)
        np.testing.assert_allclose(found, np.sort(scores)[::-1], rtol=0, atol=2e-3)
        assert labels[0] == LABELS[int(scores.argmax())]


@pytest.mark.extended
def test_a_checkpoint_is_exported_and_verified_by_the_command(checkpoint, tmp_path, capsys):
    import keras_attn_cli
    from keras_attn import cli

    folder, *_ = checkpoint
    arguments = ["export", str(folder), str(tmp_path / "served"), "--verify"]
    assert cli.run(keras_attn_cli.make_parser().parse_args(arguments)) == 0
    printed = capsys.readouterr().out
    assert "FAILED" not in printed
    assert "ok      answers" in printed
    assert cli.run(keras_attn_cli.make_parser().parse_args([*arguments[:3], "--xla"])) != 0
    assert "An image classifier is exported without `xla`." in capsys.readouterr().err


@pytest.mark.extended
def test_a_new_head_is_put_on_a_checkpoint(checkpoint):
    folder, *_ = checkpoint
    task = keras_attn.ImageClassifier.from_checkpoint(folder, ["left", "right", "neither"])
    assert task.preprocessing == keras_attn.load(folder).preprocessing
    assert task(pixels(31, 23)) in ("left", "right", "neither")
    body = keras_attn.load(folder).model.encoder
    images = np.random.default_rng(1).normal(size=(2, 28, 28, 3)).astype("float32")
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(encoder(images)) for encoder in (task.model.encoder, body))
    )


@pytest.mark.extended
def test_it_goes_back_to_transformers(checkpoint, tmp_path):
    folder, *_ = checkpoint
    task = keras_attn.load(folder)
    task.export_model(tmp_path / "written", "huggingface")
    twin = keras_attn.load(tmp_path / "written")
    assert (twin.preprocessing, twin.labels) == (task.preprocessing, task.labels)
    image = pixels(61, 89)
    assert twin(image, top_k=5, return_scores=True) == task(image, top_k=5, return_scores=True)
    import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "written")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "written").eval()
    inputs = processor(images=opened(encoded(image)), return_tensors="pt")
    scores = model(**inputs).logits[0].softmax(-1).detach().numpy()
    np.testing.assert_allclose(
        np.sort(scores)[::-1], task(image, top_k=5, return_scores=True)[1], rtol=0, atol=2e-3
    )


def test_a_classifier_of_grey_images_goes_out(tmp_path):
    import transformers
    from PIL import Image

    sizes = {"image_size": 8, "patch_size": 2, "num_layers": 2, "hidden_dim": 16, "num_heads": 2}
    encoder = models.VisionTransformer.from_sizes(**sizes, intermediate_dim=32, num_channels=1)
    model = models.EncoderWithHead(encoder, layers.ImageClassificationHead(3))
    preprocessing = ImagePreprocessing((8, 8), num_channels=1, mean=0.4, std=0.3)
    task = keras_attn.ImageClassifier(model, preprocessing, ["a", "b", "c"])
    task.export_model(tmp_path / "written", "huggingface")
    image = pixels(8, 8)[..., 0]
    again = keras_attn.load(tmp_path / "written")
    expected = task(image, top_k=3, return_scores=True)
    assert again(image, top_k=3, return_scores=True) == expected
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "written", backend="pil")
    twin = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "written").eval()
    inputs = processor(images=Image.fromarray(image), return_tensors="pt")
    scores = twin(**inputs).logits[0].softmax(-1).detach().numpy()
    np.testing.assert_allclose(np.sort(scores)[::-1], expected[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"), [({"antialias": False}, "resize with antialias. Received: antialias=False")]
)
def test_what_transformers_does_not_do_is_not_written(options, message):
    with pytest.raises(ValueError, match=message):
        processor_fields(ImagePreprocessing((7, 5), **options))


# What the hub's files hold: the first ones are of 2021, with integers and without a class.
FILES = {
    "google/vit-base-patch16-224": (
        "vit",
        {
            "do_normalize": True,
            "do_resize": True,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "size": 224,
        },
        ImagePreprocessing((224, 224), mean=0.5, std=0.5),
    ),
    "facebook/deit-base-distilled-patch16-224": (
        "deit",
        {
            "crop_size": 224,
            "do_center_crop": True,
            "do_normalize": True,
            "do_resize": True,
            "feature_extractor_type": "DeiTFeatureExtractor",
            "resample": 3,
            "size": 256,
            **IMAGENET,
        },
        ImagePreprocessing(
            (224, 224), 3, (256, 256), "bicubic", mean=IMAGENET["image_mean"], std=IMAGENET["image_std"]
        ),
    ),
    "microsoft/swin-tiny-patch4-window7-224": (
        "swin",
        {
            "do_normalize": True,
            "do_resize": True,
            "feature_extractor_type": "ViTFeatureExtractor",
            "resample": 3,
            "size": 224,
            **IMAGENET,
        },
        ImagePreprocessing(
            (224, 224), interpolation="bicubic", mean=IMAGENET["image_mean"], std=IMAGENET["image_std"]
        ),
    ),
    "facebook/dinov2-base": (
        "dinov2",
        {
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_processor_type": "BitImageProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 256},
            **IMAGENET,
        },
        ImagePreprocessing(
            (224, 224), 3, 256, "bicubic", mean=IMAGENET["image_mean"], std=IMAGENET["image_std"]
        ),
    ),
    "neither scaled nor normalised": (
        "vit",
        {"size": SIZE, "do_rescale": False, "do_normalize": False, "resample": 0},
        ImagePreprocessing((28, 28), interpolation="nearest", scale=1),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_hub_are_understood(name, tmp_path):
    model_type, content, expected = FILES[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    assert read_preprocessing(tmp_path, {"model_type": model_type}) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"do_resize": None}, "asks for images of sizes of their own.*do_resize=None"),
        ({"resample": None}, "resample=None"),
        ({"image_mean": None}, ""),
        ({"image_processor_type": "CLIPImageProcessor"}, "its processor must be one of ViTImageProcessor"),
        (
            {"do_resize": False},
            "asks for images of sizes of their own.*do_resize=False.*--ignored-fields do_resize",
        ),
        ({"resample": 5}, "asks for another filter.*resample=5.*--ignored-fields resample"),
        (
            {"do_pad": True, "pad_size": {"height": 300, "width": 300}},
            "asks for margins.*--ignored-fields pad_size",
        ),
        ({"do_center_crop": True}, "a crop must have a size"),
        ({"size": {"longest_edge": 224}}, "a size must have a height and a width, or a shortest edge"),
        ({"size": {"shortest_edge": 224}}, "an image that keeps its aspect ratio must be cropped"),
        ({"do_center_crop": True, "crop_size": 256}, "`resize_to` must be at least `image_size`"),
        ({"image_std": [0.5, 0.5]}, "`std` must be a number, or one for each of 3 channels"),
    ],
)
def test_what_is_not_understood_is_refused(content, message, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"preprocessor_config.json cannot be used: .*{message}"):
        read_preprocessing(tmp_path, {"model_type": "vit"})


# Values that change the pixels of a ViT's, and those that change none.
CHANGING = {
    "do_resize": {"do_resize": True},
    "null": {"do_rescale": None, "do_center_crop": None, "do_convert_rgb": None},
    "size": {"size": [32, 28]},
    "default_to_square": {"size": 32, "default_to_square": False, "do_center_crop": True, "crop_size": 28},
    "do_center_crop": {"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": [24, 28]},
    "crop_size": {"size": [40, 41], "do_center_crop": True, "crop_size": 28},
    "resample": {"resample": 1},
    "do_rescale": {"do_rescale": False},
    "rescale_factor": {"rescale_factor": 0.01},
    "do_normalize": {"do_normalize": False},
    "image_mean": {"image_mean": [0.1, 0.2, 0.3]},
    "image_std": {"image_std": 0.25},
    "pad_size": {"pad_size": {"height": 300, "width": 300}, "do_pad": False},
    "others": {"do_pad": True, "do_convert_rgb": False, "crop_pct": 0.875, "do_reduce_labels": True},
}
SAME = ("do_resize", "pad_size", "others")


@pytest.mark.parametrize("name", CHANGING)
def test_a_field_changes_pixels_as_there(name, tmp_path):
    import transformers

    fields = {"image_processor_type": "ViTImageProcessor", "size": SIZE, **CHANGING[name]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    preprocessing = read_preprocessing(tmp_path, {"model_type": "vit"})
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = pixels(61, 89)
    expected = processor(images=opened(encoded(image)), return_tensors="np")["pixel_values"][0]
    actual = preprocessing(image).numpy()
    step = np.abs(np.asarray(preprocessing.scale) / preprocessing.std)  # a level
    assert (np.abs(actual - np.moveaxis(expected, 0, -1)) / step).max() < 1.01
    assert (preprocessing == ImagePreprocessing((28, 28), mean=0.5, std=0.5)) == (name in SAME)


def test_every_field_of_the_processors_is_known():
    import transformers

    for kind in ("ViT", "DeiT", "Bit"):
        fields = set(getattr(transformers, f"{kind}ImageProcessor").valid_kwargs.__annotations__)
        assert fields == {*CHANGING, *image_preprocessing.WITHOUT_EFFECT} - {"others", "null"}


def test_a_field_of_the_file_can_be_ignored(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": SIZE, "resample": 5}))
    expected = ImagePreprocessing((28, 28), mean=0.5, std=0.5)
    assert read_preprocessing(tmp_path, {"model_type": "vit"}, ["resample"]) == expected


def test_a_folder_without_the_file_says_what_to_give(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"Give `preprocessing=`, a keras_attn.tasks.ImagePreprocessing"
    ):
        read_preprocessing(tmp_path, {"model_type": "vit"})
