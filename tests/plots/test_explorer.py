"""The explorer's page as a file: what its data say, how exactly, what is refused, and that nothing in it is markup."""

import base64
import hashlib
import html
import re

import keras
import ml_dtypes
import numpy as np
import pytest
from helpers_explorer import ExplorerParser, softmax_scores

import keras_attn
from keras_attn.plots import Explorer, explore
from keras_attn.plots.explorer_data import Encoded

WORDS = ["▁the", "▁tired", "▁dog", "▁sleep", "s"]
MARKUP = "</script><script>document.title='run'</script><img src=x onerror=document.title='run'>"


def parsed(*arguments, **options):
    return ExplorerParser(explore(*arguments, **options).html)


def bound(scores):
    """How far a decoded score may be from the true one, as the docstring and the page say."""
    return np.sqrt(scores.astype("float64")) / 255 + 1 / 260_100 + 1e-9


def test_every_score_is_on_the_page_to_within_the_error_that_it_states(rng):
    layers = {f"layer {number}": softmax_scores(rng, 3, 5, 5) for number in range(2)}
    layers["layer 1"][0, 0] = [1, 0, 0, 0, 0]
    page = parsed(layers, WORDS)
    assert page.data["kept"] is None
    for number, scores in enumerate(layers.values()):
        for head in range(3):
            decoded = (page.codes(f"0.0.{number}", head).reshape(5, 5) / 255.0) ** 2
            assert np.all(np.abs(decoded - scores[head]) <= bound(scores[head]))


def test_the_stated_error_is_no_larger_than_it_must_be():
    scores = np.linspace(0, 1, 2**16, dtype="float32").reshape(1, 2**8, 2**8)
    [[packed]] = Encoded([scores], 10**9).heads
    page = ExplorerParser(f'<script data-heads="0">{packed}</script>')
    decoded = (page.codes("0", 0).reshape(2**8, 2**8) / 255.0) ** 2
    relative = np.abs(decoded - scores[0]) / bound(scores[0])
    assert 0.9 < relative.max() <= 1


def test_large_maps_are_shown_less_exactly_before_scores_are_left_out(rng):
    tokens = [f"q{n}" for n in range(97)], [f"k{n}" for n in range(101)]
    scores = softmax_scores(rng, 2, 97, 101, sharpness=1.0)
    whole = explore({"layer": scores}, tokens)
    room = sum(len(head) for layer in whole._heads.values() for head in layer)
    page = parsed({"layer": scores}, tokens, max_megabytes=0.9 * room / 1e6)
    levels = page.data["levels"]
    assert page.data["kept"] is None
    assert 64 <= levels < 255
    for head in range(2):
        decoded = (page.codes("0.0.0", head).reshape(97, 101) / levels) ** 2
        allowed = np.sqrt(scores[head].astype("float64")) / levels + 1 / (2 * levels) ** 2 + 1e-9
        assert np.all(np.abs(decoded - scores[head]) <= allowed)


def decoded_sparse(codes, num_queries, kept, num_keys):
    codes, low, high = codes.reshape(3, num_queries, kept).astype(int)
    decoded = np.zeros((num_queries, num_keys))
    for query in range(num_queries):
        key = 0
        for place in range(kept):
            key += low[query, place] + 256 * high[query, place]
            if codes[query, place]:
                decoded[query, key] = (codes[query, place] / 255) ** 2
    return decoded


def test_large_maps_are_shown_by_the_largest_scores_of_each_query_and_their_share_is_stated(rng):
    num_queries, num_keys = 23, 307
    tokens = [f"q{n}" for n in range(num_queries)], [f"k{n}" for n in range(num_keys)]
    scores = softmax_scores(rng, 2, num_queries, num_keys)
    scores[0, 3] = 0  # a query that may look at nothing
    scores[0, 4] = np.eye(num_keys)[300]
    page = parsed({"layer": scores}, tokens, max_megabytes=0.003)
    kept = page.data["kept"]
    assert 8 <= kept < 64
    shares = []
    for head in range(2):
        decoded = decoded_sparse(page.codes("0.0.0", head), num_queries, kept, num_keys)
        for query in range(num_queries):
            row = scores[head, query]
            largest = np.sort(row)[-kept]
            is_kept = row >= largest
            expected = np.where(is_kept, row, 0)
            assert np.all(np.abs(decoded[query] - expected) <= bound(expected))
            shares.append(row[is_kept].astype("float64").sum() / row.sum() if row.sum() else 1)
    assert page.data["meanShare"] == pytest.approx(np.mean(shares), abs=1e-5)
    assert page.data["leastShare"] == pytest.approx(np.min(shares), abs=1e-5)
    assert page.data["leastShare"] < 0.99


def test_maps_that_do_not_fit_are_refused_with_what_to_do(rng):
    scores = softmax_scores(rng, 2, 101, 103)
    tokens = [str(n) for n in range(101)], [str(n) for n in range(103)]
    with pytest.raises(
        ValueError, match=r"do not fit into 0 MB, not even with 8 keys for each query\. Give fewer layers"
    ):
        explore({"layer": scores}, tokens, max_megabytes=0.001)
    with pytest.raises(
        ValueError, match=r"shows up to 2,048 tokens\. Received: 3 queries and 2,049 keys in 'layer'"
    ):
        explore({"layer": np.zeros((1, 3, 2049))}, (["a"] * 3, ["b"] * 2049))


def test_tokens_titles_and_names_are_data_and_never_markup():
    tokens = [MARKUP, "<!--", "</style>", "&lt;", '"\u2028', "\ud800"]
    scores = np.full((1, 6, 6), 1 / 6)
    explorer = explore({MARKUP: scores}, tokens, title=MARKUP, name=MARKUP)
    page = ExplorerParser(explorer.html)
    plain = ExplorerParser(explore({"a": scores}, list("abcdef"), title="t").html)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.data["groups"][0]["queries"] == tokens
    assert page.data["title"] == MARKUP
    assert page.of("title") == [MARKUP]
    [group] = page.data["groups"]
    assert group["paths"] == [MARKUP]
    frame = explorer._repr_html_()
    [(tag, attributes), *others] = ExplorerParser(frame).tags
    assert tag == "iframe"
    assert not others
    assert attributes["srcdoc"] == explorer.html
    assert attributes["sandbox"].split() == ["allow-scripts", "allow-downloads"]


def test_the_policy_lets_only_the_pages_own_script_and_style_in():
    page = parsed({"a": np.full((1, 2, 2), 0.5)}, ["a", "b"])
    [policy] = [given["content"] for tag, given in page.tags if given.get("http-equiv")]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    [script], [style] = page.of("script", data_explorer_script=True), page.of("style")
    for rule, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert rules["require-trusted-types-for"] == "'script'"
    fetched = [given[name] for _, given in page.tags for name in ("src", "href") if name in given]
    assert fetched == ["data:,"]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", style + script)
    # What could make markup of a text.
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script
    )


@pytest.mark.parametrize("pads", [(2, 0), (0, 2)])
def test_heads_have_the_same_kinds_wherever_the_pads_are(rng, pads):
    scores = softmax_scores(rng, 3, 5, 5)
    padded = np.pad(scores, [(0, 0), pads, pads])
    tokens = ["<pad>"] * pads[0] + WORDS + ["<pad>"] * pads[1]
    [expected, heads] = [
        parsed({"layer": maps}, words).data["groups"][0]["seen"][0][0]["heads"]
        for maps, words in ((scores, WORDS), (padded, tokens))
    ]
    assert heads == expected


def test_kinds_are_read_from_names_or_given(rng):
    source, target = ["▁a", "b", "</s>"], ["<s>", "▁x", "y", "z", "w"]
    maps = {
        "model/encoder/block/self": softmax_scores(rng, 2, 3, 3),
        "model/decoder/block/self": softmax_scores(rng, 2, 5, 5),
        "model/decoder/block/cross": softmax_scores(rng, 2, 5, 3),
    }
    by_name = parsed(maps, {"encoder": source, "decoder": target}).data
    assert [(group["kind"], group["paths"]) for group in by_name["groups"]] == [
        ("encoder", ["model/encoder/block/self"]),
        ("decoder", ["model/decoder/block/self"]),
        ("cross", ["model/decoder/block/cross"]),
    ]
    cross = by_name["groups"][2]
    assert (cross["queries"], cross["keys"], cross["isSelf"]) == (target, source, False)
    assert (cross["specialQueries"], cross["specialKeys"]) == ([0], [2])
    nested = {
        kind: {f"{kind} 1": scores} for kind, scores in zip(("encoder", "decoder", "cross"), maps.values())
    }
    written = [*target[1:], "</s>"]
    given = parsed(
        nested, {"encoder": source, "decoder": target, "cross": (written, source)}, special_tokens=["y"]
    ).data
    assert [group["paths"] for group in given["groups"]] == [["encoder 1"], ["decoder 1"], ["cross 1"]]
    assert given["groups"][2]["queries"] == written
    assert given["groups"][2]["specialQueries"] == [1]
    with pytest.raises(ValueError, match=r"name of each layer must hold encoder, decoder or cross.*'block'"):
        explore({"block": maps["model/encoder/block/self"]}, {"encoder": source})
    with pytest.raises(ValueError, match=r"`tokens` must hold the tokens of decoder"):
        explore(maps, {"encoder": source})


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"])
def test_maps_of_any_float_and_with_a_batch_of_one_are_taken(rng, dtype):
    scores = softmax_scores(rng, 1, 3, 5, 5).astype(dtype)
    page = parsed({"layer": scores}, WORDS)
    decoded = (page.codes("0.0.0", 2).reshape(5, 5) / 255.0) ** 2
    assert np.all(np.abs(decoded - scores[0, 2].astype("float64")) <= bound(scores[0, 2]))


def test_an_image_has_patches_and_is_shrunk_by_means():
    scores = np.full((2, 7, 7), 1 / 7)
    image = np.zeros((1000, 1500, 3), "uint8")
    image[::4, :, 1] = 100  # of each square of 4 x 4, one row
    page = parsed({"layer": scores}, image=image, grid=(2, 3))
    assert page.data["image"] | {"pixels": ""} == {
        "width": 375,
        "height": 250,
        "pixels": "",
        "rows": 2,
        "columns": 3,
    }
    [group] = page.data["groups"]
    assert group["queries"][:2] == ["[CLASS]", "row 1, column 1"]
    assert group["queries"][-1] == "row 2, column 3"
    assert group["specialKeys"] == [0]
    pixels = ExplorerParser(f'<script data-heads="0">{page.data["image"]["pixels"]}</script>').codes("0", 0)
    pixels = pixels.reshape(250, 375, 3)
    assert set(np.unique(pixels[..., 1])) == {25}
    assert not pixels[..., 0].any()
    for wrong, message in (
        ({"image": image, "grid": None}, "`grid` must be the rows and columns"),
        ({"image": np.zeros(5), "grid": (1, 1)}, r"`image` must have shape"),
        ({"image": np.full((4, 4), 2.0), "grid": (1, 1)}, r"floats from 0 to 1\. Received: float64 from 2"),
        ({"image": image, "grid": "22"}, r"`grid` must be the rows and columns.* Received: grid='22'"),
        ({"image": image, "grid": (3, 3)}, r"`grid` has 9 patches, more than the 7 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            explore({"layer": scores}, **wrong)


def test_a_shrunk_image_is_whole_so_that_patches_keep_their_places():
    """The border of two patches is at the same share of the page's image as of the given one, to within a pixel."""
    image = np.zeros((1000, 1303), "uint8")  # three pixels become one; one is left over in either direction
    image[500:] = 200
    image[:, 1000:] = 200
    page = parsed({"layer": np.full((1, 4, 4), 0.25)}, image=image, grid=(2, 2))
    pixels = page.pixels()[..., 0]
    assert pixels.shape == (334, 435)
    assert (pixels[:, 0] > 100).argmax() == pytest.approx(334 / 2, abs=1)
    assert (pixels[0] > 100).argmax() == pytest.approx(435 * 1000 / 1303, abs=1)
    assert set(pixels[-3:].ravel()) == set(pixels[:, -3:].ravel()) == {200}


def test_steps_and_beams_are_checked_and_kept(rng):
    maps = {"decoder": softmax_scores(rng, 1, 3, 3)}
    tokens = {"decoder": ["<s>", "a", "b"]}
    steps = [[("a", 0.75), ("b", 0.25)], [("b", 1)], [("</s>", np.float32(0.5))]]
    beams = [(["a", "b"], [-0.5, -0.25], -0.375)]
    data = parsed(maps, tokens, steps=steps, beams=beams).data
    assert data["steps"][0] == [["a", 0.75], ["b", 0.25]]
    assert data["steps"][2] == [["</s>", 0.5]]
    assert data["beams"] == [{"tokens": ["a", "b"], "logProbs": [-0.5, -0.25], "score": -0.375}]
    with pytest.raises(ValueError, match=r"for each of the 3 queries of the decoder\. Received: 2 steps"):
        explore(maps, tokens, steps=steps[:2])
    with pytest.raises(ValueError, match="must hold probabilities"):
        explore(maps, tokens, steps=[[("a", 1.5)]] * 3)
    with pytest.raises(ValueError, match=r"a log-probability for each token\. Received: 1 tokens, 2 log"):
        explore(maps, tokens, beams=[(["a"], [-1, -2], 0)])
    with pytest.raises(ValueError, match="must be finite"):
        explore(maps, tokens, beams=[(["a"], [-np.inf], 0)])


def assert_shown(page, places):
    """Whether each place of the page, `model.group.layer`, holds these scores, and no other place any."""
    given = {
        attributes["data-heads"] for _, attributes in page.tags if attributes.get("data-heads") is not None
    }
    assert given == set(places)
    for place, scores in places.items():
        for head, expected in enumerate(scores):
            decoded = (page.codes(place, head).reshape(expected.shape) / 255.0) ** 2
            assert np.all(np.abs(decoded - expected) <= bound(expected))


def paths_of(page, group=0):
    """For each model, the names of its layers in their rows."""
    return [[layer and layer["path"] for layer in seen] for seen in page.data["groups"][group]["seen"]]


def test_tokens_of_one_kind_for_layers_of_all_kinds_are_refused_with_what_to_give(rng):
    shapes = {"encoder_block_0": (7, 7), "decoder_block_0": (5, 5), "decoder_block_0/cross_attention": (5, 7)}
    maps = {path: softmax_scores(rng, 2, *shape) for path, shape in shapes.items()}
    source, target = list("abcdefg"), list("ABCDE")
    hint = re.escape(
        'pass {"encoder": [...], "decoder": [...]}; for cross-attention alone (query tokens, key tokens).'
    )
    for tokens in (source, (target, source)):
        with pytest.raises(ValueError, match=hint):
            explore(maps, tokens)
    assert len(parsed(maps, {"encoder": source, "decoder": target}).data["groups"]) == 3
    cross = {path: scores for path, scores in maps.items() if "cross" in path}
    [group] = parsed(cross, (target, source)).data["groups"]
    assert (group["queries"], group["keys"]) == (target, source)


def test_models_stand_beside_each_other_by_the_names_of_their_layers(rng):
    first, last = ({name: softmax_scores(rng, 2, 5, 5) for name in "ab"} for _ in range(2))
    page = parsed(last, WORDS, compare={"epoch 1": dict(reversed(first.items()))}, name="epoch 9")
    assert page.data["models"] == ["epoch 1", "epoch 9"]
    assert paths_of(page) == [["a", "b"]] * 2
    assert_shown(page, {"0.0.0": first["a"], "0.0.1": first["b"], "1.0.0": last["a"], "1.0.1": last["b"]})
    with pytest.raises(ValueError, match="names of `compare` must differ from `name`"):
        explore(last, WORDS, compare={"model": first})
    with pytest.raises(ValueError, match=r"scores of 'a' of 'long' must have a row for each of the 5 query"):
        explore(last, WORDS, compare={"long": {"a": softmax_scores(rng, 2, 7, 7)}})
    with pytest.raises(ValueError, match="must be by kind of attention if `maps` are"):
        explore({"encoder": last}, {"encoder": WORDS}, compare={"other": {"encoder a": first["a"]}})


@pytest.mark.parametrize("is_deeper", [False, True])
def test_no_layer_of_a_deeper_model_is_lost(rng, is_deeper):
    few, many = ({name: softmax_scores(rng, 2, 5, 5) for name in names} for names in ("b", "abc"))
    page = parsed(*((many, WORDS) if is_deeper else (few, WORDS)), compare={"o": few if is_deeper else many})
    of_few, of_many = (0, 1) if is_deeper else (1, 0)
    assert page.data["groups"][0]["paths"] == ["a", "b", "c"]
    assert paths_of(page)[of_few] == [None, "b", None]
    assert paths_of(page)[of_many] == ["a", "b", "c"]
    assert_shown(
        page,
        {f"{of_few}.0.1": few["b"], **{f"{of_many}.0.{row}": many[name] for row, name in enumerate("abc")}},
    )


def test_models_whose_layers_are_named_otherwise_stand_beside_each_other_by_their_order(rng):
    """Keras numbers the names of layers; two models may have other numbers of layers and of heads."""

    def attention(num_layers, num_heads):
        inputs = keras.Input((5, 6))
        x = inputs
        for _ in range(num_layers):
            x = keras.layers.MultiHeadAttention(num_heads, 3)(x, x)
        return keras.Model(inputs, x)

    models = {"one": attention(2, 2), "two": attention(3, 1)}
    captured = {}
    for name, model in models.items():
        with keras_attn.capture_attention(model) as maps:
            model(rng.normal(size=(1, 5, 6)))
        captured[name] = {path: np.asarray(scores) for path, scores in maps.items()}
    assert not set(captured["one"]) & set(captured["two"])
    page = parsed(captured["two"], WORDS, compare={"one": captured["one"]}, name="two")
    assert paths_of(page) == [[*captured["one"], None], [*captured["two"]]]
    places = {f"0.0.{row}": scores[0] for row, scores in enumerate(captured["one"].values())}
    assert_shown(
        page, places | {f"1.0.{row}": scores[0] for row, scores in enumerate(captured["two"].values())}
    )
    assert [len(layer["heads"]) for layer in page.data["groups"][0]["seen"][1]] == [1, 1, 1]


def test_a_kind_of_attention_that_one_model_has_is_on_the_page(rng):
    tokens = {"encoder": WORDS, "decoder": ["<s>", "a", "b"]}
    encoder, decoder = softmax_scores(rng, 1, 5, 5), softmax_scores(rng, 1, 3, 3)
    page = parsed(
        {"encoder": {"x": encoder}}, tokens, compare={"o": {"decoder": {"y": decoder}, "encoder": {}}}
    )
    assert [group["kind"] for group in page.data["groups"]] == ["encoder", "decoder"]
    assert [paths_of(page, group) for group in (0, 1)] == [[[None], ["x"]], [["y"], [None]]]
    assert_shown(page, {"1.0.0": encoder, "0.1.0": decoder})


@pytest.mark.parametrize(
    ("maps", "tokens", "message"),
    [
        ({}, WORDS, "`maps` must be a mapping from a layer's name"),
        ([np.ones((1, 1, 1))], WORDS, r"Received: maps=list"),
        ({"a": np.ones((2, 1, 5, 5)) / 5}, WORDS, r"For a batch, take one text: scores\[:1\]"),
        (
            {"a": np.ones((1, 5, 4)) / 4},
            WORDS,
            r"a column for each of the 5 key tokens. Received: shape=\(1, 5, 4\)",
        ),
        ({"a": np.full((1, 5, 5), np.nan)}, WORDS, "must be probabilities"),
        ({"a": np.full((1, 5, 5), 1.5)}, WORDS, "'a' with values from 1.5 to 1.5"),
        ({"a": np.ones((1, 5, 5)) / 5}, "words", "`tokens` must be a list of strings"),
        ({"a": np.ones((1, 5, 5)) / 5}, b"words", "`tokens` must be a list of strings"),
        ({"a": np.ones((1, 5, 5)) / 5}, None, r"`tokens` must hold the tokens of the layers"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(maps, tokens, message):
    with pytest.raises(ValueError, match=message):
        explore(maps, tokens)


@pytest.mark.parametrize("limit", ["3", None, 0, -1, float("nan"), True])
def test_a_limit_that_is_no_positive_number_is_refused(limit):
    with pytest.raises(
        ValueError, match=rf"`max_megabytes` must be a positive number.*max_megabytes={limit!r}"
    ):
        explore({"a": np.ones((1, 5, 5)) / 5}, WORDS, max_megabytes=limit)


def test_tokens_of_bytes_are_text():
    data = explore(
        {"a": np.ones((1, 2, 3)) / 3},
        ([b"</s>", "é".encode()], [b"\xc3", b"a", "b"]),
        special_tokens=[b"a"],
        steps=[[(b"x", 0.5)]] * 2,
        beams=[([b"y"], [-1.0], -1.0)],
    )._data
    [group] = data["groups"]
    assert group["queries"] == ["</s>", "é"]
    assert group["keys"] == ["\N{REPLACEMENT CHARACTER}", "a", "b"]
    assert group["specialKeys"] == [1]
    assert data["steps"][0] == [["x", 0.5]]
    assert data["beams"][0]["tokens"] == ["y"]
    # Two tokens are no pair of lists.
    assert explore({"a": np.ones((1, 2, 2)) / 2}, [b"a", b"b"])._data["groups"][0]["keys"] == ["a", "b"]


def test_the_page_is_saved_whole_and_only_as_html(tmp_path):
    path = tmp_path / "new" / "page.html"
    explorer = explore({"layer": np.full((1, 5, 5), 0.2)}, WORDS, title="שלום", path=path)
    assert isinstance(explorer, Explorer)
    assert path.read_text(encoding="utf-8") == explorer.html
    assert (
        repr(explorer)
        == "<Explorer of 'שלום' (Attention: 1 layers, 5 x 5 tokens); save(path) writes the page>"
    )
    assert html.escape(explorer.html) in explorer._repr_html_()
    with pytest.raises(ValueError, match="must end in one of"):
        explorer.save(tmp_path / "other" / "page.png")
    assert not (tmp_path / "other").exists()
