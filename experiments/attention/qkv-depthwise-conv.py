"""Checks of qkv-depthwise-conv.patch."""

import numpy as np

from config import Config
from model.attention import MultiHeadAttention, causal_convolution, scaled_dot_product_attention
from model.layers import Seed
from model.masks import look_ahead_mask

RANDOM = np.random.default_rng(0)


def make_attention():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4), Seed(0, -1))
    for variable in attention.variables:
        variable.assign(RANDOM.normal(size=variable.shape) / 2)
    return attention


def test_each_column_is_a_weighted_sum_of_three_positions():
    x, kernel = RANDOM.normal(size=(2, 4, 6, 5)), RANDOM.normal(size=(3, 4, 1, 5))
    expected = np.zeros_like(x)
    for i in range(6):
        for back in range(min(i, 2) + 1):
            expected[:, :, i] += kernel[back, :, 0] * x[:, :, i - back]
    np.testing.assert_allclose(causal_convolution(x, kernel), expected)


def test_queries_keys_and_values_are_convolved_with_their_own_kernels():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(2, 6, 16)))
    parts = attention.key, attention.value, attention.query
    projected = (attention.split_heads(part(x)) for part in parts)
    keys, values, queries = map(causal_convolution, projected, attention.kernels)
    heads, _ = scaled_dot_product_attention(queries, keys, values, look_ahead_mask(6))
    expected = attention.output(attention.merge_heads(heads))
    y, _, _ = attention.self_attend(x, look_ahead_mask(6))
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_cached_attention_equals_full_attention():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(3, 6, 16)))
    expected, _, _ = attention.self_attend(x, look_ahead_mask(6))
    cache = attention.empty_cache(3)
    for i in range(6):
        y, _, cache = attention.self_attend(x[:, i : i + 1], None, cache=cache)
        np.testing.assert_allclose(y, expected[:, i : i + 1], atol=1e-5)


def test_initial_weights_are_those_of_the_authors():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4), Seed(0, -1))
    for kernel in attention.kernels:
        expected = np.reshape([1 / 2, 1 / 6, 1 / 6], (3, 1, 1, 1)) * np.ones((1, 4, 1, 4))
        np.testing.assert_allclose(kernel, expected)
        assert kernel.trainable
