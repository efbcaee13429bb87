"""Pairs that need no files: dates in three languages and their ISO 8601 form, and sequences of numbers in reverse."""

import datetime
import functools
import random

from keras_attn.checks import check_positive
from keras_attn.data.text_pairs import TextPairs

FIRST_YEAR, LAST_YEAR = 1950, 2049
DATE_SPLITS = {"train": 40_000, "validation": 500, "test": 1_000}

# The partition of the days does not depend on the caller's seed: training with one seed and testing with
# another would otherwise test days that were trained on.
_PARTITION_SEED = "keras_attn.data.dates"
_HELD_OUT_SHARE = 0.05

_WORDS = {
    "english": {
        "months": "January February March April May June July August September October November December",
        "short_months": "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
        "weekdays": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "short_weekdays": "Mon Tue Wed Thu Fri Sat Sun",
    },
    "german": {
        "months": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "short_months": "Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.",
        "weekdays": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        "short_weekdays": "Mo Di Mi Do Fr Sa So",
    },
    "french": {
        "months": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "short_months": "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
        "weekdays": "lundi mardi mercredi jeudi vendredi samedi dimanche",
        "short_weekdays": "lun. mar. mer. jeu. ven. sam. dim.",
    },
}
_NAMES = {
    language: {kind: words.split() for kind, words in kinds.items()} for language, kinds in _WORDS.items()
}

# `d` and `m` are the day and the month as numbers (`dd` and `mm` with two digits), `nth` the day as an
# ordinal. A lower-case, Capitalised or UPPER-CASE field name gives its value as the language writes it,
# capitalised, or in capitals; `lower_` fields are in lower case. All-number formats have one order per
# separator in every language (slashes: day first, or year first; dots: day first), so that no text means two
# dates.
FORMATS = {
    "english": (
        "{d} {month} {y}",
        "{month} {d}, {y}",
        "{month} {nth}, {y}",
        "{nth} {month} {y}",
        "the {nth} of {month}, {y}",
        "{weekday}, {month} {d}, {y}",
        "{weekday} {d} {month} {y}",
        "{weekday}, {month} {nth}, {y}",
        "{weekday}, the {nth} of {month} {y}",
        "{short_weekday}, {dd} {short_month} {y}",
        "{short_month} {d}, {y}",
        "{short_weekday} {short_month} {d} {y}",
        "{dd}-{short_month}-{y}",
        "{dd} {SHORT_MONTH} {y}",
        "{lower_weekday}, {lower_month} {d}, {y}",
        "{y}/{mm}/{dd}",
    ),
    "german": (
        "{d}. {month} {y}",
        "{dd}. {month} {y}",
        "den {d}. {month} {y}",
        "am {d}. {month} {y}",
        "{weekday}, {d}. {month} {y}",
        "{weekday}, den {d}. {month} {y}",
        "am {weekday}, dem {d}. {month} {y}",
        "{short_weekday}., {d}. {month} {y}",
        "{short_weekday}, {d}. {short_month} {y}",
        "{d}. {short_month} {y}",
        "{d}. {MONTH} {y}",
        "{lower_weekday}, {d}. {lower_month} {y}",
        "{dd}.{mm}.{y}",
        "{d}.{m}.{y}",
        "{weekday}, {dd}.{mm}.{y}",
        "{short_weekday}, {d}.{m}.{y}",
    ),
    "french": (
        "{nth} {month} {y}",
        "{dd} {month} {y}",
        "le {nth} {month} {y}",
        "{weekday} {nth} {month} {y}",
        "le {weekday} {nth} {month} {y}",
        "{Weekday} {nth} {Month} {y}",
        "{short_weekday} {nth} {short_month} {y}",
        "{nth} {short_month} {y}",
        "le {nth} {short_month} {y}",
        "{NTH} {MONTH} {y}",
        "{WEEKDAY} {NTH} {MONTH} {y}",
        "{dd}/{mm}/{y}",
        "{d}/{m}/{y}",
        "{weekday} {dd}/{mm}/{y}",
        "{short_weekday} {dd}/{mm}/{y}",
        "le {d}/{m}/{y}",
    ),
}


def date_pairs(split, size=None, seed=0):
    """Draws pairs of a human-readable date and its ISO 8601 form: "4. Juli 2016" and "2016-07-04".

    The division of the days of 1950 to 2049 is fixed: 90 % to train, 5 % each to validation and test: splits
    share no day, whatever their seeds. Within a split, no day, language or format of a language is repeated
    before all others have occurred once. The same arguments give the same pairs on any machine, and a smaller
    `size` gives the first pairs of a larger one.

    Args:
        split: `"train"`, `"validation"` or `"test"`.
        size: Number of pairs. Defaults to 40,000 for train, 500 for validation and 1,000 for test.
        seed: Integer, the seed of the choice and order of days and formats.

    Returns:
        `TextPairs` in shuffled order; sources in English, German and French, a third each.

    Raises:
        ValueError: If `split` is unknown or `size` is not a positive integer.

    Example:

    ```python
    from keras_attn.data import date_pairs

    pairs = date_pairs("test")
    assert len(pairs) == 1000
    print(pairs.sources[0], "->", pairs.targets[0])
    ```
    """
    size = _checked_size(split, size, DATE_SPLITS)
    generator = random.Random(f"{seed} {split}")
    days = _deck(_days_by_split()[split], generator)
    languages = _deck(list(FORMATS), generator)
    formats = {language: _deck(templates, generator) for language, templates in FORMATS.items()}
    sources, targets = [], []
    for _ in range(size):
        day = next(days)
        language = next(languages)
        sources.append(next(formats[language]).format_map(date_fields(day, language)))
        targets.append(day.isoformat())
    return TextPairs(sources, targets, name=f"dates {split}")


def date_fields(day, language):
    """Spells out one day in one language, as fields for the templates of `FORMATS`.

    The names of months and weekdays are tables of this module, because those of `strftime` depend on the
    locales a machine happens to have.

    Args:
        day: A `datetime.date`.
        language: A key of `FORMATS`.

    Returns:
        A dict from field name to string (`y`, `d` and `m` to integer).

    Example:

    ```python
    import datetime

    from keras_attn.data import generated_pairs

    fields = generated_pairs.date_fields(datetime.date(2016, 7, 4), "german")
    assert "{weekday}, {d}. {month} {y}".format_map(fields) == "Montag, 4. Juli 2016"
    ```
    """
    names = _NAMES[language]
    fields = {
        "weekday": names["weekdays"][day.weekday()],
        "short_weekday": names["short_weekdays"][day.weekday()],
        "month": names["months"][day.month - 1],
        "short_month": names["short_months"][day.month - 1],
        "nth": _ordinal(day.day, language),
    }
    capitalised = {name.capitalize(): value.capitalize() for name, value in fields.items()}
    in_capitals = {name.upper(): value.upper() for name, value in fields.items()}
    in_lower_case = {f"lower_{name}": value.lower() for name, value in fields.items()}
    numbers = {
        "d": day.day,
        "dd": f"{day.day:02}",
        "m": day.month,
        "mm": f"{day.month:02}",
        "y": day.year,
    }
    return fields | capitalised | in_capitals | in_lower_case | numbers


def _ordinal(number, language):
    if language == "german":
        return f"{number}."
    if language == "french":
        return "1er" if number == 1 else str(number)
    if number in (11, 12, 13):
        return f"{number}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


@functools.cache
def _days_by_split():
    first = datetime.date(FIRST_YEAR, 1, 1)
    num_days = (datetime.date(LAST_YEAR + 1, 1, 1) - first).days
    days = [first + datetime.timedelta(days=offset) for offset in range(num_days)]
    days = _shuffled(days, random.Random(_PARTITION_SEED))
    held_out = round(_HELD_OUT_SHARE * num_days)
    return {
        "train": days[2 * held_out :],
        "validation": days[:held_out],
        "test": days[held_out : 2 * held_out],
    }


def _deck(items, generator):
    """Yields all items in random order, then all of them again in another order, endlessly."""
    while True:
        yield from _shuffled(items, generator)


def _shuffled(items, generator):
    # Python guarantees that `random()` never changes; it does not for `shuffle` and `sample`.
    return sorted(items, key=lambda _: generator.random())


# Sequences in reverse.
NUM_SYMBOLS = 50
LONGEST_SEQUENCES = {"train": 25, "validation": 30, "test": 30}
REVERSE_SPLITS = {"train": 40_000, "validation": 1_000, "test": 1_000}


def reverse_pairs(split, size=None, seed=0):
    """Draws pairs of numbers from 0 to 49 and the same numbers in reverse, such as "3 14 15" and "15 14 3".

    This is the task of JoeyNMT's tutorial. Validation and test have sequences up to five numbers longer than
    in training: one in six of them uses positions that were never trained. The same arguments give the same
    pairs on any machine, and a smaller `size` gives the first pairs of a larger one.

    Args:
        split: `"train"`, `"validation"` or `"test"`.
        size: Number of pairs. Defaults to 40,000 for train, and 1,000 for validation and test.
        seed: Integer, the seed of the numbers.

    Returns:
        `TextPairs`, of 1 to 25 numbers for train, and of 1 to 30 for validation and test.

    Raises:
        ValueError: If `split` is unknown or `size` is not a positive integer.

    Example:

    ```python
    from keras_attn.data import reverse_pairs

    pairs = reverse_pairs("test")
    assert pairs.targets[0].split() == pairs.sources[0].split()[::-1]
    ```

    Reference: [Kreutzer et al., 2019](https://arxiv.org/abs/1907.12484), and the tutorial of its code.
    """
    size = _checked_size(split, size, REVERSE_SPLITS)
    generator = random.Random(f"keras_attn.data.reverse {seed} {split}")

    def draw(count):
        return int(generator.random() * count)  # the one function that Python promises never to change

    sources = []
    targets = []
    for _ in range(size):
        length = 1 + draw(LONGEST_SEQUENCES[split])
        numbers = [str(draw(NUM_SYMBOLS)) for _ in range(length)]
        sources.append(" ".join(numbers))
        targets.append(" ".join(reversed(numbers)))
    return TextPairs(sources, targets, name=f"reverse {split}")


def _checked_size(split, size, splits):
    """The number of pairs to draw of a split, by default that of the table `splits`, or a ValueError."""
    if split not in splits:
        raise ValueError(f"`split` must be one of {', '.join(splits)}. Received: split={split!r}.")
    if size is None:
        return splits[split]
    return check_positive("size", size)
