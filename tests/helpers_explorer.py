"""The explorer's page as a reader of HTML sees it, and its data decoded by hand."""

import base64
import html.parser
import json
import zlib

import numpy as np

# The object behind a page in a browser.
EXPLORER = "document.querySelector('[data-explorer]').explorer"


class ExplorerParser(html.parser.HTMLParser):
    """The scripts, styles and other text of a page, and the attributes of its tags."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts.append((*self.open[-1], data))

    def of(self, tag, **attributes):
        """The texts of the elements of a tag with these attributes."""
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [
            text
            for name, given, text in self.texts
            if name == tag
            and all(key in given and value in (True, given[key]) for key, value in wanted.items())
        ]

    @property
    def data(self):
        [text] = self.of("script", data_explorer_data=True)
        return json.loads(text)

    def pixels(self):
        """The levels of the page's image, (height, width, 3)."""
        picture = self.data["image"]
        levels = np.frombuffer(zlib.decompress(base64.b64decode(picture["pixels"])), "uint8")
        return levels.reshape(picture["height"], picture["width"], 3)

    def codes(self, place, head):
        """The bytes of a head."""
        [text] = self.of("script", data_heads=place)
        return np.frombuffer(zlib.decompress(base64.b64decode(text.split(" ")[head])), "uint8")


def softmax_scores(rng, *shape, sharpness=3.0):
    """Scores as heads of some sharpness have them."""
    logits = sharpness * rng.normal(size=shape)
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (scores / scores.sum(axis=-1, keepdims=True)).astype("float32")
