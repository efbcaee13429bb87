"""Writes docs/archive/runs.md from the records of the runs in docs/results.

    python docs/make_runs.py           # writes the page
    python docs/make_runs.py --check   # says whether it is up to date

A run's figures are those of its `run.json`, its epochs those of `history.csv`, its parameters those of its log.
"""

import argparse
import csv
import itertools
import json
import pathlib
import re
import statistics
import sys

DOCS = pathlib.Path(__file__).resolve().parent
PAGE = DOCS / "archive" / "runs.md"

HEAD = """# All runs

Every run with a record in [docs/results](../results). `python docs/make_runs.py` wrote this page from the records, and a test compares it
with them. [Results](../results.md) has the scores that matter, beside published ones.

A record is a recipe too: `keras-attn train --recipe docs/results/NAME/run.json --output runs/again` trains it again.
"""


def read_run(folder):
    """The figures of a run, by the names of the table's columns."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    recipe, results = record["recipe"], record["results"]
    with open(folder / "history.csv", encoding="utf-8", newline="") as opened:
        epochs = len({row["epoch"] for row in csv.DictReader(opened)})
    parameters = re.search(r"([\d,]+) parameters", (folder / "log.txt").read_text(encoding="utf-8"))
    return {
        "name": folder.name,
        "data": ", ".join(record["data"]["train"]),
        "model": model_of(recipe["model"]),
        "parameters": parameters[1],
        "seed": recipe["seed"],
        "epochs": epochs,
        "minutes": results["training_seconds"] / 60,
        "beams": recipe["num_beams"],
        "validation": results["validation"],
        "test": results.get("test"),
        "policy": record["dtype_policy"],
        "versions": record["versions"],
    }


def model_of(model):
    """A few words for the part `model` of a recipe."""
    if model.get("kind") == "rnn":
        return f"RNN, width {model['hidden_dim']}"
    if model.get("kind") == "decoder":
        return f"decoder of {model['num_layers']} layers, width {model['hidden_dim']}"
    layers = [model.get("num_encoder_layers"), model.get("num_decoder_layers")]
    size = f"`{model['size']}`" if "size" in model else f"width {model['hidden_dim']}"
    words = [
        size,
        f"{layers[0]} + {layers[1]} layers" if layers[0] else "",
        model.get("position_encoding", ""),
    ]
    return ", ".join(word for word in words if word)


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def table(rows):
    """Markdown of a list of rows, the first of which is the head."""
    head, *body = ([str(cell) for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def translators(runs):
    head = ["run", "training data", "model", "parameters", "policy", "seed", "epochs", "minutes", "beams"]
    rows = [[*head, "validation BLEU", "test BLEU", "test chrF", "test exact match, %"]]
    for run in runs:
        test = run["test"]
        rows.append(
            [
                f"[{run['name']}](../results/{run['name']})",
                run["data"],
                run["model"],
                run["parameters"],
                run["policy"],
                run["seed"],
                run["epochs"],
                number(run["minutes"], 0),
                run["beams"],
                number(run["validation"]["bleu"]),
                number(test["bleu"]),
                number(test["chrf"]),
                number(test["exact_match"]),
            ]
        )
    return table(rows)


def language_models(runs):
    rows = [
        ["run", "training data", "model", "parameters", "seed", "epochs", "minutes", "validation loss, nats"]
    ]
    for run in runs:
        rows.append(
            [
                f"[{run['name']}](../results/{run['name']})",
                run["data"],
                run["model"],
                run["parameters"],
                run["seed"],
                run["epochs"],
                number(run["minutes"], 1),
                number(run["validation"]["loss"], 4),
            ]
        )
    return table(rows)


def several_seeds(runs):
    """One row for each setting that was run with several seeds."""
    rows = [["setting", "seeds", "figure", "mean", "standard deviation", "values"]]
    for setting, group in itertools.groupby(runs, key=lambda run: run["name"].rpartition("-s")[0]):
        group = list(group)
        if len(group) > 1:
            name = "test BLEU" if group[0]["test"] else "validation loss, nats"
            values = [run["test"]["bleu"] if run["test"] else run["validation"]["loss"] for run in group]
            digits = 2 if group[0]["test"] else 4
            rows.append(
                [
                    setting,
                    ", ".join(str(run["seed"]) for run in group),
                    name,
                    number(statistics.mean(values), digits),
                    number(statistics.stdev(values), digits),
                    ", ".join(number(value, digits) for value in values),
                ]
            )
    return table(rows)


def signatures(runs):
    found = sorted({run["test"]["bleu_signature"] for run in runs if run["test"]})
    return "\n".join(f"- `{signature}`" for signature in found)


def versions(runs):
    """Which versions the runs used: a row for each package."""
    packages = sorted({package for run in runs for package in run["versions"]})
    rows = [["package", "versions"]]
    for package in packages:
        found = sorted({run["versions"][package] for run in runs if package in run["versions"]})
        rows.append([package, ", ".join(found)])
    return table(rows)


def page(folder=DOCS / "results"):
    """The page's text."""
    runs = [read_run(path.parent) for path in sorted(folder.glob("*/run.json"))]
    of_translators = [run for run in runs if "bleu" in run["validation"]]
    parts = [
        HEAD,
        "## Translators\n",
        "The weights that a run kept, chosen on validation; the test set was used for this figure only.\n",
        translators(of_translators),
        "\nBLEU is sacreBLEU with these signatures; `tok:none` where the files are tokenised:\n",
        signatures(of_translators),
        "\n## Language models\n",
        language_models([run for run in runs if "loss" in run["validation"]]),
        "\n## Several seeds\n",
        several_seeds(runs),
        "\n## Validation BLEU by epoch\n",
        "![Validation BLEU, greedy, after each epoch](../results/learning_curves.png)\n",
        "## Versions\n",
        versions(runs),
    ]
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; end with 1 if the page is not up to date"
    )
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE.name} is not what the records say: python docs/make_runs.py")
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
