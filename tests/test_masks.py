"""The masks, written out by hand. True = may attend."""

import numpy as np
import pytest

from model.layers import Seed
from model.masks import look_ahead_mask, padding_mask, word_dropout

T, F = True, False


def test_padding_mask_is_true_at_tokens():
    mask = padding_mask(np.int32([[7, 5, 9], [3, 0, 0]]))
    np.testing.assert_array_equal(mask, [[[[T, T, T]]], [[[T, F, F]]]])


def test_look_ahead_mask_is_true_up_to_the_diagonal():
    expected = [[T, F, F, F], [T, T, F, F], [T, T, T, F], [T, T, T, T]]
    np.testing.assert_array_equal(look_ahead_mask(4), expected)
    np.testing.assert_array_equal(look_ahead_mask(4, start=2), expected[2:])


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
