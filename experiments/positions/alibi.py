"""Checks of alibi.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import scaled_dot_product_attention
from model.language_model import LanguageModel
from model.masks import linear_biases, look_ahead_mask, padding_mask
from model.transformer import Transformer

RANDOM = np.random.default_rng(0)


def test_scores_decrease_with_the_distance_by_the_slope_of_the_head():
    """Figure 3 of the paper, with the slopes of eight heads: 1/2, 1/4, …, 1/256."""
    biases = linear_biases(look_ahead_mask(5), 8).numpy()  # (num_heads, length, length)
    for head in range(8):
        for i in range(5):
            for j in range(5):
                expected = -(i - j) / 2 ** (head + 1) if j <= i else -1e9
                assert biases[head, i, j] == pytest.approx(expected)


def test_the_encoder_tells_left_from_right():
    biases = linear_biases(tf.ones((1, 1, 1, 5), tf.bool), 4).numpy()[0]
    for head, (left, right) in enumerate([(2, 8), (4, 6), (6, 4), (8, 2)]):  # slopes 2^−left, …
        expected = np.divide([-3, -2, -1, 0, -1], [2**left] * 4 + [2**right])
        np.testing.assert_allclose(biases[head, 3], expected)
    ids = np.int32([[5, 6, 7, 8, 2]])
    model = Transformer(Config(d_model=16, num_heads=4, dff=24, positions="none"), 11, 11)
    forward, backward = (model.encode(x, padding_mask(x))[0] for x in (ids, ids[:, ::-1]))
    assert np.max(np.abs(forward - backward[:, ::-1])) > 0.01


def test_a_step_of_decoding_has_the_row_of_its_position():
    rows = [linear_biases(look_ahead_mask(i + 1, start=i), 4, start=i) for i in range(6)]
    full = linear_biases(look_ahead_mask(6), 4)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row, full[:, i : i + 1, : i + 1])


def test_biases_are_added_to_the_scores_and_padding_is_not_seen():
    query, key, value = np.float32(RANDOM.normal(size=(3, 2, 4, 5, 6)))
    mask = padding_mask(np.int32([[5, 6, 7, 8, 2], [5, 6, 2, 0, 0]]))
    biases = linear_biases(mask, 4)
    _, weights = scaled_dot_product_attention(query, key, value, biases)
    scores = query @ key.swapaxes(2, 3) / 6**0.5 + biases
    np.testing.assert_allclose(weights, tf.nn.softmax(scores), rtol=1e-4, atol=1e-6)
    assert np.all(weights[1, :, :, 3:] == 0)


def test_a_language_model_decodes_as_it_was_trained():
    """Also after a beginning that it reads in one pass."""
    sizes = {"num_layers": 2, "d_model": 16, "num_heads": 4, "dff": 24, "positions": "none"}
    model = LanguageModel(Config(model="language_model", **sizes), 11, 11)
    ids = RANDOM.integers(4, 11, (3, 9), np.int32)
    expected = tf.reshape(model.teacher_forced(ids[:, :0], ids).logits, (3, 8, 11))
    for start in (0, 4):
        state = model.init_decode(ids[:, :start])
        for i in range(start, 8):
            logits, state = model.decode_step(tf.constant(ids[:, i]), state)
            np.testing.assert_allclose(logits, expected[:, i], rtol=1e-4, atol=1e-5)
