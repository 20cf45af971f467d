"""The masks, written out by hand. True = may attend."""

import numpy as np
import pytest
from expect import expect

from model.layers import Seed
from model.masks import look_ahead_mask, padding_mask, word_dropout

T, F = True, False


@pytest.mark.exercise("padding-mask")
def test_padding_mask_is_true_at_tokens():
    mask = padding_mask(np.int32([[7, 5, 9], [3, 0, 0]]))
    right = np.array([[[[T, T, T]]], [[[T, F, F]]]])
    mistakes = {
        "the mask is upside down: True means that a token may be attended to": ~right,
        "the mask hides queries: the padding to hide is on the last axis, that of the keys": (
            right.transpose(0, 1, 3, 2)
        ),
        "an axis is missing: the mask is (batch, 1, 1, key_len), for all heads and queries": (
            np.ndim(mask) < 4
        ),
        "the mask consists of numbers: it must be boolean": right.astype(float),
    }
    expect(mask, right, mistakes)


@pytest.mark.exercise("look-ahead-mask")
def test_look_ahead_mask_is_true_up_to_the_diagonal():
    right = np.array([[T, F, F, F], [T, T, F, F], [T, T, T, F], [T, T, T, T]])
    mistakes = {
        "the mask is upside down: position 0 sees position 3": right.T,
        "True and False are exchanged: True means that a position may be attended to": ~right,
        "a position does not see itself: position 0 sees nothing": np.tri(4, k=-1, dtype=bool),
        "position 0 sees position 1, which it should predict": np.tri(4, k=1, dtype=bool),
        "every position sees all others": np.ones((4, 4), bool),
        "the mask consists of numbers: it must be boolean": right.astype(float),
    }
    expect(look_ahead_mask(4), right, mistakes)
    whole = {"start is ignored: there are rows for positions before it": right}
    expect(look_ahead_mask(4, start=2), right[2:], whole)


def test_word_dropout_masks_words_and_only_in_training():
    ids = np.tile(np.int32([2, 7, 8, 9, 5, 4, 3, 0]), (4000, 1))  # bos, five words, eos, padding
    dropped = word_dropout(ids, 0.3, Seed(0, 7)).numpy()
    words = ids > 3
    np.testing.assert_array_equal(dropped[~words], ids[~words])
    changed = dropped[words] != ids[words]
    assert set(dropped[words][changed]) == {0}
    assert changed.mean() == pytest.approx(0.3, abs=0.02)  # 6 standard deviations
    np.testing.assert_array_equal(dropped, word_dropout(ids, 0.3, Seed(0, 7)))
    assert np.any(dropped != word_dropout(ids, 0.3, Seed(0, 8)))
    assert word_dropout(ids, 0.3, None) is ids
