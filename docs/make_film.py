"""Writes docs/film.svg, the film of the main job: train, translate, serve.

    python docs/make_film.py

What it shows was really printed: the lines of training are those of docs/results/dates-s0/log.txt, the answers are those of
saved_models/dates/1, and the page is docs/screenshots/page_light.png.
"""

import argparse
import base64
import html
import pathlib
import re

from keras_attn import export

DOCS = pathlib.Path(__file__).resolve().parent
WIDTH, HEIGHT = 1280, 850
LINE, LEFT, TOP = 29, 48, 92
SECONDS = 20
FIRST_FRAME_LINES = 9
DATES = ["4th of July 2016", "Montag, 4. Juli 2016", "le 1er mars 1999", "2 Feb. 1977", "31.12.2038"]


def training_lines(log):
    """The command, and what the run printed: each epoch, and the example below it."""
    text = re.sub(r"^\d{4}-\d\d-\d\d [\d:]+ ", "", log, flags=re.MULTILINE)
    lines = ["$ python examples/translate.py", *text.splitlines()[:2]]
    lines += re.findall(r"^Epoch .*$|^  .* -> .*$", text, flags=re.MULTILINE)
    return lines + re.findall(r"^dates test.*$|^  exact match.*$|^Trained.*$", text, flags=re.MULTILINE)[-3:]


def answers():
    requests = [{"inputs": {"inputs": DATES}}]
    (answer,) = export.run_saved_model(DOCS.parent / "saved_models" / "dates" / "1", requests)
    return answer["outputs"]["outputs"]


def terminal(lines, first, last, end, at_once=0):
    """Lines that appear one after another from second `first` to `last`, and go away at `end`.

    The first `at_once` of them are there when the film begins.
    """
    parts = []
    for number, line in enumerate(lines):
        start = first + (last - first) * (number - at_once) / max(1, len(lines) - 1 - at_once)
        if number < at_once:
            start = 0
        kind = "command" if line.startswith("$") else "right" if "(right)" in line else "line"
        y = TOP + LINE * number
        parts.append(
            f'<text class="{kind} {shown(start, end)}" x="{LEFT}" y="{y}">{html.escape(line, quote=False)}</text>'
        )
    return parts


KEYFRAMES = {}


def shown(start, end):
    """A class that is visible between two seconds of the film."""
    name = f"s{len(KEYFRAMES)}" if (start, end) not in KEYFRAMES else KEYFRAMES[start, end]
    KEYFRAMES[start, end] = name
    return name


def style():
    rules = [
        "text{font:22px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:#d7dde5}",
        ".command{fill:#fff;font-weight:bold}.right{fill:#8fd694}",
        ".title{font:600 24px system-ui,'DejaVu Sans',sans-serif;fill:#8fb7e8}",
    ]
    for (start, end), name in KEYFRAMES.items():
        a, b = 100 * start / SECONDS, 100 * end / SECONDS
        # What begins the film is there at once, and stays where nothing moves.
        before = f"0%,{a:.2f}%{{opacity:0}}{a + 0.4:.2f}%" if start else "0%"
        after = f"{b:.2f}%,100%{{opacity:0}}" if end < SECONDS else ""
        rules.append(
            f"@keyframes {name}{{{before},{b - 0.4:.2f}%{{opacity:1}}{after}}}"
            f".{name}{{opacity:{int(not start)};animation:{name} {SECONDS}s linear infinite}}"
        )
    # Whoever wants no motion sees the page that is served.
    rules.append(
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}"
        "text,g{opacity:0!important}.last{opacity:1!important}}"
    )
    return "<style>" + "".join(rules) + "</style>"


def film():
    log = (DOCS / "results" / "dates-s0" / "log.txt").read_text(encoding="utf-8")
    lines = training_lines(log)
    translated = ["saved_models/dates/1 answers in a new process without Python TensorFlow, XLA off:"]
    translated += [f"  {date}  ->  {answer}" for date, answer in zip(DATES, answers())]
    picture = base64.b64encode((DOCS / "screenshots" / "page_light.png").read_bytes()).decode()
    parts = [
        f'<text class="title {shown(0, 9)}" x="{LEFT}" y="50">1  Train: written dates, four minutes on two cores</text>',
        *terminal(lines, 0.5, 7, 9, at_once=FIRST_FRAME_LINES),
        f'<text class="title {shown(9, 14)}" x="{LEFT}" y="50">2  Export: strings in, strings out</text>',
        *terminal(translated, 9.2, 12, 14),
        f'<g class="last {shown(14, 20)}"><image width="{WIDTH}" height="{HEIGHT}" '
        f'href="data:image/png;base64,{picture}"/></g>',
        f'<text class="title last {shown(14, 20)}" x="300" y="38" style="fill:#0060a0">3  keras-attn serve runs/dates</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Training a translator of dates, the answers of its export, and the page that serves it">'
        f'{style()}<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#1b222c"/>{"".join(parts)}</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=DOCS / "film.svg")
    parser.parse_args().output.write_text(film(), encoding="utf-8")


if __name__ == "__main__":
    main()
