"""Kernels equal their plain versions, and an edited plain version is used instead."""

import numpy as np
import pytest
import tensorflow as tf

from model import kernels, layers, loss
from model.layers import LayerNorm

RNG = np.random.default_rng(0)
PLAIN_LAYER_NORM = layers.layer_norm


def value_and_gradients(function, inputs, *arguments):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs, *arguments)
    upstream = np.random.default_rng(1).normal(size=value.shape).astype(np.float32)
    return [value, *tape.gradient(value, inputs, tf.constant(upstream))]


@pytest.mark.parametrize("shape", [(7, 8), (2, 5, 8)])
def test_layer_norm_kernel_equals_the_plain_version(shape):
    x = tf.constant(3 + 2 * RNG.normal(size=shape), tf.float32)
    inputs = [x, *(tf.constant(RNG.normal(size=8), tf.float32) for _ in range(2))]
    kernel = value_and_gradients(kernels.layer_norm, inputs)
    plain = value_and_gradients(layers.layer_norm, inputs)
    for ours, theirs in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_cross_entropy_kernel_equals_the_plain_version(label_smoothing, scale):
    """Also where probabilities underflow."""
    logits = tf.constant(RNG.normal(scale=scale, size=(6, 9)), tf.float32)
    arguments = RNG.integers(0, 9, 6), label_smoothing
    kernel = value_and_gradients(kernels.cross_entropy, [logits], *arguments)
    plain = value_and_gradients(loss.cross_entropy, [logits], *arguments)
    for ours, theirs in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_kernels_are_used_for_the_plain_versions_as_published(capsys):
    for name, module in [("layer_norm", layers), ("cross_entropy", loss)]:
        kernel = getattr(kernels, name)
        assert kernels.fastest(getattr(module, name), kernel) is kernel
    assert capsys.readouterr().err == ""


def edited_epsilon(x, scale, offset):
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    return centered * tf.math.rsqrt(variance + 1e-5) * scale + offset


def edited_gradient(x, scale, offset):
    return PLAIN_LAYER_NORM(tf.stop_gradient(x), scale, offset)


def edited_mean(x, scale, offset):  # as in RMS norm
    mean_square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    return x * tf.math.rsqrt(mean_square + layers.EPSILON) * scale + offset


def edited_shape(x, scale, offset):
    return PLAIN_LAYER_NORM(x, scale, offset)[..., :1]


@pytest.mark.parametrize(
    "plain", [edited_epsilon, edited_gradient, edited_mean, edited_shape], ids=lambda f: f.__name__
)
def test_an_edited_layer_norm_is_used(plain, monkeypatch, capsys):
    norm = LayerNorm(8)
    x = tf.constant(RNG.normal(size=(4, 8)), tf.float32)
    monkeypatch.setattr(layers, "layer_norm", plain)
    expected = plain(x, norm.scale, norm.offset)
    np.testing.assert_allclose(
        tf.function(norm, autograph=False)(x), expected, rtol=1e-5, atol=1e-6
    )
    assert plain.__name__ in capsys.readouterr().err


def edited_smoothing(logits, labels, label_smoothing=0.0):
    return loss.cross_entropy(logits, labels, 2 * label_smoothing)


def edited_scale(logits, labels, label_smoothing=0.0):
    return 1.01 * loss.cross_entropy(logits, labels, label_smoothing)


@pytest.mark.parametrize("plain", [edited_smoothing, edited_scale])
def test_an_edited_cross_entropy_is_used(plain):
    assert kernels.fastest(plain, kernels.cross_entropy) is plain


def test_log_sum_exp_equals_the_library_function():
    logits = tf.constant(RNG.normal(scale=100, size=(5, 30)), tf.float32)
    ours = kernels.log_sum_exp(logits, tf.nn.softmax(logits))
    np.testing.assert_allclose(ours, tf.reduce_logsumexp(logits, axis=-1), rtol=1e-6)
