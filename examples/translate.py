"""Train a translator, plot its attention, export it, and run the export as TF Serving would.

    python examples/translate.py                  # built-in dates, minutes on two cores
    python examples/translate.py --data multi30k  # English to German, an hour on two cores

It writes to `runs/` and `saved_models/`.
"""

import argparse
import importlib.util
import pathlib

from keras_attn_cli import quiet_imports

with quiet_imports(for_training=True):  # without TensorFlow's own lines
    from keras_attn import plots, runs

SENTENCES = {
    "dates": ["4th of July 2016", "Montag, 4. Juli 2016", "le 1er mars 1999", "2 Feb. 1977", "31.12.2038"],
    "multi30k": [
        "A dog runs through the snow.",
        "Two children are playing in a park.",
        "A man in a blue shirt is standing on a ladder.",
        "A woman is reading a book on a bench.",
        "People are waiting at the train station.",
    ],
}


def main():
    options = parse_arguments()
    recipe = runs.Recipe.load(options.data).replace(data_dir=options.data_dir, epochs=options.epochs)
    data = runs.open_splits(recipe)
    if options.num_pairs:
        data = data._replace(train=first_pairs(data.train, options.num_pairs))
    folder = options.output or runs.free_folder(f"runs/{options.data}", recipe)
    translator = runs.train(data, folder, recipe)
    sentences = SENTENCES[options.data]
    export(translator, f"{options.saved_models}/{options.data}", sentences)
    if importlib.util.find_spec("matplotlib"):
        plot(translator, sentences[1], pathlib.Path(folder) / "attention.png")


def first_pairs(pairs, count):
    return type(pairs)(pairs.sources[:count], pairs.targets[:count], f"{pairs.name}, the first few")


def export(translator, folder, sentences):
    version_folder = translator.export(folder, examples=sentences)
    translations = runs.check_export(translator, version_folder, sentences)
    print(f"\n{version_folder} answers in a new process without Python TensorFlow, XLA off, as in Python:")
    for sentence, translation in zip(sentences, translations):
        print(f"  {sentence}  ->  {translation}")


def plot(translator, sentence, path):
    _, attention_map = translator(sentence, return_attention_scores=True)
    plots.plot_attention(
        attention_map.attention_scores[-1],  # the heads of the last decoder layer
        attention_map.source_tokens,
        attention_map.target_tokens,
        title=f"Cross-attention of the last decoder layer: {sentence}",
        path=path,
    )
    print(f"A picture of its attention lies in {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=sorted(SENTENCES), default="dates")
    parser.add_argument("--data-dir", help="where Multi30k lies (default: it is downloaded)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--num-pairs", type=int, help="train on the first so many pairs only")
    parser.add_argument("--output", help="run folder (default: the next free runs/NAME)")
    parser.add_argument("--saved-models", default="saved_models", help="where the export goes")
    options = parser.parse_args()
    if any(number is not None and number < 1 for number in (options.epochs, options.num_pairs)):
        parser.error("--epochs and --num-pairs must be at least 1")
    return options


if __name__ == "__main__":
    main()
