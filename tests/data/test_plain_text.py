"""One long text, read as it is; its windows: nothing twice, nothing shifted, the same from any position on."""

import gzip
import re

import numpy as np
import pytest

from keras_attn.data import PlainText, TextWindows, consecutive_windows, read_plain_text

TEXT = "First Citizen:\nBefore we proceed, hear me speak.\r\n\nAll:\nSpeak. \u2028 é\n"


def test_a_text_is_read_as_it_is(tmp_path):
    folder = tmp_path
    (folder / "input.txt").write_bytes(TEXT.encode())
    assert read_plain_text(folder / "input.txt") == PlainText(TEXT, "input.txt")
    (folder / "marked.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + TEXT.encode()))
    assert read_plain_text(str(folder / "marked.txt.gz")) == PlainText(TEXT, "marked.txt.gz")


def test_the_parts_are_the_text():
    training, validation = PlainText("abcdefghijklmnopqrs", "letters").split()
    assert (training.text, validation.text) == ("abcdefghijklmnopq", "rs")
    assert (training.name, validation.name) == ("letters, training", "letters, validation")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Give a file with text."),
        (b"one\ntwo \xff\n", "line 2: the text must be UTF-8"),
        (gzip.compress(b"one")[:-9], "is not a whole gzip file"),
    ],
    ids=["empty", "no-utf8", "cut-gzip"],
)
def test_what_is_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "play.txt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_plain_text(tmp_path / "play.txt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_plain_text(tmp_path / "no.txt")


# --- windows ---

TOKENS = np.arange(3, 3 + 331)  # every token names its position


def batches(windows, count, position=(0, 0)):
    return [
        tuple(np.asarray(x) for x in (inputs["token_ids"], labels, weights))
        for inputs, labels, weights in windows.dataset(position).take(count)
    ]


def test_labels_are_the_next_tokens():
    for read, following, weights in batches(TextWindows(TOKENS, 7, 5), 19):
        assert read.shape == following.shape == (5, 7)
        np.testing.assert_array_equal(following, read + 1)
        np.testing.assert_array_equal(np.diff(read, axis=1), 1)
        np.testing.assert_allclose(weights, 1 / 35, rtol=1e-6)


def test_no_token_comes_twice_in_an_epoch():
    windows = TextWindows(TOKENS, 7, 5, seed=3)
    epochs = []
    for epoch in range(3):
        read = np.concatenate([batch[0] for batch in batches(windows, len(windows.plan(epoch)), (epoch, 0))])
        assert len(np.unique(read)) == read.size
        # Left out: what is before the first window, the token after the last, and less than a batch.
        assert read.size > len(TOKENS) - 7 - 1 - 5 * 7 - 7
        epochs.append(sorted(read[:, 0].tolist()))
    assert epochs[0] != epochs[1]


def test_the_batches_from_any_place_on_are_the_rest():
    windows = TextWindows(TOKENS, 7, 5, seed=3)
    whole = batches(windows, 2 * len(windows))
    position = (0, 0)
    for number in range(len(windows) + 3):
        for batch, expected in zip(batches(windows, 2, position), whole[number:]):
            for array, other in zip(batch, expected):
                np.testing.assert_array_equal(array, other)
        position = windows.after(position)


def test_without_shuffling_the_windows_follow_each_other():
    read = np.concatenate([batch[0] for batch in batches(TextWindows(TOKENS, 7, 5, shuffle=False), 9)])
    np.testing.assert_array_equal(read.reshape(-1), TOKENS[: 9 * 35])


def test_micro_batches_and_workers_share_the_windows_of_an_update():
    whole = batches(TextWindows(TOKENS, 7, 12, seed=3), 3)
    parts = [
        batches(TextWindows(TOKENS, 7, 11, seed=3, num_micro_batches=2, worker=(number, 3)), 6)
        for number in range(3)
    ]
    for update, (read, _, _) in enumerate(whole):
        rows = [part[2 * update + micro][0] for part in parts for micro in range(2)]
        assert {len(row) for row in rows} == {2}
        assert sorted(np.concatenate(rows)[:, 0]) == sorted(read[:, 0])
        weights = sum(part[2 * update + micro][2].sum() * 7 / 2 for part in parts for micro in range(2))
        assert weights == pytest.approx(1)  # Keras takes the mean of the two micro-batches


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=r"more than 5 windows of 7 tokens.*Received: 35 tokens"):
        TextWindows(TOKENS[:35], 7, 5, shuffle=False)
    assert len(TextWindows(TOKENS[:36], 7, 5, shuffle=False)) == 1


@pytest.mark.parametrize("length", [2, 8, 9, 57])
def test_consecutive_windows_predict_every_token_but_the_first_once(length):
    pairs = list(consecutive_windows(TOKENS[:length], 8, 3))
    assert all(len(read) == 3 for read, _ in pairs[:-1])
    read, following = (np.concatenate(side) for side in zip(*pairs))
    real = following != 0
    np.testing.assert_array_equal(following[real], TOKENS[1:length])
    np.testing.assert_array_equal(read[real], TOKENS[: length - 1])
