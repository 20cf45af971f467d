"""The masks, written out by hand. True = may attend."""

import numpy as np
import pytest
import tensorflow as tf

from model.masks import look_ahead_mask, padding_mask, word_dropout

T, F = True, False


def test_padding_mask_is_true_at_tokens():
    mask = padding_mask(np.int32([[7, 5, 9], [3, 0, 0]]))
    np.testing.assert_array_equal(mask, [[[[T, T, T]]], [[[T, F, F]]]])


def test_look_ahead_mask_is_true_up_to_the_diagonal():
    expected = [
        [T, F, F, F],
        [T, T, F, F],
        [T, T, T, F],
        [T, T, T, T],
    ]
    np.testing.assert_array_equal(look_ahead_mask(4, 4), expected)


def test_fewer_queries_than_keys_are_the_last_ones():
    np.testing.assert_array_equal(look_ahead_mask(2, 4), [[T, T, T, F], [T, T, T, T]])
    np.testing.assert_array_equal(look_ahead_mask(1, 4), [[T, T, T, T]])


def test_combined_with_and_a_key_must_pass_both():
    mask = look_ahead_mask(3, 3) & padding_mask(np.int32([[7, 5, 9], [3, 4, 0]]))
    expected = [
        [[[T, F, F], [T, T, F], [T, T, T]]],
        [[[T, F, F], [T, T, F], [T, T, F]]],
    ]
    np.testing.assert_array_equal(mask, expected)


def test_word_dropout_hides_words_alone_in_training_alone():
    ids = np.tile(np.int32([2, 7, 8, 9, 5, 4, 3, 0]), (4000, 1))  # bos, five words, eos, padding
    hidden = word_dropout(ids, 0.3, tf.constant([0, 7], tf.int64)).numpy()
    words = ids > 3
    np.testing.assert_array_equal(hidden[~words], ids[~words])
    changed = hidden[words] != ids[words]
    assert set(hidden[words][changed]) == {0}
    assert changed.mean() == pytest.approx(0.3, abs=0.02)  # 6 standard deviations
    again = word_dropout(ids, 0.3, tf.constant([0, 7], tf.int64))
    np.testing.assert_array_equal(hidden, again)
    assert np.any(hidden != word_dropout(ids, 0.3, tf.constant([0, 8], tf.int64)))
    assert word_dropout(ids, 0.3, None) is ids
