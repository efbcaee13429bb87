"""Windows of a text: nothing twice, nothing shifted, the same from any position on."""

import numpy as np
import pytest

from keras_attn.data import TextWindows, consecutive_windows

TEXT = np.arange(3, 3 + 331)  # every token names its position


def batches(windows, count, position=(0, 0)):
    return [
        tuple(np.asarray(x) for x in (inputs["token_ids"], labels, weights))
        for inputs, labels, weights in windows.dataset(position).take(count)
    ]


def test_labels_are_the_next_tokens():
    for read, following, weights in batches(TextWindows(TEXT, 7, 5), 19):
        assert read.shape == following.shape == (5, 7)
        np.testing.assert_array_equal(following, read + 1)
        np.testing.assert_array_equal(np.diff(read, axis=1), 1)
        np.testing.assert_allclose(weights, 1 / 35, rtol=1e-6)


def test_no_token_comes_twice_in_an_epoch():
    windows = TextWindows(TEXT, 7, 5, seed=3)
    epochs = []
    for epoch in range(3):
        read = np.concatenate([batch[0] for batch in batches(windows, len(windows.plan(epoch)), (epoch, 0))])
        assert len(np.unique(read)) == read.size
        # Left out: what is before the first window, the token after the last, and less than a batch.
        assert read.size > len(TEXT) - 7 - 1 - 5 * 7 - 7
        epochs.append(sorted(read[:, 0].tolist()))
    assert epochs[0] != epochs[1]


@pytest.mark.extended
def test_the_batches_from_any_place_on_are_the_rest():
    windows = TextWindows(TEXT, 7, 5, seed=3)
    whole = batches(windows, 2 * len(windows))
    position = (0, 0)
    for number in range(len(windows) + 3):
        for batch, expected in zip(batches(windows, 2, position), whole[number:]):
            for array, other in zip(batch, expected):
                np.testing.assert_array_equal(array, other)
        position = windows.after(position)


def test_without_shuffling_the_windows_follow_each_other():
    read = np.concatenate([batch[0] for batch in batches(TextWindows(TEXT, 7, 5, shuffle=False), 9)])
    np.testing.assert_array_equal(read.reshape(-1), TEXT[: 9 * 35])


def test_micro_batches_and_workers_share_the_windows_of_an_update():
    whole = batches(TextWindows(TEXT, 7, 12, seed=3), 3)
    parts = [
        batches(TextWindows(TEXT, 7, 11, seed=3, num_micro_batches=2, worker=(number, 3)), 6)
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
        TextWindows(TEXT[:35], 7, 5, shuffle=False)
    assert len(TextWindows(TEXT[:36], 7, 5, shuffle=False)) == 1


@pytest.mark.parametrize("length", [2, 8, 9, 57])
def test_consecutive_windows_predict_every_token_but_the_first_once(length):
    pairs = list(consecutive_windows(TEXT[:length], 8, 3))
    assert all(len(read) == 3 for read, _ in pairs[:-1])
    read, following = (np.concatenate(side) for side in zip(*pairs))
    real = following != 0
    np.testing.assert_array_equal(following[real], TEXT[1:length])
    np.testing.assert_array_equal(read[real], TEXT[: length - 1])
