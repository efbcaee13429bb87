"""The pages of runs and results, and the film, show what the records say."""

import base64
import json
import re
import shutil
import statistics

import make_film
import make_runs
import pytest


def test_the_page_is_what_the_records_say():
    assert make_runs.PAGE.read_text(encoding="utf-8") == make_runs.page(), "python docs/make_runs.py"


def test_another_record_is_another_page(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(make_runs.DOCS / "results", folder)
    record = folder / "tok-s1" / "run.json"
    run = json.loads(record.read_text(encoding="utf-8"))
    run["results"]["test"]["bleu"] = 12.347
    record.write_text(json.dumps(run), encoding="utf-8")
    shutil.rmtree(folder / "shakespeare-s2")
    page = make_runs.page(folder)
    assert "| 12.35 |" in page
    assert "shakespeare-s2" not in page
    # The mean and the sample standard deviation of the two that are left.
    (row,) = (line for line in page.splitlines() if line.startswith("| shakespeare |"))
    _, seeds, figure, mean, deviation, values = row.strip("| ").split(" | ")
    first, second = (float(value) for value in values.split(", "))
    assert (seeds, figure) == ("1, 3", "validation loss, nats")
    assert float(mean) == pytest.approx((first + second) / 2, abs=1e-4)
    assert float(deviation) == pytest.approx(abs(first - second) / 2**0.5, abs=1e-4)


def test_the_scores_of_the_results_are_means_of_the_linked_records():
    text = (make_runs.DOCS / "results.md").read_text(encoding="utf-8")
    compared = 0
    for row in re.findall(r"^\| .*", text, flags=re.MULTILINE):
        folders = re.findall(r"\]\(results/([\w-]+)\)", row)
        if folders:
            runs = [make_runs.read_run(make_runs.DOCS / "results" / folder) for folder in folders]
            scores = [run["test"]["bleu"] if run["test"] else run["validation"]["loss"] for run in runs]
            (shown,) = re.findall(r"\*\*([\d.]+)\*\*", row)
            assert float(shown) == round(statistics.mean(scores), len(shown.partition(".")[2])), row
            compared += 1
    assert compared == 6


@pytest.mark.extended
def test_the_film_holds_the_page_as_it_is():
    picture = base64.b64encode((make_film.DOCS / "screenshots" / "page_light.png").read_bytes()).decode()
    film = (make_film.DOCS / "film.svg").read_text(encoding="utf-8")
    assert picture in film, "python docs/make_film.py"


def test_the_film_shows_what_was_printed():
    assert (make_film.DOCS / "film.svg").read_text(encoding="utf-8") == make_film.film(), (
        "python docs/make_film.py"
    )
