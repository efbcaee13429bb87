"""The page of `keras-attn serve`, used in a real browser as a person uses it."""

import json
import shlex
import urllib.parse
import urllib.request

import pytest
from helpers_page_server import IS_DONE, MARKUP, PageServer
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.extended  # a browser takes seconds to start

TEXT = "4th of July 2016"
OTHER_TEXT = "31.12.2038"


@pytest.fixture(scope="session")
def odd_url():
    """A server whose models answer what a test needs: errors, markup, statuses, every kind of model."""
    server = PageServer()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def base_url(dates_url):
    """The server of the page. Its first model is a translator that can `translate` and `sample`."""
    return dates_url


@pytest.fixture
def open_page(browser):
    """Opens a page of some size and colour scheme; after the test, its console must hold no error."""
    pages = []

    def open_page(url, **options):
        pages.append(browser.page(url, **options))
        pages[-1].wait_for("document.querySelector('#model').options.length > 0")
        return pages[-1]

    yield open_page
    errors = [error for page in pages for error in page.errors()]
    for page in pages:
        page.close()
    assert not [error for error in errors if ":predict" not in error]


def first_model(base_url):
    with urllib.request.urlopen(f"{base_url}/page/models", timeout=10) as answer:
        return json.load(answer)[0]


def asked(base_url, text, signature="translate", **options):
    """What the server itself answers: the independent truth of what the page must show."""
    instance = {**neutral_values(base_url, signature), "inputs": text, **options}
    return prediction(base_url, {"signature_name": signature, "instances": [instance]})


def declared_inputs(base_url, signature="translate"):
    """What the model's export declares of a signature's inputs."""
    return first_model(base_url)["task"]["signatures"][signature]["inputs"]


def neutral_values(base_url, signature="translate"):
    inputs = declared_inputs(base_url, signature)
    return {name: declared["neutral"] for name, declared in inputs.items() if "neutral" in declared}


def prediction(base_url, body):
    url = f"{base_url}/v1/models/{first_model(base_url)['name']}:predict"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as answer:
        return json.load(answer)["predictions"][0]


def address(base_url, **state):
    return f"{base_url}/#{urllib.parse.urlencode(state)}"


def write(page, text):
    page.focus("#text")
    page.type(text)


def wait_for_answer(page, text):
    page.wait_for(f"{IS_DONE} && document.querySelector('#answer').textContent === {json.dumps(text)}")


def final_requests(page):
    """Those for whole answers, not for their beginnings."""
    return [body for body in page.requests() if json.loads(body)["instances"][0]["num_beams"] != 1]


def shown_request(page):
    """The body in the curl line, which has been sent byte for byte."""
    body = shlex.split(page.text("#request"))[-1]
    assert body in page.requests()
    return json.loads(body)


def shown_instance(page):
    return shown_request(page)["instances"][0]


def set_option(page, name, value):
    """As a person who drags a slider or writes in a box."""
    page.evaluate(
        f"""(() => {{
          const input = document.querySelector("[name={name}]");
          input.value = {json.dumps(str(value))};
          input.dispatchEvent(new Event("input", {{ bubbles: true }}));
          input.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()"""
    )


def test_a_text_that_is_typed_is_answered_with_n_best_alignment_and_the_curl_line(base_url, open_page):
    page = open_page(f"{base_url}/")
    write(page, TEXT)
    expected = asked(base_url, TEXT)
    wait_for_answer(page, expected["outputs"][0])
    assert page.visible("#best bdi") == [
        text for text, score in zip(expected["outputs"], expected["scores"]) if score > -1e29
    ]
    shown = [float(score.replace("−", "-")) for score in page.visible("#best .score")]
    assert shown == pytest.approx([score for score in expected["scores"] if score > -1e29], abs=6e-4)
    assert "".join(page.visible("#target button")) == expected["outputs"][0].replace(" ", "")
    assert "".join(page.visible("#source button:not(.end)")) == TEXT.replace(" ", "")
    command, url, flag, body = shlex.split(page.text("#request"))
    assert (command, flag, json.loads(body)) == ("curl", "-d", shown_request(page))
    assert url == f"{base_url}/v1/models/{first_model(base_url)['name']}:predict"
    assert prediction(base_url, json.loads(body))["outputs"] == expected["outputs"]


def test_a_slow_answer_grows_and_ends_as_that_of_one_call(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    page.evaluate(
        """(() => {
          window.seen = [];
          const answer = document.querySelector("#answer");
          const note = () => seen.push([answer.textContent, answer.getAttribute("aria-busy")]);
          new MutationObserver(note).observe(answer, { childList: true, attributes: true });
        })()"""
    )
    page.focus("#text")
    page.insert("slow texts")
    wait_for_answer(page, asked(odd_url, "slow texts")["outputs"][0])
    grown = list(dict.fromkeys(text for text, busy in page.evaluate("seen") if busy == "true" and text))
    # These are greedy; the answer is another one.
    assert grown == ["sl", "slow", "slow tex", "slow texts"]
    lengths = [json.loads(body)["instances"][0]["max_length"] for body in page.requests()]
    assert lengths == [0, 2, 4, 8, 16]
    assert shown_request(page) == json.loads(page.requests()[0])


def test_a_beginning_that_comes_too_late_does_not_replace_the_answer(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    page.focus("#text")
    page.insert("late texts")
    wait_for_answer(page, "LATE TEXTS")
    assert len(page.requests()) == 2
    page.evaluate("new Promise(done => setTimeout(done, 900))")
    assert (page.text("#answer"), len(page.requests())) == ("LATE TEXTS", 2)


def test_a_newer_text_cancels_the_request_of_an_older_one(base_url, open_page):
    page = open_page(f"{base_url}/", latency=400)
    page.focus("#text")
    page.insert(TEXT)
    page.wait_for("document.querySelector('#answer').getAttribute('aria-busy') === 'true'")
    page.evaluate("document.querySelector('#text').select()")
    page.insert(OTHER_TEXT)
    wait_for_answer(page, asked(base_url, OTHER_TEXT)["outputs"][0])
    assert [event for event in page.events("Network.loadingFailed") if event.get("canceled")]
    texts = [json.loads(body)["instances"][0]["inputs"] for body in page.requests()]
    assert texts == sorted(texts, key=[TEXT, OTHER_TEXT].index)
    assert page.visible("#failure") == []


def test_typing_quickly_asks_once_for_what_was_typed_last(base_url, open_page):
    page = open_page(f"{base_url}/")
    page.evaluate(
        f"""[...{json.dumps(TEXT)}].forEach(letter => {{
          document.querySelector("#text").value += letter;
          document.querySelector("#text").dispatchEvent(new Event("input", {{ bubbles: true }}));
        }})"""
    )
    wait_for_answer(page, asked(base_url, TEXT)["outputs"][0])
    assert [json.loads(body)["instances"][0]["inputs"] for body in final_requests(page)] == [TEXT]


def test_pointing_at_a_word_or_focusing_it_shows_what_it_came_from(base_url, open_page):
    page = open_page(address(base_url, text=TEXT))
    answer = asked(base_url, TEXT)
    wait_for_answer(page, answer["outputs"][0])
    sources = page.visible("#source button")
    assert sources[:4] == TEXT.split()
    assert page.visible("#target button") == ["2016", "-", "07", "-", "04"]
    # The tokens are characters here: those of a word are where it stands in the text.
    word_of_token = [
        word for number, word in enumerate(TEXT.split()) for _ in range(len(word) + (number < 3))
    ]
    first_token = answer["outputs"][0].index("07")
    expected = {word_of_token[token] for token in answer["alignment"][first_token : first_token + 2]}
    active = "document.querySelectorAll('#lines path.active').length"
    assert page.evaluate(active) == 0
    page.point_at("#target button:nth-child(3)")
    page.wait_for(active)
    assert set(page.visible("#source .active")) == expected == {"July"}
    assert page.visible("#target .active") == ["07"]
    assert page.evaluate(active) == len(expected)
    page.point_at("h1")
    assert page.evaluate(active) == 0
    # The same from the keyboard; a screen reader hears it.
    page.focus("#source button")
    page.type(Keys.ARROW_RIGHT)
    page.type(Keys.ARROW_RIGHT)
    assert page.evaluate("document.activeElement.textContent") == "July"
    assert set(page.visible("#target .active")) >= {"07"}
    page.type(Keys.TAB)
    assert page.evaluate("document.activeElement.ariaLabel").startswith("2016, from 2016")
    page.type(Keys.END)
    page.type(Keys.ARROW_LEFT)
    page.type(Keys.ARROW_LEFT)
    assert page.evaluate("document.activeElement.ariaLabel") == "07, from July"
    assert set(page.visible("#source .active")) == {"July"}


# For each link, how far the ends of its line are from the words, and whether it leads to another band.
ENDS = """(() => {
  const frame = document.querySelector("#alignment").getBoundingClientRect();
  const words = (side) => [...document.querySelectorAll(side + " button")].map(word => word.getBoundingClientRect());
  const [sources, targets] = [words("#source"), words("#target")];
  const edge = (places, x, y) => Math.min(...places.flatMap(({ left, width, top, bottom }) =>
    [top, bottom].map(side => Math.hypot(left + width / 2 - frame.left - x, side - frame.top - y))));
  return [...document.querySelectorAll("#lines path")].map(path => {
    const [x1, y1, ...rest] = path.getAttribute("d").match(/-?[0-9.]+/g).map(Number);
    const [x2, y2] = rest.slice(-2);
    return [edge(sources, x1, y1), edge(targets, x2, y2), Number(getComputedStyle(path).opacity)];
  });
})()"""


def test_lines_lead_from_word_to_word_where_words_wrap_too(odd_url, open_page):
    for width, is_wrapped in ((1280, False), (240, True)):
        page = open_page(address(odd_url, text=TEXT), width=width)
        page.wait_for(IS_DONE)
        assert (page.evaluate("document.querySelectorAll('#source .line').length") > 1) == is_wrapped
        assert page.visible("#source button") == [*TEXT.split(), "end"]
        assert page.visible("#target button") == ["2016", "-", "07", "-", "04"]
        ends = page.evaluate(ENDS)
        assert len(ends) >= 5
        assert all(max(source, target) < 1 and opacity > 0 for source, target, opacity in ends)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        # A line of the text, below it its line of the answer, then the next.
        tops = page.evaluate(
            """["#source", "#target"].map(side => [...document.querySelectorAll(side + " .line:not(:empty)")]
              .map(line => line.getBoundingClientRect().top))"""
        )
        assert all(source < target for source, target in zip(*tops))
        assert "not the truth" in page.text("#alignment-card .hint")
    # Narrower and wider again, the words are put anew.
    page.call("Emulation.setDeviceMetricsOverride", width=900, height=800, deviceScaleFactor=1, mobile=False)
    page.wait_for("document.querySelectorAll('#source .line').length === 1")
    assert all(max(source, target) < 1 for source, target, _ in page.evaluate(ENDS))


def test_words_are_split_into_bands_that_few_links_leave(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    widths = [10] * 6
    straight = [[word, word, 1] for word in range(6)]
    turned = [[word, (word + 3) % 6, 1] for word in range(6)]
    cases = [
        ([widths, widths], straight, 60, [[6, 6]]),
        ([widths, widths], straight, 30, [[3, 3], [3, 3]]),
        ([widths, widths], straight, 45, [[4, 4], [2, 2]]),
        ([widths, [10] * 3], [[5, 2, 1]], 30, [[3, 2], [3, 1]]),
        ([[99], [10]], [[0, 0, 1]], 30, [[1, 1]]),
        ([[], []], [], 30, []),
    ]
    for given, links, room, expected in cases:
        bands = page.evaluate(
            f"import('/page/alignment.js').then(m => m.bandsOf({json.dumps(given)}, {json.dumps(links)}, {room}))"
        )
        assert [sum(counts) for counts in zip(*bands)] == [sum(counts) for counts in zip(*expected)]
        if links != [[5, 2, 1]]:  # of which several are best
            assert bands == expected
    bands = page.evaluate(
        f"import('/page/alignment.js').then(m => m.bandsOf({json.dumps([widths, widths])}, {json.dumps(turned)}, 30))"
    )
    assert [sum(counts) for counts in zip(*bands)] == [6, 6]


def test_options_have_labels_and_meanings_and_change_the_request(base_url, open_page):
    page = open_page(address(base_url, text=TEXT))
    wait_for_answer(page, asked(base_url, TEXT)["outputs"][0])
    declared = declared_inputs(base_url)
    chosen = {"num_beams": 2, "length_penalty": 0.3, "target_prefix": "20", "min_length": 3, "max_length": 13}
    chosen |= {"no_repeat_ngram_size": 4, "repetition_penalty": 1.05}
    for name, value in chosen.items():
        label, meaning = page.evaluate(
            f"""(() => {{
              const input = document.querySelector("[name={name}]");
              const hint = document.getElementById(input.getAttribute("aria-describedby"));
              return [input.labels[0].textContent, hint.textContent];
            }})()"""
        )
        assert label == declared[name]["widget"]["label"]
        assert meaning == declared[name]["widget"]["hint"]
        set_option(page, name, value)
    page.wait_for("document.querySelector('#request').textContent.includes('\"repetition_penalty\":1.05')")
    expected = asked(base_url, TEXT, **chosen)
    wait_for_answer(page, expected["outputs"][0])
    assert {name: shown_instance(page)[name] for name in chosen} == chosen
    assert len(page.visible("#best li")) == len([score for score in expected["scores"] if score > -1e29])
    page.click("#reset")
    neutral = neutral_values(base_url)
    page.wait_for("document.querySelector('#request').textContent.includes('\"num_beams\":0')")
    wait_for_answer(page, asked(base_url, TEXT)["outputs"][0])
    assert {name: shown_instance(page)[name] for name in chosen} == {name: neutral[name] for name in chosen}


def test_sampling_has_its_own_options_and_draws_again_with_another_seed(base_url, open_page):
    page = open_page(address(base_url, text=TEXT))
    page.click("[name=mode][value=sample] + span")
    wait_for_answer(page, asked(base_url, TEXT, "sample")["outputs"])
    names = page.evaluate("[...document.querySelectorAll('#options input')].map(input => input.name)")
    assert names == ["target_prefix", "max_length", "temperature", "top_k", "top_p", "min_p", "seed"]
    set_option(page, "temperature", 1.5)
    page.wait_for("location.hash.includes('temperature=1.5')")
    page.click("#again")
    page.wait_for("location.hash.includes('seed=1')")
    wait_for_answer(page, asked(base_url, TEXT, "sample", temperature=1.5, seed=1)["outputs"])
    assert shown_request(page)["signature_name"] == "sample"
    assert (shown_instance(page)["seed"], shown_instance(page)["temperature"]) == (1, 1.5)


def test_back_forward_and_reload_keep_the_state(base_url, open_page):
    page = open_page(f"{base_url}/")
    answers = {text: asked(base_url, text)["outputs"][0] for text in (TEXT, OTHER_TEXT)}
    write(page, TEXT)
    wait_for_answer(page, answers[TEXT])
    page.evaluate("document.activeElement.blur()")
    page.focus("#text")
    page.evaluate("document.querySelector('#text').select()")
    page.type(OTHER_TEXT)
    wait_for_answer(page, answers[OTHER_TEXT])
    page.evaluate("document.activeElement.blur()")
    set_option(page, "num_beams", 3)
    page.wait_for("location.hash.includes('num_beams=3')")
    values = "[document.querySelector('#text').value, document.querySelector('[name=num_beams]').value]"
    page.evaluate("history.back()")
    page.wait_for("!location.hash.includes('num_beams=3')")
    page.evaluate("history.back()")
    wait_for_answer(page, answers[TEXT])
    assert page.evaluate(values)[0] == TEXT
    page.evaluate("history.go(2)")
    page.wait_for("location.hash.includes('num_beams=3')")
    wait_for_answer(page, answers[OTHER_TEXT])
    assert page.evaluate(values) == [OTHER_TEXT, "3"]
    page.reload()
    page.wait_for(f"document.readyState === 'complete' && {IS_DONE}")
    assert page.evaluate(values) == [OTHER_TEXT, "3"]
    assert shown_instance(page)["num_beams"] == 3


def test_a_phone_shows_everything_without_scrolling_sideways(base_url, open_page):
    for state in ({"text": TEXT}, {"text": "w" * 200}, {"text": " ".join([TEXT] * 9), "mode": "sample"}):
        page = open_page(address(base_url, **state), width=360, height=740)
        page.wait_for(IS_DONE)
        page.evaluate("document.querySelector('#options-card').open = true")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        # Nothing inside a card hangs over its edge either.
        outside = """[...document.querySelectorAll("main *")].filter(element => element.checkVisibility()
          && element.getBoundingClientRect().right > 360).map(element => element.outerHTML)"""
        assert page.evaluate(outside) == []


def test_dark_mode_has_colours_of_its_own_and_every_text_is_readable(base_url, open_page):
    luminances = {}
    for scheme in ("light", "dark"):
        page = open_page(address(base_url, text=TEXT), color_scheme=scheme)
        page.wait_for(IS_DONE)
        names = ("ground", "card", "tint", "ink", "quiet", "blue", "warm", "warm-tint")
        colours = page.evaluate(
            f"{json.dumps(names)}.map(name => getComputedStyle(document.documentElement).getPropertyValue('--' + name))"
        )
        luminances[scheme] = dict(zip(names, map(luminance, colours)))
        shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert luminance(shown) == pytest.approx(luminances[scheme]["ground"])
    assert luminances["light"]["ground"] > 0.8
    assert luminances["dark"]["ground"] < 0.05
    # Web Content Accessibility Guidelines 2.2, 1.4.3
    for found in luminances.values():
        pairs = [(text, ground) for text in ("ink", "quiet", "blue") for ground in ("ground", "card", "tint")]
        for text, ground in [*pairs, ("warm", "card"), ("warm", "warm-tint")]:
            low, high = sorted((found[text], found[ground]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def luminance(colour):
    """Relative luminance of "#rrggbb" or "rgb(r, g, b)"."""
    colour = colour.strip()
    if colour.startswith("#"):
        parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    else:
        parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def test_text_of_users_and_models_is_never_markup(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    write(page, MARKUP)
    # The stand-in's answer is the text in capitals, in the answer, its n-best and its tokens.
    wait_for_answer(page, MARKUP.upper()[:16])
    for selector in ("#best bdi", "#request", "#target"):
        assert "<IMG" in page.text(selector).upper()
    assert shown_instance(page)["inputs"] == MARKUP  # its quotes are quoted for the shell
    assert page.evaluate("document.images.length") == 0
    assert "hurt" not in page.evaluate("document.title")
    page.open(address(odd_url, model="pixels", text=MARKUP))
    assert page.evaluate("document.images.length") == 0


def test_an_error_is_one_line_and_the_page_goes_on(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    write(page, "fail")
    page.wait_for("!document.querySelector('#failure').hidden")
    assert page.text("#failure-text") == 'The server answered 400: The text holds "fail".'
    before = final_requests(page)
    page.click("#retry")
    page.wait_for("!document.querySelector('#failure').hidden")
    assert final_requests(page) == [*before, before[-1]]
    page.evaluate("document.querySelector('#text').select()")
    write(page, OTHER_TEXT)
    wait_for_answer(page, OTHER_TEXT)
    assert page.visible("#failure") == []
    # A server that is gone.
    page.call(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    write(page, "!")
    page.wait_for("!document.querySelector('#failure').hidden")
    assert page.text("#failure-text") == "The server does not answer. Is it still running?"


def test_deviations_from_the_request_are_told_in_plain_words(odd_url, open_page):
    page = open_page(address(odd_url, text="many words " * 9, max_length=99))
    page.wait_for(IS_DONE)
    assert page.visible("#notes li") == [
        "The text was too long and was cut.",
        "Longest answer was out of range. The nearest value that is allowed was taken.",
        "The answer reached the most tokens it may have before it came to an end.",
    ]


def asked_for_attention(page):
    """What the pages that were asked for, in their order, are of."""
    sent = [
        urllib.parse.urlsplit(event["request"]["url"]) for event in page.events("Network.requestWillBeSent")
    ]
    return [urllib.parse.parse_qs(url.query) for url in sent if url.path == "/page/attention"]


def test_the_tab_of_attention_shows_the_page_of_the_text_and_only_while_it_is_open(odd_url, open_page):
    page = open_page(address(odd_url, model="dates", text="1 & 2?"))
    page.wait_for(IS_DONE)
    assert page.visible("[role=tab]") == ["Answer", "Attention"]
    assert not page.visible("#attention-panel")
    assert not asked_for_attention(page)
    page.click("#attention-tab")
    assert not page.visible("#answer-panel")
    page.wait_for(
        "document.querySelector('iframe') && !document.querySelector('#attention-note').textContent"
    )
    assert asked_for_attention(page) == [{"model": ["dates"], "text": ["1 & 2?"]}]
    frame = page.frame(f"{odd_url}/page/attention")
    assert frame.evaluate("document.body.textContent").strip() == "1 & 2?"
    # It can reach neither the page around it, nor the server.
    assert frame.evaluate("self.origin") == "null"
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None
    [link] = page.visible("#attention")
    assert link == "Open it on a page of its own"
    href = urllib.parse.urlsplit(page.evaluate("document.querySelector('#attention').href"))
    assert urllib.parse.parse_qs(href.query) == {"model": ["dates"], "text": ["1 & 2?"]}
    assert "view=attention" in page.evaluate("location.hash")

    write(page, "3")
    page.wait_for("document.querySelector('iframe')?.src.endsWith('3')")
    page.evaluate("document.querySelector('#attention-tab').focus()")
    page.type(Keys.ARROW_LEFT)
    assert page.evaluate("document.activeElement.id") == "answer-tab"
    assert page.visible("#alignment-card, #best-card")
    before = len(asked_for_attention(page))
    write(page, "4")
    page.wait_for(f"{IS_DONE} && document.querySelector('#answer').textContent.endsWith('4')")
    assert len(asked_for_attention(page)) == before


def test_the_tab_of_an_export_without_attention_says_how_to_get_it(odd_url, open_page):
    page = open_page(address(odd_url, model="stories", text="once", view="attention"))
    page.wait_for(IS_DONE)
    assert "keras-attn export TASK FOLDER --attention" in page.visible("#attention-note")[0]
    assert not page.visible("#attention")
    assert not asked_for_attention(page)
    page.open(address(odd_url, model="pixels"))
    page.wait_for("!document.querySelector('#raw').hidden")
    assert not page.visible("[role=tab], #attention-panel")


def test_a_text_generator_shows_its_prompt_and_the_continuation(odd_url, open_page):
    page = open_page(address(odd_url, model="stories", text="To be"))
    wait_for_answer(page, "To be and so on")
    assert page.text("#answer .prompt") == "To be"
    assert page.visible("label[for=text]") == ["Prompt"]
    assert shown_request(page)["signature_name"] == "generate"
    assert page.visible("#alignment-card") == []
    page.click("[name=mode][value=sample] + span")
    wait_for_answer(page, "To be and so on 0")


def test_the_model_can_be_changed_and_any_other_kind_asked_with_json(odd_url, open_page):
    page = open_page(address(odd_url, text=TEXT))
    page.wait_for(IS_DONE)
    page.evaluate(
        """(() => {
          const select = document.querySelector("#model");
          select.value = "pixels";
          select.dispatchEvent(new Event("change", { bubbles: true }));
        })()"""
    )
    page.wait_for("location.hash.includes('model=pixels')")
    assert page.visible("#ask, #options-card, #best-card") == []
    assert "pixels float32 [?, 2, 3]" in page.text("#signatures")
    [told] = page.visible("#undeclared")
    assert "has no assets.extra/task.json" in told
    body = {"signature_name": "serving_default", "instances": [{"pixels": [[0, 0, 0], [0, 0, 0]]}]}
    assert json.loads(page.evaluate("document.querySelector('#body').value")) == body
    page.click("#send")
    page.wait_for("document.querySelector('#reply').textContent")
    assert json.loads(page.text("#reply")) == {"predictions": [[0.25, 0.75]]}
    assert json.loads(shlex.split(page.text("#request"))[-1]) == body
    page.focus("#body")
    page.type("x")
    page.click("#send")
    page.wait_for("!document.querySelector('#failure').hidden")
    assert page.text("#failure-text").startswith("The request is not JSON")
    page.evaluate("history.back()")
    page.wait_for(f"{IS_DONE} && document.querySelector('#text').value === {json.dumps(TEXT)}")


def test_it_is_quick_and_loads_nothing_from_elsewhere(base_url, open_page):
    page = open_page(f"{base_url}/")
    first_paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    assert page.wait_for(first_paint) < 1000
    urls = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith((base_url, "about:", "data:"))] == []


def test_words_are_joined_from_the_tokens_of_every_tokenizer(odd_url, open_page):
    page = open_page(f"{odd_url}/")
    cases = {
        ("▁Ein", "▁H", "und", ".", "▁"): ["Ein", "Hund", "."],
        ("a", "##b", "dog", "##s", ",", "no"): ["ab", "dogs", ",", "no"],
        ("a", "o", "<0xC3>", "<0xBB>", "t", "▁", "1"): ["août", "1"],
        ("▁今", "日", "は"): ["今", "日", "は"],
        ("▁don", "'", "t"): ["don't"],
        (): [],
    }
    for tokens, expected in cases.items():
        joined = page.evaluate(
            f"import('/page/alignment.js').then(m => m.wordsOf({json.dumps(tokens)}).map(word => word.text))"
        )
        assert joined == expected
