"""Checks of drophead.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention
from model.layers import Seed

RANDOM = np.random.default_rng(0)
X = tf.constant(RANDOM.normal(size=(200, 6, 16)), tf.float32)
SEED = Seed(7, 5)


def attend(kind, seed):
    """Return the heads, (200, 4, 6, 4), and the weights of self- or cross-attention."""
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4), Seed(0, -1))
    attention.output.kernel.assign(np.eye(16))
    if kind == "self":
        y, weights, _ = attention.self_attend(X, None, seed)
    else:
        y, weights = attention.cross_attend(X, attention.keys_values(X), None, seed)
    return attention.split_heads(y).numpy(), weights


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_a_fifth_of_the_heads_are_zero_and_the_rest_are_scaled_to_the_number_of_heads(kind):
    (plain, expected_weights), (heads, weights) = attend(kind, None), attend(kind, SEED)
    np.testing.assert_array_equal(weights, expected_weights)
    left = np.any(heads != 0, axis=(2, 3), keepdims=True)  # (200, 4, 1, 1)
    count = np.sum(left, axis=1, keepdims=True)
    np.testing.assert_allclose(
        heads, np.where(left, plain * 4 / np.maximum(count, 1), 0), atol=1e-5
    )
    assert np.mean(left) == pytest.approx(0.8, abs=0.05)
    assert {*np.unique(count)} >= {2, 3, 4}  # sentences differ


def test_another_step_drops_other_heads():
    dropped = [attend("self", Seed(7, step))[0] == 0 for step in (5, 6, 5)]
    assert np.any(dropped[0] != dropped[1]) and np.all(dropped[0] == dropped[2])


def test_a_sentence_without_heads_has_zeros_and_no_gradient():
    with tf.GradientTape() as tape:
        tape.watch(X)
        attention = MultiHeadAttention(Config(d_model=16, num_heads=1), Seed(0, -1))
        y, _, _ = attention.self_attend(X, None, SEED)
    gradient = tape.gradient(y, X).numpy()
    without = np.all(y == 0, axis=(1, 2))
    assert 10 < np.sum(without) < 90
    assert np.all(np.isfinite(gradient)) and np.all(gradient[without] == 0)
