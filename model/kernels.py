"""Faster versions of `layers.layer_norm`, `loss.cross_entropy` and two functions of TensorFlow.

A kernel has the values and gradients of its plain version. For `layer_norm` and `cross_entropy`,
`fastest` compares the two on small examples and returns the plain version if they differ, so that
an edited equation takes effect. An edit without effect on the examples is not noticed.
"""

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf


@functools.cache
def fastest(plain: Callable, kernel: Callable) -> Callable:
    """Return `kernel` if it agrees with `plain` on its example, otherwise `plain`, with a note."""
    # A new thread executes eagerly and records gradients, even while this one traces a graph.
    with ThreadPoolExecutor(1) as thread:
        if thread.submit(agree, plain, kernel).result():
            return kernel
    print(
        f"note: {plain.__module__}.{plain.__name__} was edited: it is used instead of its faster "
        "version in model/kernels.py",
        file=sys.stderr,
    )
    return plain


def agree(plain: Callable, kernel: Callable) -> bool:
    """Return whether two functions have equal values and gradients on the kernel's examples."""
    for arguments in EXAMPLES[kernel]():
        from_kernel = value_and_gradients(kernel, arguments)
        try:
            from_plain = value_and_gradients(plain, arguments)
        except Exception:  # the edited version does not accept the example
            return False
        for x, y in zip(from_plain, from_kernel, strict=True):
            if x.shape != y.shape or not np.allclose(x, y, rtol=1e-4, atol=1e-5):
                return False
    return True


def value_and_gradients(function: Callable, arguments: tuple) -> list[tf.Tensor]:
    """Return a function's value, and its gradients with respect to the float tensors."""
    inputs = [x for x in arguments if tf.is_tensor(x) and x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*arguments)
    upstream = tf.reshape(tf.linspace(0.5, 1.5, tf.size(value)), tf.shape(value))
    return [value, *tape.gradient(value, inputs, upstream, unconnected_gradients="zero")]


@tf.custom_gradient
def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor):
    """`model.layers.layer_norm` with its gradient in closed form."""
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    inverse_deviation = tf.math.rsqrt(variance + 1e-6)
    normalized = centered * inverse_deviation

    def gradient(upstream):
        batch_axes = list(range(x.shape.rank - 1))
        inner = upstream * scale
        projection = tf.reduce_mean(inner * normalized, axis=-1, keepdims=True)
        inner_mean = tf.reduce_mean(inner, axis=-1, keepdims=True)
        x_gradient = (inner - inner_mean - normalized * projection) * inverse_deviation
        scale_gradient = tf.reduce_sum(upstream * normalized, axis=batch_axes)
        return x_gradient, scale_gradient, tf.reduce_sum(upstream, axis=batch_axes)

    return normalized * scale + offset, gradient


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """`model.loss.cross_entropy` with its gradient in closed form: softmax − target."""

    @tf.custom_gradient
    def function(logits):
        probabilities = tf.nn.softmax(logits)
        target_logit = (1.0 - label_smoothing) * tf.gather(logits, labels, batch_dims=1)
        if label_smoothing:
            target_logit += label_smoothing * tf.reduce_mean(logits, axis=-1)

        def gradient(upstream):
            vocab_size = logits.shape[-1]
            share = label_smoothing / vocab_size
            target = tf.one_hot(labels, vocab_size, 1.0 - label_smoothing + share, share)
            return (probabilities - target) * upstream[:, tf.newaxis]

        return log_sum_exp(logits, probabilities) - target_logit, gradient

    return function(logits)


def log_sum_exp(logits: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
    """`tf.reduce_logsumexp(logits, axis=-1)`, given the softmax of the logits.

    For the most likely entry, log Σ exp(logits) = logit − log p, and its p cannot underflow.
    logits and probabilities: (rows, n) → (rows,).
    """
    highest = tf.reduce_max(logits, axis=-1)
    return highest - tf.math.log(tf.reduce_max(probabilities, axis=-1))


def blockwise_top_k(x: tf.Tensor, k: int, block: int = 32) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k(x, k)` of (rows, n), n static → values and indices, each (rows, k).

    The k highest values lie in the k blocks of columns with the highest maxima.
    """
    whole = x.shape[-1] // block * block
    if whole < 2 * k * block:
        return tf.math.top_k(x, k)
    blocks = tf.reshape(x[:, :whole], (-1, whole // block, block))  # (rows, blocks, block)
    best = tf.math.top_k(tf.reduce_max(blocks, axis=-1), k).indices  # (rows, k)
    values = tf.reshape(tf.gather(blocks, best, batch_dims=1), (-1, k * block))  # (rows, k · block)
    index = tf.reshape(best[:, :, tf.newaxis] * block + tf.range(block), (-1, k * block))
    rest = tf.tile(tf.range(whole, x.shape[-1])[tf.newaxis], (tf.shape(x)[0], 1))
    values, index = tf.concat([values, x[:, whole:]], 1), tf.concat([index, rest], 1)
    values, position = tf.math.top_k(values, k)
    return values, tf.gather(index, position, batch_dims=1)


def layer_norm_example() -> list[tuple]:
    """Rows of different scale: in the smallest, the epsilon under the root matters."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 3, 16)) * np.reshape([1e-3, 0.1, 1, 10], (4, 1, 1))
    scale, offset = random.normal(size=(2, 16))
    return [tuple(tf.constant(value, tf.float32) for value in (x, scale, offset))]


def cross_entropy_example() -> list[tuple]:
    """With label smoothing and without; small logits and large ones, where clipping would show."""
    random = np.random.default_rng(0)
    examples = []
    for scale, smoothing in ((3, 0.0), (3, 0.1), (300, 0.0), (300, 0.1)):
        logits = tf.constant(random.normal(scale=scale, size=(9, 9)), tf.float32)
        examples.append((logits, tf.range(9), smoothing))
    return examples


EXAMPLES = {layer_norm: layer_norm_example, cross_entropy: cross_entropy_example}
