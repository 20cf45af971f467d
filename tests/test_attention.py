"""Attention, compared with a plain loop and Keras' layer."""

import math

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

from config import Config
from model.attention import MultiHeadAttention, scaled_dot_product_attention
from model.layers import Seed, dropout, initial_seed

# The scores are so large that softmax picks one key or shares between equal ones.
KEYS = np.float32([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
VALUES = np.float32([[1, 0], [10, 0], [100, 5], [1000, 6]])


def softmax(scores, axis=-1):
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("query", "weights", "output"),
    [
        ([0, 10, 0], [0, 1, 0, 0], [10, 0]),  # matches the second key
        ([0, 0, 10], [0, 0, 0.5, 0.5], [550, 5.5]),  # matches two equal keys
        ([10, 10, 0], [0.5, 0.5, 0, 0], [5.5, 0]),  # matches two keys equally
    ],
)
@pytest.mark.exercise("attention")
def test_output_is_the_mean_of_the_values_whose_keys_match(query, weights, output):
    got, got_weights = scaled_dot_product_attention(np.float32([query]), KEYS, VALUES)
    np.testing.assert_allclose(got_weights, [weights], atol=1e-6)
    np.testing.assert_allclose(got, [output], rtol=1e-5, atol=1e-4)


@pytest.mark.exercise("attention")
def test_masked_keys_have_weight_zero_and_the_others_sum_to_one():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(2, 3, 6, 4))
    mask = rng.random((2, 1, 5, 6)) < 0.5
    mask[..., 0] = True  # every query has a key
    _, weights = scaled_dot_product_attention(np.float32(query), np.float32(key), key, mask)
    scores = query @ key.swapaxes(-1, -2) / 2  # √4
    mistakes = {
        "the mask is not applied": softmax(scores),
        "the mask is upside down: only masked keys have weight": (
            softmax(scores + np.where(mask, -1e9, 0))
        ),
        "a masked score is 0, which is a weight like others: it must be −∞, or −1e9": (
            softmax(np.where(mask, scores, 0))
        ),
        "the mask is applied after the softmax: the other weights no longer sum to 1": (
            softmax(scores) * mask
        ),
    }
    expect(weights, softmax(np.where(mask, scores, -np.inf)), mistakes)
    hidden = np.broadcast_to(~mask, weights.shape)
    assert np.all(weights.numpy()[hidden] == 0)
    assert np.all(weights.numpy()[~hidden] > 0)
    np.testing.assert_allclose(tf.reduce_sum(weights, axis=-1), np.ones((2, 3, 5)), rtol=1e-6)


@pytest.mark.exercise("attention")
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
    got, weights = scaled_dot_product_attention(*np.float32([query, key, value]))
    products, row = query @ key.T, f"a row of weights sums to {np.sum(weights[0]):.2f}"
    mistakes = {
        "the factor 1/√d_k is missing: the scores grow with d_k": softmax(products) @ value,
        "the scores are divided by d_k instead of √d_k": softmax(products / depth) @ value,
        f"{row}: the softmax is over the queries, and must be over the keys": (
            softmax(products / depth**0.5, axis=0) @ value
        ),
        f"{row}: it must sum to 1, as a softmax does": not np.allclose(np.sum(weights, -1), 1),
    }
    expect(got, expected, mistakes, atol=1e-6)


@pytest.mark.exercise("attention")
def test_dropout_changes_the_output_and_not_the_weights():
    query, key, value = np.float32(np.random.default_rng(0).normal(size=(3, 2, 5, 4)))
    plain = np.float32(softmax(query @ key.swapaxes(-1, -2) / 2))
    output, weights = scaled_dot_product_attention(query, key, value, None, 0.5, Seed(0, 7))
    dropped = dropout(plain, 0.5, Seed(0, 7))
    expect(output, dropped @ value, {"the weights have no dropout": plain @ value})
    expect(weights, plain, {"the weights must be returned without dropout": dropped})


def make_attention(num_heads, key_dim):
    config = Config(d_model=8, num_heads=num_heads, key_dim=key_dim)
    return MultiHeadAttention(config, initial_seed(0))


@pytest.mark.exercise("heads")
def test_each_head_is_a_slice_of_the_projection():
    attention = make_attention(num_heads=3, key_dim=5)
    x = np.float32(np.random.default_rng(3).normal(size=(2, 4, 15)))
    right = np.stack([x[:, :, h * 5 : (h + 1) * 5] for h in range(3)], axis=1)
    mistakes = {
        "the axes are not transposed: each head has parts of several positions": (
            x.reshape(right.shape)
        ),
        "the columns of a head are not adjacent: head_dim must be the last axis of the reshape": (
            x.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)
        ),
        "the last two axes are exchanged": right.swapaxes(2, 3),
        "the heads are not the second axis": right.swapaxes(1, 2),
    }
    expect(attention.split_heads(x), right, mistakes)


@pytest.mark.exercise("heads")
def test_merge_heads_inverts_split_heads():
    attention = make_attention(num_heads=3, key_dim=5)
    heads = np.float32(np.random.default_rng(4).normal(size=(2, 3, 4, 5)))
    mistakes = {"the axes are not transposed: heads are mixed": heads.reshape(2, 4, 15)}
    expect(attention.merge_heads(heads), np.concatenate([*heads.swapaxes(0, 1)], -1), mistakes)
    x = np.float32(np.random.default_rng(4).normal(size=(2, 4, 15)))
    np.testing.assert_array_equal(attention.merge_heads(attention.split_heads(x)), x)


@pytest.mark.exercise("cache")
def test_attention_with_a_cache_equals_attention_to_the_whole_text():
    attention = make_attention(num_heads=2, key_dim=4)
    x = np.float32(np.random.default_rng(6).normal(size=(2, 4, 8)))
    cache = attention.empty_cache(2)
    for i in range(4):
        newest, text = x[:, i : i + 1], attention.keys_values(x[:, : i + 1])
        single, last_two = (attention.keys_values(x[:, j : i + 1]) for j in (i, max(0, i - 1)))
        reversed_keys = tf.concat([single[0], text[0][:, :, :-1]], axis=2), text[1]
        y, _, cache = attention.self_attend(newest, None, None, cache)
        mistakes = {
            "the cache is ignored: a position sees only itself": single,
            "the cache has only the newest position: return all keys and values": last_two,
            "the newest keys precede the older ones": reversed_keys,
        }
        for name, keys_values in mistakes.items():
            mistakes[name] = attention.cross_attend(newest, keys_values, None)[0]
        expect(y, attention.cross_attend(newest, text, None)[0], mistakes)
        lengths = {f"the cache has {cache[0].shape[2]} positions after {i + 1}": single[0]}
        exchanged = {"keys and values are exchanged in the cache": text[1]}
        expect(cache[0], text[0], exchanged | lengths)
        expect(cache[1], text[1])


@pytest.mark.exercise("multi-head-attention")
def test_the_weights_of_all_heads_have_dropout_in_training():
    config = Config(d_model=8, num_heads=2, attention_dropout_rate=0.5)
    attention = MultiHeadAttention(config, initial_seed(0))
    x = np.float32(np.random.default_rng(7).normal(size=(2, 5, 8)))
    memory, seeds = attention.keys_values(x), (None, Seed(0, 7), Seed(0, 8))
    outputs = [attention.cross_attend(x, memory, None, seed)[0] for seed in seeds]
    equal = [np.allclose(one, outputs[1]) for one in (outputs[0], outputs[2])]
    expect(equal[0], False, {"the weights have no dropout: pass on the rate and the seed": True})
    expect(equal[1], False, {"the dropout does not depend on the seed": True})


@pytest.mark.parametrize("key_dim", [4, 7])
@pytest.mark.exercise("multi-head-attention")
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

    def heads(x, dense):
        projected = x.numpy() @ dense.kernel.numpy() + dense.bias.numpy()
        return projected.reshape(*x.shape[:2], num_heads, key_dim).swapaxes(1, 2)

    q, k, v = heads(query_from, ours.query), heads(key_from, ours.key), heads(key_from, ours.value)

    def attended(key, value, hide, projected=True):
        weights = softmax(np.where(hide, -1e9, q @ key.swapaxes(2, 3) / key_dim**0.5))
        merged = (weights @ value).swapaxes(1, 2).reshape(3, 5, -1)
        return merged @ ours.output.kernel.numpy() + ours.output.bias if projected else merged

    mistakes = {
        "the output projection W^O is missing": attended(k, v, ~mask, projected=False),
        "the mask is not applied": attended(k, v, False),
        "keys and values are exchanged": attended(v, k, ~mask),
    }
    expect(output, keras_output, mistakes)
    averaged = {"the weights are averaged over the heads": np.mean(keras_weights, axis=1)}
    expect(weights, keras_weights, averaged, atol=1e-6)
    gradients = tape.gradient(loss, [*pairs, query_from, key_from])
    variables = [weight.value for weight in theirs.weights]
    keras_gradients = tape.gradient(keras_loss, [*variables, query_from, key_from])
    for mine, twin in zip(gradients, keras_gradients, strict=True):
        np.testing.assert_allclose(mine, tf.reshape(twin, mine.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.invariant
@pytest.mark.exercise("attention")
def test_a_mask_of_numbers_is_added_to_the_scores():
    query, key = (np.float32(np.random.default_rng(i).normal(size=(2, 3, 4))) for i in (0, 1))
    bias = np.float32(np.random.default_rng(2).normal(size=(3, 3)))
    _, plain = scaled_dot_product_attention(query, key, key)
    _, weights = scaled_dot_product_attention(query, key, key, tf.constant(bias))
    scaled = plain * np.exp(bias)  # exp(score + bias) = exp(score) · exp(bias)
    sound = np.allclose(plain, softmax(query @ key.swapaxes(-1, -2) / 2), atol=1e-5)
    boolean = {"a mask of numbers is not added to the scores: only a boolean one hides keys": sound}
    expect(weights, scaled / scaled.numpy().sum(-1, keepdims=True), boolean, atol=1e-6)
    allowed = np.tri(3, dtype=bool)
    masks = allowed, np.where(allowed, 0, -1e9).astype(np.float32)
    one, other = (scaled_dot_product_attention(query, key, key, tf.constant(m))[1] for m in masks)
    np.testing.assert_array_equal(one, other)
