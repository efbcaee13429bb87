"""Every page is as easy to read as docs/readability.py asks for."""

import pytest
import readability

HARD = """---
kernelspec: python3
---
# The heading is long, and nobody counts it because headings are not sentences at all

```python
these = words + are + code
```

| a table | has cells, and nobody reads them as sentences either |
|---|---|
| a row | and its words, those of a reader |

What a matrix is multiplied by is divided by the largest magnitude of its own row before it is rounded, so that no row, `x < y` or
[not](https://keras.io), changes the product of another one, that of a batch-mate for instance, whatever the processor is, and in each case.

- Short, in 3.15.1.
- Ding et al. 2021 is one more sentence. It has an end!
"""


@pytest.mark.parametrize("page", readability.pages())
def test_the_page_reads_well(page):
    figures = readability.measure((readability.ROOT / page).read_text(encoding="utf-8"))
    assert not figures.above(), "\n".join(
        [f"python docs/readability.py {page}", *figures.above(), *figures.longest[:5]]
    )


def test_only_prose_counts_and_sentences_end_where_readers_think():
    first, *others = readability.sentences(HARD)
    assert first.startswith("What a matrix")
    assert "so that no row, Code or not, changes the product" in first
    assert others == ["Short, in 3.15.1.", "Ding et al 2021 is one more sentence.", "It has an end!"]
    assert [readability.num_words(sentence) for sentence in others] == [3, 8, 4]


def test_a_page_that_is_hard_to_read_says_why():
    longest, twice, row = readability.measure(HARD).above()
    assert longest == f"longest 47, at most {readability.LEVEL['longest']}"
    assert twice.startswith("reads twice: What a matrix is multiplied by")
    assert row == "reads twice: | a row | and its words, those of a reader |"
    grade, most_words, *_ = readability.measure(HARD.partition("- Short")[0]).above()
    assert grade.startswith("grade ")
    assert most_words == f"most words 47, at most {readability.LEVEL['most words']}"


def test_a_page_without_prose_passes():
    assert readability.measure("# Title\n\n```bash\nls\n```\n").above() == []


def test_the_archive_is_exempt_and_the_rest_is_not():
    pages = readability.pages()
    assert {"README.md", "docs/cost.md", "docs/learn/masks.md"} <= set(pages)
    assert not [page for page in pages if "archive" in page]
