"""Takes the pictures of the page in docs/screenshots: `python tests/serve/take_screenshots.py URL` of a server of dates."""

import argparse
import pathlib
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from helpers_browser import Browser, find_chromium  # noqa: E402

IS_DONE = "document.querySelectorAll('#best li').length"
SHOTS = {
    "page_light.png": ({"text": "Montag, 4. Juli 2016"}, {"height": 850}, "#target button:nth-child(3)"),
    "page_dark.png": (
        {"text": "le 1er mars 1999", "num_beams": 3},
        {"height": 850, "color_scheme": "dark"},
        "#source button:nth-child(3)",
    ),
    "page_phone.png": (
        {"text": "4th of July 2016"},
        {"width": 360, "height": 780},
        "#target button:nth-child(1)",
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs" / "screenshots")
    options = parser.parse_args()
    browser = Browser(find_chromium())
    try:
        for name, (state, look, word) in SHOTS.items():
            page = browser.page(f"{options.url}/#{urllib.parse.urlencode(state)}", **look)
            page.wait_for(IS_DONE)
            # As if the pointer were there: moving it may scroll the page.
            page.evaluate(f"document.querySelector('{word}').dispatchEvent(new PointerEvent('pointerenter'))")
            time.sleep(0.5)
            page.screenshot(options.folder / name)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
