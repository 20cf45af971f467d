"""Attention, compared with a plain loop and Keras' layer."""

import math

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention, scaled_dot_product_attention
from model.layers import initial_seed


def test_masked_keys_have_weight_zero_and_the_others_sum_to_one():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(2, 3, 6, 4))
    mask = rng.random((2, 1, 5, 6)) < 0.5
    mask[..., 0] = True  # every query has a key
    _, weights = scaled_dot_product_attention(np.float32(query), np.float32(key), key, mask)
    hidden = np.broadcast_to(~mask, weights.shape)
    assert np.all(weights.numpy()[hidden] == 0)
    assert np.all(weights.numpy()[~hidden] > 0)
    np.testing.assert_allclose(tf.reduce_sum(weights, axis=-1), np.ones((2, 3, 5)), rtol=1e-6)


def test_attention_equals_a_loop_over_queries_and_keys():
    """softmax(q k / √d) v, one number at a time, normalized once after the loop over keys."""
    rng = np.random.default_rng(1)
    length, depth = 5, 3
    query, key, value = rng.normal(size=(3, length, depth))
    expected = np.zeros((length, depth))
    for i in range(length):
        scores = []
        for j in range(length):
            scores.append(sum(query[i, d] * key[j, d] for d in range(depth)))
        powers = [math.exp(score / math.sqrt(depth)) for score in scores]
        for j in range(length):
            expected[i] += powers[j] / sum(powers) * value[j]
    got, _ = scaled_dot_product_attention(*np.float32([query, key, value]))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def make_attention(num_heads, key_dim):
    config = Config(d_model=8, num_heads=num_heads, key_dim=key_dim)
    return MultiHeadAttention(config, initial_seed(0))


@pytest.mark.parametrize("key_dim", [4, 7])
def test_multi_head_attention_equals_keras(key_dim):
    """Output, weights and gradients, with a mask, other keys than queries, and any head size."""
    d_model, num_heads = 8, 2
    rng = np.random.default_rng(5)
    ours = make_attention(num_heads, key_dim)
    for variable in ours.variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    query_from = tf.constant(rng.normal(size=(3, 5, d_model)), tf.float32)
    key_from = tf.constant(rng.normal(size=(3, 6, d_model)), tf.float32)
    direction = tf.constant(rng.normal(size=(3, 5, d_model)), tf.float32)
    mask = rng.random((3, 1, 5, 6)) < 0.6
    mask[..., 0] = True

    theirs = tf.keras.layers.MultiHeadAttention(num_heads, key_dim)
    theirs.build(query_from.shape, key_from.shape)
    projections = [ours.query, ours.key, ours.value, ours.output]  # in the order of Keras' weights
    pairs = [pair for dense in projections for pair in (dense.kernel, dense.bias)]
    for mine, twin in zip(pairs, theirs.weights, strict=True):
        twin.assign(tf.reshape(mine, twin.shape))

    with tf.GradientTape(persistent=True) as tape:
        tape.watch([query_from, key_from])
        output, weights = ours.cross_attend(query_from, ours.keys_values(key_from), mask)
        loss = tf.reduce_sum(output * direction)
        keras_output, keras_weights = theirs(
            query_from, key_from, attention_mask=mask[:, 0], return_attention_scores=True
        )
        keras_loss = tf.reduce_sum(keras_output * direction)
    np.testing.assert_allclose(output, keras_output, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(weights, keras_weights, rtol=1e-5, atol=1e-6)
    gradients = tape.gradient(loss, [*pairs, query_from, key_from])
    variables = [weight.value for weight in theirs.weights]
    keras_gradients = tape.gradient(keras_loss, [*variables, query_from, key_from])
    for mine, twin in zip(gradients, keras_gradients, strict=True):
        np.testing.assert_allclose(mine, tf.reshape(twin, mine.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.invariant
def test_a_mask_of_numbers_is_added_to_the_scores():
    query, key = (np.float32(np.random.default_rng(i).normal(size=(2, 3, 4))) for i in (0, 1))
    bias = np.float32(np.random.default_rng(2).normal(size=(3, 3)))
    _, plain = scaled_dot_product_attention(query, key, key)
    _, weights = scaled_dot_product_attention(query, key, key, tf.constant(bias))
    scaled = plain * np.exp(bias)  # exp(score + bias) = exp(score) · exp(bias)
    np.testing.assert_allclose(weights, scaled / scaled.numpy().sum(-1, keepdims=True), rtol=1e-5)
    allowed = np.tri(3, dtype=bool)
    masks = allowed, np.where(allowed, 0, -1e9).astype(np.float32)
    one, other = (scaled_dot_product_attention(query, key, key, tf.constant(m))[1] for m in masks)
    np.testing.assert_array_equal(one, other)
