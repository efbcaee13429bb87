"""What an export holds beside its graph: warm-up requests, batching parameters, and a README that is true."""

import io
import itertools
import json
import shlex
import urllib.request

import numpy as np
import pytest
from helpers_markdown import code_blocks
from helpers_translators import EXAMPLES, SENTENCES

from keras_attn.export import (
    read_batching_parameters,
    read_warmup_requests,
    read_xla_buckets,
    run_saved_model,
)
from keras_attn.export.saved_model_runner import to_json
from keras_attn.tasks import Translator

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def blocks(exported):
    _, folder = exported
    return list(code_blocks((folder / "README.md").read_text(encoding="utf-8")))


def test_each_signature_is_warmed_up_with_the_examples_and_neutral_values(exported):
    translator, folder = exported
    requests = dict(read_warmup_requests(folder))
    assert set(requests) == {"serving_default", "translate_n_best", "translate", "sample", "score", "encode"}
    for inputs in requests.values():
        assert [text.decode() for text in inputs["inputs"]] == EXAMPLES
    assert [text.decode() for text in requests["score"]["targets"]] == translator(EXAMPLES)
    np.testing.assert_array_equal(
        requests["translate"]["length_penalty"], np.full(3, translator.length_penalty, "float32")
    )
    np.testing.assert_array_equal(requests["translate"]["stop_token_ids"], np.full((3, 8), -1, "int32"))
    assert requests["sample"]["top_p"].tolist() == [1.0] * 3


def test_the_batching_parameters_say_what_the_readme_says(exported):
    _, folder = exported
    most = read_batching_parameters(folder)["max_batch_size"]
    assert f"a request has at most {most} texts" in (folder / "README.md").read_text(encoding="utf-8")


def test_it_is_no_version_for_xla(exported):
    assert read_xla_buckets(exported[1]) is None


def rest_request(body):
    """What the server makes of a REST request: columns of the rows, with the names of the inputs."""
    rows = [row if isinstance(row, dict) else {"inputs": row} for row in body["instances"]]
    inputs = {name: [row[name] for row in rows] for name in rows[0]}
    return {"signature": body.get("signature_name", "serving_default"), "inputs": inputs}


def rest_predictions(outputs):
    if list(outputs) == ["outputs"]:
        return outputs["outputs"]
    return [dict(zip(outputs, row)) for row in zip(*outputs.values())]


def assert_alike(shown, answered):
    """Equal, numbers to four digits; of long lists of numbers the first three are shown."""
    if isinstance(shown, list):
        if shown[-1:] == ["..."]:
            assert len(answered) > 8
            shown, answered = shown[:-1], answered[:3]
        assert len(shown) == len(answered)
        for one, other in zip(shown, answered):
            assert_alike(one, other)
    elif isinstance(shown, dict):
        assert set(shown) == set(answered)
        for name in shown:
            assert_alike(shown[name], answered[name])
    elif isinstance(shown, float):
        assert answered == pytest.approx(shown, rel=1e-4)
    else:
        assert shown == answered


@pytest.fixture(scope="module")
def url(exported):
    return f"http://localhost:8501/v1/models/{exported[1].parent.name}:predict"


@pytest.fixture(scope="module")
def shown(blocks, url):
    """The requests of the README as the server makes them of REST, and the predictions that it shows for them."""
    pairs = []
    for request, answer in itertools.pairwise(blocks):
        if request.language == "bash" and answer.language == "json":
            program, option, body, asked = shlex.split(request.code)
            assert (program, option, asked) == ("curl", "-d", url)
            pairs.append((rest_request(json.loads(body)), json.loads(answer.code)["predictions"]))
    return pairs


@pytest.fixture(scope="module")
def answers(exported, shown):
    """What the export answers to the README's requests, to the first example alone, and to one of the warm-up."""
    _, folder = exported
    warmup = dict(read_warmup_requests(folder))["translate"]
    requests = [
        *(request for request, _ in shown),
        {"signature": "serving_default", "inputs": {"inputs": EXAMPLES[:1]}},
        {"signature": "translate", "inputs": {name: to_json(array) for name, array in warmup.items()}},
    ]
    return [answer["outputs"] for answer in run_saved_model(folder, requests)]


def test_every_request_in_the_readme_gets_the_answer_shown(shown, answers):
    assert [request["signature"] for request, _ in shown] == ["serving_default", "translate", "score"]
    for (_, predictions), outputs in zip(shown, answers):
        assert_alike(predictions, rest_predictions(outputs))


def test_the_warmup_with_neutral_values_gives_the_default_answer(exported, answers):
    translator, _ = exported
    assert [texts[0] for texts in answers[-1]["outputs"]] == translator(EXAMPLES)


def test_the_python_of_the_readme_prints_what_it_says(exported, blocks, answers, url, monkeypatch, capsys):
    _, folder = exported

    def server(asked, body):
        assert asked == url
        assert json.loads(body) == {"instances": EXAMPLES[:1]}
        return io.BytesIO(json.dumps({"predictions": rest_predictions(answers[-2])}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", server)
    monkeypatch.chdir(folder)
    codes = [block.code for block in blocks if block.language == "python"]
    assert len(codes) == 2
    for code in codes:
        exec(code, {})
        assert capsys.readouterr().out.strip() == code.rpartition("  # ")[2].strip()


def test_the_readme_tells_signatures_and_limits(exported):
    translator, folder = exported
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {folder.parent.name}\n")
    for row in (
        *(f"### `{name}`: {signature.meaning}\n" for name, signature in Translator.signatures.items()),
        f"| input `length_penalty` | float32 (B,) | `{translator.length_penalty}` | the power of its length",
        "| input `stop_token_ids` | int32 (B, 8) | `[-1, -1, -1, -1, -1, -1, -1, -1]` | ids that end",
        "| input `top_p` | float32 (B,) | `1.0` | the probability",
        "| input `targets` | string (B,) |  | their translations |",
        "| output `alignment` | int32 (B, any) | | the number of the source token",
        f"A source has at most {translator.model.max_sequence_length} tokens",
        f"A translation has at most {translator.max_length} tokens",
        f"{translator.num_beams} beams",
        f"{translator.target_tokenizer.vocabulary_size} ids (target)",
    ):
        assert row in readme
    assert f"| output `scores` | float32 (B, {translator.num_beams}) |" in readme


@pytest.mark.slow
def test_sixty_four_clients_get_what_one_gets(exported):
    translator, folder = exported
    texts = [" ".join(SENTENCES[row % 5].split()[: 1 + row % 7]) for row in range(35)]
    expected = dict(zip(texts, translator(texts)))
    batches = [[texts[(row * 11 + i) % 35] for i in range(row % 4)] for row in range(640)]
    requests = [{"inputs": {"inputs": batch}} for batch in batches]
    answers = run_saved_model(folder, requests, timeout=500, threads=64)
    for batch, answer in zip(batches, answers, strict=True):
        assert answer["outputs"]["outputs"] == [expected[text] for text in batch]


@pytest.mark.parametrize("examples", [[], [""], ["a", "  "], [b"a"], "abc\n"])
def test_examples_must_be_texts(exported, tmp_path, examples):
    translator, _ = exported
    with pytest.raises(ValueError, match="`examples` must be "):
        translator.export(tmp_path / "it", examples)
    assert not list(tmp_path.iterdir())
