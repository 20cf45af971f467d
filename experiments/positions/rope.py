"""Checks of rope.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention, rotate
from model.language_model import LanguageModel
from model.layers import Seed
from model.masks import look_ahead_mask

RANDOM = np.random.default_rng(0)


def make_attention():
    return MultiHeadAttention(Config(d_model=16, num_heads=2), Seed(0, -1))


def test_scores_depend_on_the_distance_only():
    query, key = np.float32(RANDOM.normal(size=(2, 1, 8)))

    def score(i, j):
        return float(tf.matmul(rotate(query, i), rotate(key, j), transpose_b=True)[0, 0])

    assert score(7, 3) == pytest.approx(score(4, 0)) == pytest.approx(score(104, 100), rel=1e-4)
    assert score(0, 0) == pytest.approx(np.sum(query * key))
    assert len({round(score(4, j), 3) for j in range(9)}) == 9


def test_rows_have_consecutive_positions():
    x = np.float32(RANDOM.normal(size=(3, 2, 5, 8)))  # (batch, num_heads, length, head_dim)
    rotated = rotate(x, 2)
    for i in range(5):
        np.testing.assert_allclose(
            rotated[:, :, i : i + 1], rotate(x[:, :, i : i + 1], 2 + i), atol=1e-6
        )


def test_cached_attention_equals_full_attention():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(3, 6, 16)))
    expected, _, _ = attention.self_attend(x, look_ahead_mask(6))
    cache = attention.empty_cache(3)
    for i in range(6):
        y, _, cache = attention.self_attend(x[:, i : i + 1], None, cache=cache)
        np.testing.assert_allclose(y, expected[:, i : i + 1], atol=1e-5)


def test_self_attention_between_equal_vectors_depends_on_their_distance_only():
    x = np.tile(np.float32(RANDOM.normal(size=16)), (1, 6, 1))
    y, weights, _ = make_attention().self_attend(x, None)
    scores = np.log(weights[0, 0])
    scores -= np.diag(scores)[:, np.newaxis]  # softmax leaves a constant of each query open
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert np.ptp(scores[0]) > 0.01
    assert np.max(np.ptp(y, axis=1)) < 1e-6  # equal values, which are not rotated


def test_cross_attention_does_not_depend_on_the_order():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(1, 6, 16)))
    y, swapped = (
        attention.cross_attend(x, attention.keys_values(memory), None)[0]
        for memory in (x, x[:, ::-1])
    )
    np.testing.assert_allclose(y, swapped, atol=1e-6)


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
