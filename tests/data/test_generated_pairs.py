"""Dates in three languages, and sequences in reverse: what is drawn, evenly, and the same on any machine."""

import collections
import datetime
import hashlib
import re
import statistics

import pytest

from keras_attn.data import date_pairs, reverse_pairs
from keras_attn.data import generated_pairs as dates

ALL_DAYS = [datetime.date(1950, 1, 1) + datetime.timedelta(days=n) for n in range(36_525)]


def render(template, day, language):
    return template.format_map(dates.date_fields(day, language))


@pytest.mark.slow
def test_no_text_means_two_dates():
    assert ALL_DAYS[-1] == datetime.date(2049, 12, 31)
    meaning = {}
    for language, templates in dates.FORMATS.items():
        for day in ALL_DAYS:
            fields = dates.date_fields(day, language)
            for template in templates:
                text = template.format_map(fields)
                assert meaning.setdefault(text, day) == day, text
    # A few names are their own abbreviation (May, Mai, mars); otherwise every format gives texts of its own.
    assert len(meaning) > 0.85 * len(ALL_DAYS) * sum(map(len, dates.FORMATS.values()))


def test_at_least_twelve_formats_a_language_all_different():
    assert set(dates.FORMATS) == {"english", "german", "french"}
    day = datetime.date(2003, 9, 5)
    for language, templates in dates.FORMATS.items():
        assert len({render(template, day, language) for template in templates}) == len(templates) >= 12


# Written by hand; the weekdays of these days are those of the printed calendars.
BY_HAND = [
    ("english", "{month} {nth}, {y}", (2016, 7, 4), "July 4th, 2016"),
    ("english", "{weekday}, the {nth} of {month} {y}", (1969, 7, 20), "Sunday, the 20th of July 1969"),
    ("english", "{short_weekday}, {dd} {short_month} {y}", (2000, 1, 1), "Sat, 01 Jan 2000"),
    ("english", "{dd} {SHORT_MONTH} {y}", (1999, 2, 3), "03 FEB 1999"),
    ("english", "{lower_weekday}, {lower_month} {d}, {y}", (1989, 11, 9), "thursday, november 9, 1989"),
    ("english", "{y}/{mm}/{dd}", (2016, 7, 4), "2016/07/04"),
    ("german", "{d}. {month} {y}", (1999, 3, 1), "1. März 1999"),
    ("german", "am {weekday}, dem {d}. {month} {y}", (1989, 11, 9), "am Donnerstag, dem 9. November 1989"),
    ("german", "{short_weekday}, {d}. {short_month} {y}", (2016, 9, 5), "Mo, 5. Sept. 2016"),
    ("german", "{d}. {MONTH} {y}", (1999, 3, 1), "1. MÄRZ 1999"),
    ("german", "{short_weekday}, {d}.{m}.{y}", (2000, 2, 29), "Di, 29.2.2000"),
    ("german", "{dd}.{mm}.{y}", (2016, 7, 4), "04.07.2016"),
    ("french", "{nth} {month} {y}", (2016, 7, 1), "1er juillet 2016"),
    ("french", "{nth} {month} {y}", (2016, 7, 4), "4 juillet 2016"),
    ("french", "le {weekday} {nth} {month} {y}", (1944, 8, 25), "le vendredi 25 août 1944"),
    ("french", "{short_weekday} {nth} {short_month} {y}", (2000, 2, 29), "mar. 29 févr. 2000"),
    ("french", "{WEEKDAY} {NTH} {MONTH} {y}", (1975, 8, 1), "VENDREDI 1ER AOÛT 1975"),
    ("french", "{Weekday} {nth} {Month} {y}", (2016, 7, 4), "Lundi 4 Juillet 2016"),
    ("french", "{dd}/{mm}/{y}", (2016, 7, 4), "04/07/2016"),
]


@pytest.mark.parametrize(("language", "template", "day", "text"), BY_HAND)
def test_texts_written_by_hand(language, template, day, text):
    assert template in dates.FORMATS[language]
    assert render(template, datetime.date(*day), language) == text


def test_every_name_of_every_table():
    spelled = collections.defaultdict(list)
    for language in dates.FORMATS:
        for month in range(1, 13):
            fields = dates.date_fields(datetime.date(2001, month, 1), language)
            spelled[language].append(fields["month"])
        for day in range(1, 8):  # 1 January 2001 was a Monday.
            fields = dates.date_fields(datetime.date(2001, 1, day), language)
            spelled[language].append(fields["weekday"])
            assert fields["weekday"].lower().startswith(fields["short_weekday"].lower().rstrip("."))
    assert " ".join(spelled["english"]) == (
        "January February March April May June July August September October November December "
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
    )
    assert " ".join(spelled["german"]) == (
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember "
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"
    )
    assert " ".join(spelled["french"]) == (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre "
        "lundi mardi mercredi jeudi vendredi samedi dimanche"
    )


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("{weekday}, {month} {d}, {y}", "%A, %B %d, %Y"),
        ("{short_weekday}, {dd} {short_month} {y}", "%a, %d %b %Y"),
        ("{dd}-{short_month}-{y}", "%d-%b-%Y"),
        ("{dd} {SHORT_MONTH} {y}", "%d %b %Y"),
        ("{y}/{mm}/{dd}", "%Y/%m/%d"),
    ],
)
def test_python_reads_the_english_formats_back(template, pattern):
    assert template in dates.FORMATS["english"]
    for day in ALL_DAYS[::31]:
        text = render(template, day, "english")
        assert datetime.datetime.strptime(text, pattern).date() == day
        # strptime believes any weekday; strftime knows the true one.
        assert day.strftime(pattern).replace(" 0", " ").lower() == text.replace(" 0", " ").lower()


def test_english_ordinals():
    spelled = [dates.date_fields(datetime.date(2001, 1, day), "english")["nth"] for day in range(1, 32)]
    assert " ".join(spelled) == (
        "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th 13th 14th 15th 16th 17th 18th 19th 20th "
        "21st 22nd 23rd 24th 25th 26th 27th 28th 29th 30th 31st"
    )


def test_splits_have_their_sizes_and_share_no_day():
    splits = {split: date_pairs(split) for split in ("train", "validation", "test")}
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        "train": 40_000,
        "validation": 500,
        "test": 1_000,
    }
    train, validation, test = (set(pairs.targets) for pairs in splits.values())
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(test) == 1_000
    assert all(datetime.date(1950, 1, 1) <= datetime.date.fromisoformat(day) for day in train)


def test_splits_share_no_day_under_any_seeds_and_cover_the_century():
    train = set(date_pairs("train", seed=3).targets)
    others = [set(date_pairs(split, size=2_000, seed=5).targets) for split in ("validation", "test")]
    assert not train & others[0]
    assert not train & others[1]
    assert not others[0] & others[1]
    assert train.union(*others) == {day.isoformat() for day in ALL_DAYS}


def test_sources_are_renderings_of_their_targets_spread_evenly():
    pairs = date_pairs("validation", size=3 * 16 * 7, seed=11)
    counts = collections.Counter()
    for source, target in zip(pairs.sources, pairs.targets):
        day = datetime.date.fromisoformat(target)
        matches = {
            language: [template for template in templates if render(template, day, language) == source]
            for language, templates in dates.FORMATS.items()
        }
        found = [language for language, templates in matches.items() if templates]
        assert len(found) == 1, source
        counts[found[0]] += 1
        counts.update((found[0], template) for template in matches[found[0]])
    for language, templates in dates.FORMATS.items():
        assert counts[language] == 16 * 7
        # More than 7 only where an abbreviation is the whole name.
        assert all(counts[language, template] >= 7 for template in templates)


def test_the_same_seed_gives_the_same_pairs_on_any_machine():
    pairs = date_pairs("train")
    text = "\n".join(f"{source}\t{target}" for source, target in zip(pairs.sources, pairs.targets))
    assert (
        hashlib.sha256(text.encode("utf-8")).hexdigest()
        == "2a0cbaa96b8c2c7e310e71da83076f6d65b5f115ffb827778f027ae490c28ff1"
    )
    assert pairs.sources[:3] == ["le 9 oct. 2004", "Wednesday, May 23, 1956", "03. Juni 1982"]


def test_seeds_differ_and_a_smaller_size_is_the_beginning():
    assert date_pairs("test", size=101).sources == date_pairs("test").sources[:101]
    assert date_pairs("test", size=101, seed=1).sources != date_pairs("test", size=101).sources


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("split", "size", "longest"), [("train", 40_000, 25), ("validation", 1_000, 30), ("test", 1_000, 30)]
)
def test_targets_are_sources_in_reverse(split, size, longest):
    pairs = reverse_pairs(split)
    assert len(pairs) == size
    assert pairs.name == f"reverse {split}"
    rows = [list(map(int, source.split(" "))) for source in pairs.sources]
    assert [" ".join(map(str, row[::-1])) for row in rows] == pairs.targets
    assert {len(row) for row in rows} == set(range(1, longest + 1))
    assert {number for row in rows for number in row} == set(range(50))
    # Lengths and numbers are drawn evenly: their means are within four standard errors of what that gives.
    assert abs(statistics.fmean(map(len, rows)) - (1 + longest) / 2) < 4 * longest / (12 * size) ** 0.5
    assert abs(statistics.fmean(row[0] for row in rows) - 24.5) < 4 * 50 / (12 * size) ** 0.5


def test_the_same_arguments_give_the_same_sequences():
    pairs = reverse_pairs("train", size=23, seed=5)
    assert pairs == reverse_pairs("train", size=23, seed=5)
    assert reverse_pairs("train", size=11, seed=5).sources == pairs.sources[:11]
    assert pairs.sources != reverse_pairs("train", size=23, seed=7).sources
    assert pairs.sources != reverse_pairs("validation", size=23, seed=5).sources


@pytest.mark.parametrize("draw", [date_pairs, reverse_pairs])
def test_bad_arguments(draw):
    with pytest.raises(ValueError, match=r"must be one of train, validation, test\. Received: split='dev'"):
        draw("dev")
    for size in (0, -3, 2.5):
        with pytest.raises(
            ValueError, match=re.escape(f"`size` must be a positive integer. Received: size={size}.")
        ):
            draw("test", size=size)
