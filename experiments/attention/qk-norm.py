"""Checks of qk-norm.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention
from model.layers import Seed

RANDOM = np.random.default_rng(0)


def make_attention():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4, key_dim=6), Seed(0, -1))
    for variable in attention.variables:
        variable.assign(RANDOM.normal(size=variable.shape))
    return attention


def unit_heads(dense, x):
    projected = x @ dense.kernel.numpy() + dense.bias.numpy()
    heads = projected.reshape(3, 5, 4, 6).transpose(0, 2, 1, 3)
    return heads / np.linalg.norm(heads, axis=-1, keepdims=True)


def test_scores_are_cosines_times_a_learned_number():
    attention, (x, y) = make_attention(), np.float32(RANDOM.normal(size=(2, 3, 5, 16)))
    attention.g.assign(2.5)
    keys = unit_heads(attention.key, y).swapaxes(2, 3)
    _, weights = attention.cross_attend(x, attention.keys_values(y), None)
    expected = tf.nn.softmax(2.5 * unit_heads(attention.query, x) @ keys)
    np.testing.assert_allclose(weights, expected, rtol=1e-4)
    _, weights, _ = attention.self_attend(y, None)
    expected = tf.nn.softmax(2.5 * unit_heads(attention.query, y) @ keys)
    np.testing.assert_allclose(weights, expected, rtol=1e-4)


def test_the_number_begins_as_in_the_paper():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4), Seed(0, -1))
    assert attention.g.trainable and attention.g.shape == ()
    assert float(attention.g) == pytest.approx(np.log2(17**2 - 17), abs=0.01)
