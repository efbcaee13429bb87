"""The explorer in a real browser, used as a person uses it."""

import base64
import json
import pathlib

import numpy as np
import pytest
from helpers_browser import Frame
from helpers_explorer import EXPLORER, softmax_scores
from selenium.webdriver.common.keys import Keys

from keras_attn.plots import explore

pytestmark = pytest.mark.extended  # a browser takes seconds to start

SOURCE = ["▁the", "▁tired", "▁dog", "▁sleep", "s", "</s>"]
TARGET = ["▁der", "▁müde", "▁Hund", "▁schläft", "</s>"]
INPUTS = ["<s>", *TARGET[:-1]]


def translation_maps(rng, num_layers=3, num_heads=2):
    def layers(kind, queries, keys):
        return {
            f"{kind} {layer}": softmax_scores(rng, num_heads, queries, keys) for layer in range(num_layers)
        }

    return {
        "encoder": layers("encoder", 6, 6),
        "decoder": {name: np.tril(scores) for name, scores in layers("decoder", 5, 5).items()},
        "cross": layers("cross", 5, 6),
    }


def translation(rng, **options):
    steps = [[(token, 0.625), *((f"▁other{n}", 0.3 / 2**n) for n in range(4))] for token in TARGET]
    beams = [
        (TARGET, [-0.1] * 5, -0.1),
        (["▁der", "▁müde", "▁Kater", "▁schläft", "</s>"], [-0.2] * 5, -0.2),
        (["▁ein", "</s>"], [-0.5] * 2, -0.5),
    ]
    maps = translation_maps(rng)
    tokens = {"encoder": SOURCE, "decoder": INPUTS, "cross": (TARGET, SOURCE)}
    return maps, explore(maps, tokens, **{"steps": steps, "beams": beams, "title": "A dog", **options})


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens an explorer of some size and colour scheme; after the test, its console must hold no error."""
    pages = []

    def open_page(explorer, address="", **options):
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(explorer if isinstance(explorer, str) else explorer.html, encoding="utf-8")
        pages.append(browser.page(f"file://{path}{address}", **options))
        if not isinstance(explorer, str):
            pages[-1].evaluate(f"{EXPLORER}.ready")
        return pages[-1]

    yield open_page
    errors = [error for page in pages for error in page.errors()]
    requests = [
        event["request"]["url"] for page in pages for event in page.events("Network.requestWillBeSent")
    ]
    for page in pages:
        page.close()
    assert not errors
    assert {url.split(":")[0] for url in requests} <= {"file", "data", "blob", "about"}


def part(name):
    return f'[data-part="{name}"]'


def state(page):
    return page.evaluate(f"{EXPLORER}.state")


def settled(page):
    page.evaluate(f"{EXPLORER}.ready")


def click(page, selector):
    page.click(selector)
    settled(page)


def ink(page, selector):
    """How many pixels of a canvas are drawn, and how many colours they have."""
    return page.evaluate(
        f"""(() => {{
          const canvas = document.querySelector({json.dumps(selector)});
          const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const colours = new Set();
          let drawn = 0;
          for (let i = 0; i < data.length; i += 4) if (data[i + 3]) {{ drawn++; colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]); }}
          return [drawn, colours.size];
        }})()"""
    )


def scores_of(page, **place):
    return np.array(page.evaluate(f"{EXPLORER}.maps.scores({json.dumps(place)}).then(scores => [...scores])"))


def test_the_browser_decodes_every_head_of_every_kind(open_page, rng):
    maps, explorer = translation(rng)
    page = open_page(explorer)
    for group, kind in enumerate(maps):
        for layer, scores in enumerate(maps[kind].values()):
            for head in range(2):
                decoded = scores_of(page, model=0, group=group, layer=layer, head=head)
                expected = scores[head].ravel()
                assert np.all(np.abs(decoded - expected) <= np.sqrt(expected) / 255 + 1 / 260_100 + 1e-6)
            mean = scores_of(page, model=0, group=group, layer=layer, head=-1)
            assert mean == pytest.approx(scores.mean(axis=0).ravel(), abs=4e-3)


def test_sparse_heads_are_decoded_as_the_largest_of_each_query(open_page, rng):
    scores = softmax_scores(rng, 2, 31, 300)
    tokens = [f"q{n}" for n in range(31)], [f"k{n}" for n in range(300)]
    page = open_page(explore({"layer": scores}, tokens, max_megabytes=0.004))
    kept = page.evaluate(f"{EXPLORER}.data.kept")
    decoded = scores_of(page, model=0, group=0, layer=0, head=1).reshape(31, 300)
    largest = np.sort(scores[1], axis=-1)[:, -kept][:, np.newaxis]
    assert decoded == pytest.approx(np.where(scores[1] >= largest, scores[1], 0), abs=4e-3)
    [said] = page.visible(part("kept"))
    assert f"The {kept} largest scores of each query are here" in said


def test_a_person_clicks_through_kinds_heads_and_views(open_page, rng):
    maps, explorer = translation(rng)
    page = open_page(explorer)
    assert page.visible("h1") == ["A dog"]
    # It begins with a head of cross-attention, and says in a sentence what it does.
    assert page.visible(f"{part('tabs')} [aria-selected=true]") == ["Cross-attention"]
    [heading] = page.visible(f"{part('first')} h2")
    [sentence] = page.visible(".sees")
    assert sentence.startswith(heading.replace(" · H", ", h"))
    assert page.evaluate("document.querySelectorAll('.thumbnail').length") == 3 * (2 + 1)
    for number, label in enumerate(("Encoder", "Decoder", "Cross-attention"), 1):
        click(page, f"{part('tabs')} button:nth-child({number})")
        assert page.visible(f"{part('tabs')} [aria-selected=true]") == [label]
        click(page, '[data-place="2.1"]')
        assert page.visible(f"{part('first')} h2") == ["Layer 3 · Head 2"]
        kind = list(maps)[number - 1]
        assert page.visible(".path") == [f"{kind} 2"]
        for view in ("lines", "matrix"):
            click(page, f'[data-view="{view}"]')
            drawn, colours = ink(page, ".view-canvas")
            assert drawn > 500
            assert colours > 5
        click(page, '[data-view="text"]')
        queries = {"encoder": SOURCE, "decoder": INPUTS, "cross": TARGET}[kind]
        words = page.visible(".text-block:first-child .word")
        assert words == [token.replace("▁", "") for token in queries]


def test_pointing_at_a_word_shades_what_it_looks_at_and_says_it(open_page, rng):
    maps, explorer = translation(rng)
    page = open_page(explorer, "#kind=cross&layer=1&head=2&view=text")
    scores = maps["cross"]["cross 0"][1]
    page.point_at(".text-block:first-child .word:nth-child(3)")
    [said] = page.visible(".said")
    best = int(scores[2].argmax())
    assert said.startswith(f"Hund looks at {SOURCE[best].replace('▁', '')} ")
    assert float(said.split(" ")[4]) == pytest.approx(100 * scores[2].max(), abs=1)
    backgrounds = page.evaluate(
        "[...document.querySelectorAll('.text-block:last-child .word')].map(e => getComputedStyle(e).backgroundColor)"
    )
    brightness = [sum(map(int, colour[4:-1].replace(",", " ").split())) for colour in backgrounds]
    assert int(np.argmin(brightness)) == best
    # From the other side: who looks at it.
    page.point_at(".text-block:last-child .word:nth-child(1)")
    [said] = page.visible(".said")
    best = int(scores[:, 0].argmax())
    assert said.startswith(f"the is looked at by {TARGET[best].replace('▁', '')} ")
    click(page, ".text-block:last-child .word:nth-child(2)")
    assert state(page)["pin"] == {"side": "k", "token": 1}
    page.type(Keys.ESCAPE)
    settled(page)
    assert state(page)["pin"] is None


@pytest.mark.parametrize("view", ["lines", "matrix"])
def test_the_pointer_finds_words_on_both_sides_of_a_canvas(open_page, rng, view):
    _, explorer = translation(rng)
    page = open_page(explorer, f"#kind=cross&layer=1&head=1&view={view}")
    places = page.evaluate(
        f"""(() => {{
          const {{view}} = {EXPLORER}.first;
          const frame = view.scrolled.canvas.getBoundingClientRect();
          const {{left, right, top, cell}} = view.layout;
          const at = (x, y) => ({{x: frame.left + x, y: frame.top + y}});
          return "{view}" === "lines"
            ? [at(left - 20, 34 + 22 * 2.5), at(right + 20, 34 + 22 * 4.5)]
            : [at(left - 8, top + cell * 2.5), at(left + cell * 4.5, top - 8)];
        }})()"""
    )
    for place, expected in zip(places, ("Hund looks at ", "s is looked at by ")):
        page.move_pointer(**place)
        [said] = page.visible(".said")
        assert said.startswith(expected)
    page.move_pointer(**places[0]).click().perform()
    settled(page)
    assert state(page)["pin"] == {"side": "q", "token": 2}


def test_words_join_tokens_by_the_mean_of_queries_and_the_sum_of_keys(open_page, rng):
    maps, explorer = translation(rng)
    page = open_page(explorer, "#kind=encoder&layer=1&head=1&view=text")
    click(page, '[data-level="word"]')
    assert page.visible(".text-block:first-child .word") == ["the", "tired", "dog", "sleeps", "</s>"]
    joined = np.array(page.evaluate(f"[...{EXPLORER}.first.matrix.values]")).reshape(5, 5)
    scores = maps["encoder"]["encoder 0"][0].astype("float64")
    expected = np.concatenate(
        [scores[:, :3], scores[:, 3:5].sum(axis=1, keepdims=True), scores[:, 5:]], axis=1
    )
    expected = np.concatenate([expected[:3], expected[3:5].mean(axis=0, keepdims=True), expected[5:]])
    assert joined == pytest.approx(expected, abs=4e-3)
    click(page, part("hide"))
    assert page.visible(".text-block:last-child .word") == ["the", "tired", "dog", "sleeps"]
    hidden = np.array(page.evaluate(f"[...{EXPLORER}.first.matrix.values]")).reshape(4, 4)
    assert hidden == pytest.approx(expected[:4, :4], abs=4e-3)


def words_of(page):
    """The words that the page makes of tokens, and what it writes for each token."""
    page.evaluate(f"{EXPLORER}.change({{level: 'word'}})")
    settled(page)
    words = page.evaluate(f"{EXPLORER}.units().q.map(unit => [unit.plain, unit.tokens])")
    page.evaluate(f"{EXPLORER}.change({{level: 'token'}})")
    settled(page)
    return words, page.evaluate(f"{EXPLORER}.units().q.map(unit => unit.text)")


@pytest.mark.parametrize(
    ("tokens", "words", "written"),
    [
        # SentencePiece with bytes for what has no piece: é is two of them.
        (
            ["▁caf", "<0xC3>", "<0xA9>", "▁2", "016", "-", "▁", "x"],
            [["café", [0, 1, 2]], ["2016", [3, 4]], ["-", [5]], ["x", [6, 7]]],
            ["caf", "<0xC3>", "<0xA9>", "2", "·016", "-", "␣", "·x"],
        ),
        # Byte-level BPE (GPT-2): "über" is Ã¼ber, a space Ġ.
        (
            ["Das", "ĠÃ¼", "ber", "Ġ", "Ċ", "æ", "Ĺ", "¥"],
            [["Das", [0]], ["über", [1, 2]], ["日", [3, 4, 5, 6, 7]]],
            ["Das", "ü", "·ber", "␣", "␣", "\ufffd", "\ufffd", "\ufffd"],
        ),
        # WordPiece.
        (
            ["[CLS]", "un", "##affable", ",", "##s", "[SEP]"],
            [["[CLS]", [0]], ["unaffable", [1, 2]], [",", [3]], ["s", [4]], ["[SEP]", [5]]],
            ["[CLS]", "un", "·affable", ",", "·s", "[SEP]"],
        ),
        # Whole words, and characters.
        (["a b", "##", "c"], [["a b", [0]], ["##", [1]], ["c", [2]]], ["a b", "##", "c"]),
        (list("ab c"), [["ab", [0, 1]], ["c", [2, 3]]], ["a", "·b", "␣", "·c"]),
        (["▁こん", "にちは"], [["こん", [0]], ["にちは", [1]]], ["こん", "·にちは"]),
    ],
)
def test_tokens_of_every_kind_are_joined_to_words(open_page, tokens, words, written):
    page = open_page(explore({"a": np.full((1, len(tokens), len(tokens)), 1 / len(tokens))}, tokens))
    assert words_of(page) == (words, written)


def set_value(page, selector, value):
    page.evaluate(
        f"""(() => {{
          const input = document.querySelector({json.dumps(selector)});
          input.value = {json.dumps(str(value))};
          for (const type of ["input", "change"]) input.dispatchEvent(new Event(type, {{ bubbles: true }}));
        }})()"""
    )
    settled(page)


def test_a_threshold_hides_small_scores(open_page, rng):
    _, explorer = translation(rng)
    page = open_page(explorer, "#kind=cross&layer=1&head=1&view=lines")
    before, _ = ink(page, ".view-canvas")
    set_value(page, part("threshold"), 0.9)
    after, _ = ink(page, ".view-canvas")
    assert state(page)["threshold"] == pytest.approx(0.81)
    assert page.visible(part("threshold-said")) == ["81 %"]
    assert after < before


def test_steps_show_the_best_tokens_and_point_at_their_row(open_page, rng):
    maps, explorer = translation(rng)
    page = open_page(explorer, "#kind=cross&layer=1&head=1")
    set_value(page, f"{part('steps')} input", 3)
    assert page.visible(f"{part('steps')} output") == ["step 3 of 5"]
    assert page.visible(".bars .token") == ["Hund", "other0", "other1", "other2", "other3"]
    assert page.visible(".bars .percent") == ["63 %", "30 %", "15 %", "7.5 %", "3.8 %"]
    assert page.visible(".bars .chosen .token") == ["Hund"]
    assert page.visible(".read") == ["After <s>dermüde it wrote Hund"]
    best = int(maps["cross"]["cross 0"][0, 2].argmax())
    [said] = page.visible(".said")
    assert said.startswith(f"Hund looks at {SOURCE[best].replace('▁', '')} ")
    page.type(".")
    settled(page)
    assert state(page)["step"] == 3
    click(page, f"{part('tabs')} button:nth-child(1)")  # an encoder has no steps
    assert not page.visible(f"{part('steps')} output")


def test_beams_are_a_tree_whose_branches_share_their_beginning(open_page, rng):
    _, explorer = translation(rng)
    page = open_page(explorer)
    runs = page.evaluate(
        "[...document.querySelectorAll('.beam-tree .run')].map(run => [...run.querySelectorAll('.token')].map(t => t.textContent).join(' '))"
    )
    assert runs == ["der müde", "Hund schläft </s>", "Kater schläft </s>", "ein </s>"]
    assert page.visible(".beam-tree .score") == [
        "No. 1, score -0.100",
        "No. 2, score -0.200",
        "No. 3, score -0.500",
    ]


def test_heads_are_sorted_and_searched_by_kind(open_page):
    previous = 0.9 * np.eye(7)[[0, *range(6)]] + 0.1 / 7
    own = 0.9 * np.eye(7) + 0.1 / 7
    even = np.full((7, 7), 1 / 7)
    maps = {"a": np.stack([even, own]), "b": np.stack([previous, even])}
    page = open_page(explore(maps, list("abcdefg")))
    assert page.visible(".chip") == ["token before: 1 head", "itself: 1 head", "many alike: 2 heads"]
    set_value(page, part("sort"), "previous")
    placed = page.evaluate("[...document.querySelectorAll('.thumbnail')].map(e => e.dataset.place)")
    assert placed[0] == "1.0"
    assert len(placed) == 4
    set_value(page, part("sort"), "layer")
    set_value(page, part("search"), "own")
    clear = "[...document.querySelectorAll('.thumbnail:not(.other)')].map(e => e.dataset.place)"
    assert page.evaluate(clear) == ["0.1", "0.-1", "1.-1"]
    set_value(page, part("search"), "")
    click(page, ".chip:nth-child(3)")
    assert page.evaluate(clear) == ["0.0", "0.-1", "1.1", "1.-1"]


WORDS = ["the", "tired", "dog", "sleeps", "in", "the", "park"]


def test_it_opens_on_the_head_that_tells_most_and_says_what_it_does(open_page):
    previous = 0.9 * np.eye(7)[[0, *range(6)]] + 0.1 / 7
    own = 0.9 * np.eye(7) + 0.1 / 7
    first = np.eye(7)[[0] * 7]
    even = np.full((7, 7), 1 / 7)
    sharp = np.full((7, 7), 0.02)
    sharp[np.arange(7), [4, 6, 1, 0, 2, 3, 5]] = 0.88
    maps = {"a": np.stack([even, own]), "b": np.stack([first, previous]), "c": np.stack([even, sharp])}
    # Of all rows but the first, 6 of them, the token before gets 0.9 and its share of the rest.
    share = f"{0.9 + 0.1 / 7:.0%}".replace("%", " %")
    page = open_page(explore(maps, WORDS))
    sentence = f"Layer 2, head 2: each word looks at the word before it, with {share} of its attention."
    assert page.visible(".sees") == [sentence]
    assert page.visible(f"{part('first')} .kind") == ["token before"]
    for place, said in {
        "0.1": "Layer 1, head 2: each word looks at itself",
        "1.0": "Layer 2, head 1: each word looks at the first word, with 100 %",
        "0.0": "Layer 1, head 1: each word looks at many others alike.",
        "2.1": "Layer 3, head 2: no single pattern. At its strongest, the looks at in (88 %).",
        "1.-1": "Layer 2, all heads together: at their strongest, the looks at the",
    }.items():
        click(page, f'[data-place="{place}"]')
        assert page.visible(".sees")[0].startswith(said)
    # Of cross-attention without a pattern, the sharpest head.
    page = open_page(explore({"cross": {"c": maps["c"]}}, {"cross": (WORDS, WORDS[::-1])}))
    assert page.visible(f"{part('first')} h2") == ["Layer 1 · Head 2"]
    # Parts of words are called tokens; where no head has a pattern, one is shown all the same.
    page = open_page(explore({"a": np.stack([even])}, ["▁the", "▁ti", "red", *"abcd"]))
    assert page.visible(".sees") == ["Layer 1, head 1: each token looks at many others alike."]


def test_a_long_text_opens_with_a_word_that_is_shaded(open_page):
    length = 101
    previous = 0.9 * np.eye(length)[[0, *range(length - 1)]] + 0.1 / length
    words = [f"w{number}" for number in range(length)]
    title = "a long title " * 60
    page = open_page(explore({"a": previous[np.newaxis]}, words, title=title))
    assert state(page)["view"] == "text"
    assert state(page)["pin"] == {"side": "q", "token": 0}
    shaded = """[...document.querySelectorAll(".text-block:last-child .word")]
      .filter(word => word.style.backgroundColor).length"""
    assert page.evaluate(shaded) > 0
    # A title is cut with an ellipsis: on the page, where its whole can be had, and in the tab.
    lines = "(h1 => [h1.scrollHeight > h1.clientHeight, h1.title.length])(document.querySelector('h1'))"
    assert page.evaluate(lines) == [True, len(title)]
    assert page.evaluate("document.title").endswith("…")
    # An address that chooses a view is obeyed.
    assert state(open_page(explore({"a": previous[np.newaxis]}, words), "#view=text"))["pin"] is None


def test_the_address_holds_the_whole_state(open_page, rng):
    _, explorer = translation(rng, compare={"epoch 1": translation_maps(rng)}, name="epoch 9")
    page = open_page(explorer)
    click(page, f"{part('tabs')} button:nth-child(2)")
    click(page, '[data-place="1.1"]')
    click(page, '[data-view="text"]')
    click(page, ".text-block:first-child .word:nth-child(2)")
    click(page, '[data-level="word"]')
    click(page, part("hide"))
    click(page, part("beside"))
    set_value(page, part("threshold"), 0.2)
    set_value(page, part("search"), "l2 own")
    set_value(page, f"{part('first')} select", 0)
    wanted = state(page)
    other = open_page(explorer, page.evaluate("location.hash"))
    assert state(other) == wanted
    assert wanted["second"] == {"model": 0, "layer": 1, "head": 1}
    odd = "#kind=nothing&layer=99&head=-7&view=x&model=5&threshold=7&pin=z9&step=99&beside=9.9.9&zoom=0&sort=__proto__"
    plain = open_page(explorer)
    assert state(open_page(explorer, odd)) == state(plain)


def test_two_models_stand_side_by_side_and_play_as_a_film(open_page, rng):
    maps, explorer = translation(rng, compare={"epoch 1": translation_maps(rng)}, name="epoch 9")
    page = open_page(explorer, "#kind=cross&layer=1&head=1&view=matrix")
    click(page, part("beside"))
    assert page.visible(f"{part('second')} h2") == ["Layer 1 · Head 1"]
    values = [page.evaluate(f"[...{EXPLORER}.{pane}.matrix.values]") for pane in ("first", "second")]
    assert values[0] == pytest.approx(maps["cross"]["cross 0"][0].ravel(), abs=4e-3)
    assert values[1] != pytest.approx(values[0], abs=4e-3)
    page.click(part("film"))
    page.wait_for(f"{EXPLORER}.state.model === 1")
    page.wait_for(f"document.querySelector('{part('film')}').textContent === 'Play film'")


def test_every_layer_of_two_models_is_reached_and_the_page_says_where_one_has_none(open_page, rng):
    """Three layers of two heads beside one layer of four, with other names."""
    small = {"x": softmax_scores(rng, 4, 5, 5)}
    large = {name: softmax_scores(rng, 2, 5, 5) for name in "abc"}
    page = open_page(
        explore(small, TARGET, compare={"large": large}, name="small"), "#layer=1&head=1&view=matrix"
    )
    assert page.visible(".layer .absent") == ["not in small"] * 2
    assert page.evaluate("[...document.querySelectorAll('.thumbnail')].map(e => e.dataset.place)") == [
        *("0.0", "0.1", "0.2", "0.3", "0.-1")
    ]
    click(page, '[data-place="0.3"]')
    page.type("]")  # the next layer that has heads is the same one
    settled(page)
    assert (state(page)["layer"], state(page)["head"]) == (0, 0)
    click(page, '[data-place="0.3"]')
    set_value(page, f"{part('first')} select", 0)
    assert page.visible(f"{part('first')} .absent") == ["large has no head 4 in this layer: it has 2."]
    assert page.evaluate(f"document.querySelector('{part('json')}').disabled")
    assert not page.visible(".layer .absent")
    for number, (name, scores) in enumerate(large.items()):
        click(page, f'[data-place="{number}.1"]')
        assert page.visible(".path") == [name]
        values = page.evaluate(f"[...{EXPLORER}.first.matrix.values]")
        assert values == pytest.approx(scores[1].ravel(), abs=4e-3)
        click(page, f'[data-place="{number}.-1"]')
        values = page.evaluate(f"[...{EXPLORER}.first.matrix.values]")
        assert values == pytest.approx(scores.mean(axis=0).ravel(), abs=4e-3)
    click(page, '[data-place="2.0"]')
    click(page, part("beside"))
    assert page.visible(f"{part('second')} .absent") == ["small has no layer 3 of this kind."]
    assert page.visible(f"{part('second')} h2") == ["Layer 3 · Head 1"]
    for view in ("text", "lines", "matrix"):
        click(page, f'[data-view="{view}"]')
        page.evaluate(f"{EXPLORER}.point({{side: 'q', unit: 1}})")
    other = open_page(
        explore(small, TARGET, compare={"large": large}, name="small"), page.evaluate("location.hash")
    )
    assert state(other) == state(page)
    set_value(page, f"{part('second')} select", 0)
    assert not page.visible(".absent")
    assert page.evaluate(f"[...{EXPLORER}.second.matrix.values]") == pytest.approx(
        large["c"][0].ravel(), abs=4e-3
    )
    # The pane where nothing was can show a head again, and the other way round.
    set_value(page, f"{part('first')} select", 1)
    assert page.visible(f"{part('first')} .absent") == ["small has no layer 3 of this kind."]
    page.click(part("film"))
    page.wait_for(f"document.querySelector('{part('film')}').textContent === 'Play film'")


def test_a_kind_that_one_model_lacks_is_said(open_page, rng):
    tokens = {"encoder": SOURCE, "decoder": INPUTS}
    maps = {"encoder": {"x": softmax_scores(rng, 2, 6, 6)}}
    other = {**maps, "decoder": {"y": softmax_scores(rng, 2, 5, 5)}}
    page = open_page(explore(maps, tokens, compare={"other": other}, name="this"))
    click(page, f"{part('tabs')} button:nth-child(2)")
    assert page.visible(f"{part('first')} .absent") == ["this has no layer 1 of this kind."]
    assert page.visible(".layer .absent") == ["not in this"]
    for key in "]mv":
        page.type(key)
        settled(page)
    set_value(page, f"{part('first')} select", 0)
    click(page, '[data-place="0.1"]')
    assert page.visible(".path") == ["y"]


def test_an_image_glows_where_its_patch_looks(open_page):
    scores = np.full((1, 7, 7), 0.01)
    scores[0, 3, 5] = 0.94  # from row 1, column 3 to row 2, column 2
    image = np.full((40, 60, 3), 200, "uint8")
    page = open_page(explore({"layer": scores}, image=image, grid=(2, 3)))
    canvas = ".image-box canvas"
    page.wait_for(f"Boolean({EXPLORER}.first.view.picture)")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    corner = page.evaluate(
        f"""(() => {{
          const canvas = document.querySelector("{canvas}");
          canvas.scrollIntoView({{block: "center"}});
          const frame = canvas.getBoundingClientRect();
          const {{width, height}} = {EXPLORER}.first.view.size;
          return {{width, height, place: {{x: frame.left + width * 5 / 6, y: frame.top + height / 4}}}};
        }})()"""
    )
    page.move_pointer(**corner["place"])
    [said] = page.visible(".said")
    assert said.startswith("row 1, column 3 looks at row 2, column 2 94 %")
    bright = page.evaluate(
        f"""(() => {{
          const context = document.querySelector("{canvas}").getContext("2d");
          const at = (column, row) => context.getImageData({corner["width"]} * (column + .5) / 3, {corner["height"]} * (row + .5) / 2, 1, 1).data[0];
          return [0, 1].map(row => [0, 1, 2].map(column => at(column, row)));
        }})()"""
    )
    assert np.argmax(bright) == 4
    assert bright[1][1] > 180
    assert max(bright[0]) < 100
    for view in ("text", "lines", "matrix"):
        click(page, f'[data-view="{view}"]')


@pytest.mark.parametrize("name", ["png", "svg", "json"])
def test_a_head_is_exported_from_every_view(open_page, rng, name):
    maps, explorer = translation(rng)
    page = open_page(explorer, "#kind=cross&layer=3&head=2")
    for view in ("text", "lines", "matrix"):
        click(page, f'[data-view="{view}"]')
        exported = page.evaluate(
            f"""(async () => {{
              const saved = new Promise((resolve) => {{
                const click = HTMLAnchorElement.prototype.click;
                const create = URL.createObjectURL;
                let blob;
                URL.createObjectURL = (given) => create.call(URL, (blob = given));
                HTMLAnchorElement.prototype.click = function () {{ resolve([this.download, blob]); }};
              }});
              document.querySelector('{part(name)}').click();
              const [download, blob] = await saved;
              const bytes = new Uint8Array(await blob.arrayBuffer());
              return [download, btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))];
            }})()"""
        )
        content = base64.b64decode(exported[1])
        assert exported[0] == f"attention-cross-layer-3-head-2.{name}"
        if name == "png":
            assert content[:8] == b"\x89PNG\r\n\x1a\n"
        elif name == "svg":
            text = content.decode()
            assert text.startswith("<svg")
            assert "Hund" in text
        else:
            value = json.loads(content)
            assert value["queries"] == [token.replace("▁", "") for token in TARGET]
            assert np.array(value["scores"]) == pytest.approx(maps["cross"]["cross 2"][1], abs=4e-3)


def test_markup_in_tokens_and_titles_does_nothing(open_page):
    script = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    tokens = [script, "</script><script>document.title='run'</script>", "<b>bold</b>"]
    explorer = explore(
        {script: np.full((2, 3, 3), 1 / 3)}, tokens, title=script, beams=[(tokens, [-1, -1, -1], -1)]
    )
    page = open_page(explorer, "#view=text")
    page.point_at(".text-block:first-child .word:nth-child(1)")
    assert page.visible(".text-block:first-child .word") == tokens
    assert page.visible("h1") == [script]
    for view in ("lines", "matrix"):
        click(page, f'[data-view="{view}"]')
    assert page.evaluate("document.title") == script
    assert not page.evaluate("document.querySelectorAll('[data-explorer] img, [data-explorer] b').length")


def test_the_keys_of_the_keyboard_go_everywhere(open_page, rng):
    _, explorer = translation(rng)
    page = open_page(explorer, "#kind=encoder&layer=1&head=1&view=lines")
    for key, expected in (
        ("]", {"layer": 0, "head": 1}),
        ("]", {"layer": 1, "head": 0}),
        ("[", {"layer": 0, "head": 1}),
        ("m", {"head": -1}),
        ("v", {"view": "matrix"}),
        ("w", {"level": "word"}),
        ("h", {"hide": True}),
        ("k", {"group": 1}),
    ):
        page.type(key)
        settled(page)
        assert state(page) | expected == state(page), key
    page.type("b")
    settled(page)
    assert state(page)["second"]
    page.type("/")
    page.type("own")
    assert state(page)["search"] == "own"
    page.focus('.thumbnail[tabindex="0"]')
    here = page.evaluate("document.activeElement.dataset.place")
    page.type(Keys.ARROW_DOWN)
    settled(page)
    layer, head = map(int, here.split("."))
    assert page.evaluate("document.activeElement.dataset.place") == f"{(layer + 1)}.{head}"
    # Words of the text, too.
    page.type("v")
    settled(page)
    page.focus(".text-block:first-child .word")
    page.type(Keys.ARROW_RIGHT)
    assert page.evaluate("document.activeElement.textContent") == "tired" or page.visible(".said")


def test_several_explorers_stand_in_one_notebook(open_page, rng):
    frames = [translation(rng, title=title)[1]._repr_html_() for title in ("one", "two", "three")]
    page = open_page("<!doctype html><title>notebook</title>" + "".join(frames))
    page.wait_for("document.querySelectorAll('iframe').length === 3")
    for number, title in enumerate(("one", "two", "three")):
        frame = Frame(page, f"document.querySelectorAll('iframe')[{number}]")
        frame.wait_for("document.querySelectorAll('.thumbnail').length === 9")
        assert frame.evaluate("[document.querySelector('h1').textContent, location.hash]") == [title, ""]


@pytest.mark.parametrize(
    "look", [{"width": 360, "height": 780}, {"color_scheme": "dark"}, {}], ids=["phone", "dark", "light"]
)
def test_it_fits_its_screen_and_its_text_has_contrast(open_page, rng, look):
    _, explorer = translation(rng)
    page = open_page(explorer, "#kind=cross&layer=1&head=1&view=text&step=2", **look)
    for view in ("text", "lines", "matrix"):
        click(page, f'[data-view="{view}"]')
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    low = page.evaluate(
        """(() => {
          const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const found = [];
          for (const element of document.querySelectorAll("[data-explorer] *")) {
            const text = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
            if (!text || !element.checkVisibility() || element.closest("script, select, .unseen, :disabled")) continue;
            let behind = element;
            while (behind && (channels(getComputedStyle(behind).backgroundColor)[3] === 0)) behind = behind.parentElement;
            const [one, two] = [getComputedStyle(element).color, getComputedStyle(behind ?? document.body).backgroundColor]
              .map(channels).map(light).sort((a, b) => b - a);
            if ((one + 0.05) / (two + 0.05) < 4.5) found.push([element.className, element.textContent.slice(0, 20), (one + 0.05) / (two + 0.05)]);
          }
          return found;
        })()"""
    )
    assert not low
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, [role=img]")].filter(e => e.checkVisibility() &&
          !(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label"))).map(e => e.outerHTML)"""
    )
    assert not unnamed


def test_the_scripts_are_modules_that_stand_alone():
    folder = pathlib.Path(explore.__code__.co_filename).parent
    from keras_attn.plots import explorer

    assert {path.name for path in folder.glob("*.js")} == set(explorer._SCRIPTS)
    seen = set()
    for name in explorer._SCRIPTS:
        text = (folder / name).read_text("utf-8")
        imported = {
            line.rsplit('"./', 1)[1].rstrip('";') for line in text.splitlines() if line.startswith("import ")
        }
        assert imported <= seen  # joined in this order, each finds what it uses
        seen.add(name)
