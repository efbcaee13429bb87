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
    recipe, data = runs.open_data([options.data], folder=options.data_dir)
    recipe = recipe.replace(epochs=options.epochs)
    if options.num_pairs:
        train = data.train
        few = type(train)(
            train.sources[: options.num_pairs],
            train.targets[: options.num_pairs],
            f"{train.name}, the first few",
        )
        data = data._replace(train=few)
    folder = (
        pathlib.Path(options.output) if options.output else runs.free_folder(f"runs/{options.data}", recipe)
    )
    translator = runs.train(data, folder, recipe)

    sentences = SENTENCES[options.data]
    version_folder = translator.export(f"{options.saved_models}/{options.data}", examples=sentences)
    translations = runs.check_export(translator, version_folder, sentences)
    print(f"\n{version_folder} answers in a new process without Python TensorFlow, XLA off, as in Python:")
    for sentence, translation in zip(sentences, translations):
        print(f"  {sentence}  ->  {translation}")

    if importlib.util.find_spec("matplotlib"):
        _, attention_map = translator(sentences[1], return_attention_scores=True)
        plots.plot_attention(
            attention_map.attention_scores[-1],  # the heads of the last decoder layer
            attention_map.source_tokens,
            attention_map.target_tokens,
            title=f"Cross-attention of the last decoder layer: {sentences[1]}",
            path=folder / "attention.png",
        )
        print(f"A picture of its attention lies in {folder / 'attention.png'}")


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
