"""Checks of grouped-queries.patch."""

import numpy as np
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention
from model.layers import Seed

RANDOM = np.random.default_rng(0)


def make_attention():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4, key_dim=6), Seed(0, -1))
    for variable in attention.variables:
        variable.assign(RANDOM.normal(size=variable.shape) / 2)
    return attention


def test_keys_and_cache_have_half_as_many_heads_as_queries():
    attention, x = make_attention(), tf.zeros((3, 5, 16))
    assert [part.shape for part in attention.empty_cache(3)] == [(3, 2, 0, 6)] * 2
    y, weights, cache = attention.self_attend(x, None)
    assert y.shape == (3, 5, 16) and weights.shape == (3, 4, 5, 5)
    assert [part.shape for part in cache] == [(3, 2, 5, 6)] * 2


def test_output_equals_multi_head_attention_with_repeated_keys_and_values():
    attention, x = make_attention(), tf.constant(RANDOM.normal(size=(3, 5, 16)), tf.float32)
    mask = np.tri(5, dtype=bool)[np.newaxis]
    keras = tf.keras.layers.MultiHeadAttention(4, 6)
    keras.build(x.shape, x.shape)
    weights = []
    for dense, heads in zip(
        (attention.query, attention.key, attention.value), (4, 2, 2), strict=True
    ):
        for variable in (dense.kernel, dense.bias):
            of_heads = np.reshape(variable, (*variable.shape[:-1], heads, 6))
            weights.append(np.repeat(of_heads, 4 // heads, axis=-2))  # (…, 4, 6)
    weights += [np.reshape(attention.output.kernel, (4, 6, 16)), attention.output.bias]
    keras.set_weights(weights)
    expected, expected_weights = keras(x, x, attention_mask=mask, return_attention_scores=True)
    y, weights, _ = attention.self_attend(x, mask)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
