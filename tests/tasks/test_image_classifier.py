"""Images in, labels out: in Python, from a folder, in an export and over REST."""

import base64
import json
import subprocess
import urllib.request

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_images import HEIGHT, LABELS, WIDTH, encoded, image_classifier, linear_model, pixels, png_header
from helpers_markdown import code_blocks
from helpers_marks import extended_but
from helpers_serving import running
from PIL import Image

import keras_attn
from keras_attn.export import read_warmup_requests, run_saved_model, verify_saved_model
from keras_attn.layers import ImageClassificationHead
from keras_attn.models import EncoderWithHead, VisionTransformer
from keras_attn.tasks import ImagePreprocessing

IMAGES = [pixels(31, 23, seed=1), pixels(11, 40, seed=2), pixels(7, 5, seed=3)]
GOOD = [encoded(IMAGES[0]), encoded(IMAGES[1], "JPEG"), encoded(IMAGES[2])]
# What no row may fail for: damaged, empty, text, other formats, and headers of images that would fill the memory.
BAD = {
    "half a PNG": GOOD[0][: len(GOOD[0]) // 2],
    "half a JPEG": GOOD[1][: len(GOOD[1]) // 2],
    "nothing": b"",
    "text": b"4th of July 2016",
    "JPEG's first bytes": b"\xff\xd8\xff",
    "PNG's first bytes": b"\x89PNG\r\n\x1a\n",
    "a GIF": encoded(Image.fromarray(IMAGES[0]).quantize(17), "GIF"),
    "a PNG of no size": png_header(0, 0),
}
LARGE = {
    "too many pixels": png_header(30_000, 30_000),
    "the largest header": png_header(2**32 - 1, 2**32 - 1),
}


def expected_scores(model, image):
    """Of `linear_model`, in float64; Pillow resizes."""
    resized = np.asarray(Image.fromarray(image).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)) / 255.0
    kernel, bias = (np.asarray(weight, "float64") for weight in model.weights)
    logits = resized.reshape(-1) @ kernel + bias
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def test_answers_are_those_of_the_model_on_the_resized_pixels():
    classifier = image_classifier()
    labels, scores = classifier(IMAGES, top_k=3, return_scores=True)
    for image, of_labels, of_scores in zip(IMAGES, labels, scores):
        expected = expected_scores(classifier.model, image)
        order = np.argsort(-expected)
        assert of_labels == [LABELS[number] for number in order]
        # One level of 255 may differ from Pillow's in few pixels.
        np.testing.assert_allclose(of_scores, expected[order], atol=0.03)
    exact = expected_scores(classifier.model, IMAGES[2])  # is not resized
    np.testing.assert_allclose(scores[2], np.sort(exact)[::-1], rtol=1e-5)


def test_an_image_is_bytes_or_a_path_or_an_array(tmp_path):
    classifier = image_classifier()
    path = tmp_path / "image.png"
    path.write_bytes(GOOD[0])
    label, score = classifier(IMAGES[0], return_scores=True)
    assert label in LABELS
    alpha = np.concatenate([IMAGES[0], IMAGES[0][..., :1]], axis=-1)
    same = [GOOD[0], path, str(path), IMAGES[0], alpha, tf.constant(IMAGES[0])]
    labels, scores = classifier(same, return_scores=True)
    assert labels == [label] * 6
    # A processor may sum in another order for another number of rows.
    np.testing.assert_allclose(scores, [score] * 6, rtol=1e-5)
    for image in same:
        assert classifier(image, return_scores=True) == (label, score)
    assert classifier(np.stack([IMAGES[0]] * 2)) == [label] * 2
    grey = IMAGES[0][..., 0]
    assert classifier(grey, return_scores=True) == classifier(
        np.stack([grey] * 3, axis=-1), return_scores=True
    )
    assert classifier(grey, return_scores=True) == classifier(grey[..., None], return_scores=True)
    assert classifier([]) == []


def test_batches_do_not_change_an_answer():
    classifier = image_classifier()
    alone = [classifier(content, top_k=3, return_scores=True) for content in GOOD]
    for batch_size in (1, 2, 64):
        labels, scores = classifier(
            GOOD * 3, top_k=3, return_scores=True, batch_size=batch_size, num_workers=2
        )
        for number, (of_label, of_score) in enumerate(zip(labels, scores)):
            assert of_label == alone[number % 3][0]
            np.testing.assert_allclose(of_score, alone[number % 3][1], rtol=1e-5)


def test_several_labels_an_image():
    classifier = image_classifier(multi_label=True)
    labels, scores = classifier(IMAGES, return_scores=True)
    every, all_scores = classifier(IMAGES, top_k=3, return_scores=True)
    for of_labels, of_scores, of_every, of_all in zip(labels, scores, every, all_scores):
        count = sum(score >= 0.5 for score in of_all)
        assert (of_labels, of_scores) == (of_every[:count], of_all[:count])
    assert classifier.default_answers(GOOD) == [",".join(of_labels) for of_labels in labels]
    assert len({len(of_labels) for of_labels in labels}) > 1


@pytest.mark.parametrize("kind", BAD)
def test_python_says_which_image_cannot_be_read(kind):
    classifier = image_classifier()
    with pytest.raises(
        ValueError, match=r"^Image 1 cannot be read: it is no JPEG or PNG file, or a damaged one.$"
    ):
        classifier([GOOD[0], BAD[kind], GOOD[1]])


@pytest.mark.parametrize("kind", LARGE)
def test_python_says_which_image_is_too_large(kind):
    with pytest.raises(ValueError, match=r"^The image has too many pixels."):
        image_classifier()(LARGE[kind])


def test_a_thin_image_does_not_grow_beyond_the_limit():
    classifier = image_classifier(ImagePreprocessing((HEIGHT, WIDTH), resize_to=256))
    with pytest.raises(ValueError, match="too many pixels"):
        classifier(np.zeros((1, 20_000), "uint8"))
    assert classifier(np.zeros((20, 3), "uint8")) in LABELS


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((7, 5, 3), "float32"), r"must be uint8 .* Received: float32 \(7, 5, 3\)"),
        (np.zeros((7, 5, 2), "uint8"), r"Received: uint8 \(7, 5, 2\)"),
        (np.zeros((0, 5, 3), "uint8"), r"Received: uint8 \(0, 5, 3\)"),
        (np.zeros((1, 7, 5, 2), "uint8"), r"Received: uint8 \(7, 5, 2\)"),
        (np.zeros(7, "uint8"), r"Received: uint8 \(7,\)"),
        (7, "`images` must be an image or a list of images. Received: int"),
        (
            [7],
            "An image must be the bytes of a JPEG or PNG file, the path of one, or a uint8 array. Received: int",
        ),
        ([Image.fromarray(IMAGES[0])], "Received: Image"),
    ],
)
def test_other_things_than_images_are_refused(image, message):
    with pytest.raises(ValueError, match=message):
        image_classifier()(image)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        image_classifier()("nothing.png")


def unbuilt():
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])


def two_outputs():
    inputs = keras.Input((HEIGHT, WIDTH, 3))
    flat = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, [keras.layers.Dense(3)(flat), keras.layers.Dense(2)(flat)])


@pytest.mark.parametrize(
    ("make", "labels", "options", "message"),
    [
        (
            linear_model,
            ["a", "b"],
            {},
            "`labels` must be 3 different strings, one for each logit. Received: 2,",
        ),
        (
            linear_model,
            ["a", "b", "b"],
            {},
            r"different strings, one for each logit. Received: 3, \['a', 'b', 'b'\]",
        ),
        (linear_model, "abc", {}, "`labels` must be a list of strings"),
        (linear_model, [1, 2, 3], {}, "`labels` must be a list of strings"),
        (linear_model, LABELS, {"activation": "relu"}, "`activation` must be one of"),
        (unbuilt, LABELS, {}, "`model` has no weights yet"),
        (two_outputs, LABELS, {}, r"`model` must give logits \(B, L\). Received: a model that gives"),
        (lambda: linear_model(num_channels=1), LABELS, {}, r"`model` must take images \(B, 7, 5, 3\)"),
        (lambda: "a model", LABELS, {}, "`model` must be a keras.Model. Received: str"),
    ],
)
def test_what_does_not_fit_is_refused(make, labels, options, message):
    with pytest.raises(ValueError, match=message):
        keras_attn.ImageClassifier(make(), ImagePreprocessing((HEIGHT, WIDTH)), labels, **options)


def test_preprocessing_is_no_size():
    with pytest.raises(ValueError, match=r"`preprocessing` must be a keras_attn.tasks.ImagePreprocessing."):
        keras_attn.ImageClassifier(linear_model(), (HEIGHT, WIDTH), LABELS)


def vision_classifier():
    encoder = VisionTransformer.from_sizes(
        (HEIGHT * 2, WIDTH * 2), (7, 5), 1, hidden_dim=12, num_heads=3, intermediate_dim=17
    )
    model = EncoderWithHead(encoder, ImageClassificationHead(3))
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    preprocessing = ImagePreprocessing(
        (HEIGHT * 2, WIDTH * 2), resize_to=17, interpolation="bicubic", mean=0.5, std=(0.5, 0.25, 0.125)
    )
    return keras_attn.ImageClassifier(model, preprocessing, LABELS, multi_label=True)


def convolutional_classifier():
    """A functional model, as Keras users write it: Keras' applications are such."""
    image = keras.Input((HEIGHT, WIDTH, 3))
    x = keras.layers.Conv2D(
        4, 3, activation="relu", kernel_initializer=keras.initializers.RandomNormal(seed=2)
    )(image)
    logits = keras.layers.Dense(3, kernel_initializer=keras.initializers.RandomNormal(seed=3))(
        keras.layers.Flatten()(x)
    )
    return keras_attn.ImageClassifier(keras.Model(image, logits), ImagePreprocessing((HEIGHT, WIDTH)), LABELS)


@pytest.mark.parametrize(
    "make", extended_but([vision_classifier], [image_classifier, vision_classifier, convolutional_classifier])
)
def test_a_folder_gives_the_task_back(make, tmp_path):
    task = make()
    task.save(tmp_path / "task")
    assert sorted(path.name for path in (tmp_path / "task").iterdir()) == [
        "image_classifier.json",
        "model.safetensors",
    ]
    twin = keras_attn.load(tmp_path / "task")
    assert type(twin) is keras_attn.ImageClassifier
    assert (twin.preprocessing, twin.labels) == (task.preprocessing, task.labels)
    assert (twin.multi_label, twin.activation) == (task.multi_label, task.activation)
    assert twin(IMAGES, top_k=3, return_scores=True) == task(IMAGES, top_k=3, return_scores=True)
    task.save(tmp_path / "task")  # replaces its own kind
    with pytest.raises(ValueError, match="exists and holds no image classifier"):
        task.save(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preprocessing", {"image_size": [7, 5], "code": "import os"}),
        ("preprocessing", {"image_size": [10**9, 10**9]}),
        ("preprocessing", None),
        ("options", {"labels": ["a", "b"], "multi_label": False, "activation": "softmax"}),
        ("options", {"labels": list(LABELS), "multi_label": False}),
    ],
)
def test_a_damaged_folder_is_refused(name, value, tmp_path):
    image_classifier().save(tmp_path / "task")
    path = tmp_path / "task" / "image_classifier.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, name: value}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"image_classifier.json cannot be read|`model` must take|`labels` must be"
    ):
        keras_attn.load(tmp_path / "task")


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["int8", "bfloat16"])
def test_quantised_copies_answer_nearly_the_same(mode):
    task = vision_classifier()
    plain = {}
    for labels, scores in zip(*task(IMAGES, top_k=3, return_scores=True)):
        plain |= dict(zip(labels, scores))
    copy = task.quantized(mode)
    for labels, scores in zip(*copy(IMAGES[2:], top_k=3, return_scores=True)):
        np.testing.assert_allclose(scores, [plain[label] for label in labels], atol=0.1)
    with pytest.raises(ValueError, match="no layer that can be stored in bfloat16"):
        image_classifier().quantized("bfloat16")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The task, and a version folder of it with examples of a user's own."""
    task = image_classifier()
    folder = tmp_path_factory.mktemp("served") / "pets"
    return task, task.export(folder, examples=[GOOD[0], IMAGES[1]])


def test_a_bad_row_of_an_export_has_a_status_and_leaves_its_batch_mates_alone(served):
    task, folder = served
    rows = [GOOD[0], *BAD.values(), *LARGE.values(), *GOOD[1:]]
    in_json = [{"b64": base64.b64encode(row).decode()} for row in rows]
    requests = [
        {"signature": "classify_images", "inputs": {"inputs": batch}}
        for batch in (in_json, in_json[:1], in_json[-1:], in_json[1:2], [])
    ]
    answers = [answer["outputs"] for answer in run_saved_model(folder, requests)]
    together, first, last, bad, none = answers
    statuses = ["image_not_decoded"] * len(BAD) + ["image_too_large"] * len(LARGE)
    assert together["status"] == ["ok", *statuses, "ok", "ok"]
    for row, alone in ((0, first), (-1, last), (1, bad)):
        assert together["labels"][row] == alone["labels"][0]
        np.testing.assert_allclose(together["scores"][row], alone["scores"][0], atol=1e-5)
    labels, scores = task(GOOD, top_k=3, return_scores=True)
    assert [together["labels"][row] for row in (0, -2, -1)] == labels
    np.testing.assert_allclose([together["scores"][row] for row in (0, -2, -1)], scores, rtol=1e-5)
    assert together["labels"][1:-2] == [[""] * 3] * len(statuses)
    assert together["scores"][1:-2] == [[0.0] * 3] * len(statuses)
    assert none == {"labels": [], "scores": [], "status": []}


@pytest.mark.extended
def test_an_export_that_answers_otherwise_is_found(served):
    task, folder = served
    (wrong,) = verify_saved_model(folder, task.verification_inputs(), lambda rows: ["zebra"] * len(rows))[-1:]
    # Its own examples, which its warm-up has, are wrong too.
    assert len(wrong.problems) >= len(task.verification_inputs())


def test_an_export_has_warmup_requests_of_its_examples(served):
    _, folder = served
    requests = read_warmup_requests(folder)
    assert {name for name, _ in requests} == {"serving_default", "classify_images"}
    assert all(inputs["inputs"][0] == GOOD[0] for _, inputs in requests)


def test_the_readme_of_an_export_sends_the_examples_that_lie_beside_it(served, monkeypatch, capsys):
    task, folder = served
    assert (folder / "example_0.png").read_bytes() == GOOD[0]
    blocks = list(code_blocks((folder / "README.md").read_text(encoding="utf-8")))
    answers = [json.loads(block.code)["predictions"] for block in blocks if block.language == "json"]
    assert answers[0] == task(IMAGES[:2])
    assert answers[1][0]["labels"] == task(IMAGES[0], top_k=3)
    commands = [block.code for block in blocks if block.language == "bash"]
    for command, answer in zip(commands, answers):
        # Only the shell's part of the command runs; the body goes where curl would send it.
        shown = command.replace("| curl -d @- http://localhost:8501/v1/models/pets:predict", "")
        child = subprocess.run(["bash", "-c", shown], cwd=folder, capture_output=True, text=True, check=True)
        body = json.loads(child.stdout)
        assert [base64.b64decode(row["b64"]) for row in body["instances"]] == [GOOD[0], task_png(1)][
            : len(answer)
        ]
    monkeypatch.chdir(folder)
    in_folder = next(block for block in blocks if "saved_model.load" in block.code)
    exec(in_folder.code, {})
    assert capsys.readouterr().out.strip() == str(answers[0][:1])


def task_png(number):
    """An array as a call turns it into a file."""
    return tf.io.encode_png(IMAGES[number], compression=1).numpy()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": []}, "`examples` must be images, one or more"),
        ({"examples": [GOOD[0], b"text"]}, "`examples` must be images. Number 1 is no JPEG or PNG"),
        ({"signatures": ["classify"]}, "`signatures` must be names among"),
        ({"quantization": "int4"}, "`quantization` must be one of"),
    ],
)
def test_wrong_arguments_of_an_export_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        image_classifier().export(tmp_path / "model", **options)
    assert not list(tmp_path.glob("model/*"))


def ask(port, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/pets:predict", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@pytest.mark.extended
def test_the_local_server_takes_images_in_base64(served):
    task, folder = served
    image, other = ({"b64": base64.b64encode(content).decode()} for content in GOOD[:2])
    with running([folder]) as (port, _):
        assert ask(port, {"instances": [image]}) == {"predictions": task(GOOD[:1])}
        assert ask(port, {"instances": [image, other]}) == {"predictions": task(GOOD[:2])}
        assert ask(port, {"instances": [{"inputs": other}]}) == {"predictions": task(GOOD[1:2])}
        assert ask(port, {"inputs": [other, image]}) == {"outputs": task(GOOD[1::-1])}
        assert ask(port, {"instances": ["no image", image]}) == {"predictions": ["", *task(GOOD[:1])]}
        (answer,) = ask(port, {"signature_name": "classify_images", "instances": [image]})["predictions"]
    labels, scores = task(GOOD[0], top_k=3, return_scores=True)
    assert (answer["labels"], answer["status"]) == (labels, "ok")
    np.testing.assert_allclose(answer["scores"], scores, rtol=1e-5)
