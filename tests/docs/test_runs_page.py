"""The page of numbers and the film show what the records say."""

import json
import shutil

import make_film
import make_numbers
import pytest


def test_the_page_is_what_the_records_say():
    assert make_numbers.PAGE.read_text(encoding="utf-8") == make_numbers.page(), "python docs/make_numbers.py"


def test_another_record_is_another_page(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(make_numbers.DOCS / "results", folder)
    record = folder / "tok-s1" / "run.json"
    run = json.loads(record.read_text(encoding="utf-8"))
    run["results"]["test"]["bleu"] = 12.347
    record.write_text(json.dumps(run), encoding="utf-8")
    shutil.rmtree(folder / "shakespeare-s2")
    page = make_numbers.page(folder)
    assert "| 12.35 |" in page
    assert "shakespeare-s2" not in page
    # The mean and the sample standard deviation of the two that are left.
    (row,) = (line for line in page.splitlines() if line.startswith("| shakespeare |"))
    _, seeds, figure, mean, deviation, values = row.strip("| ").split(" | ")
    first, second = (float(value) for value in values.split(", "))
    assert (seeds, figure) == ("1, 3", "validation loss, nats")
    assert float(mean) == pytest.approx((first + second) / 2, abs=1e-4)
    assert float(deviation) == pytest.approx(abs(first - second) / 2**0.5, abs=1e-4)


@pytest.mark.extended
def test_the_film_shows_what_was_printed():
    assert (make_film.DOCS / "film.svg").read_text(encoding="utf-8") == make_film.film(), (
        "python docs/make_film.py"
    )
