"""The leaves: seeds and initial values, Dense, Embedding, LayerNorm, dropout, FeedForward."""

from contextlib import contextmanager
from contextvars import ContextVar
from zlib import crc32

import numpy as np
import tensorflow as tf


def fold_in(seed, place):
    """The seed of a named place inside `seed`, an int64 vector (run seed, step); None stays None.

    Every draw, of an initial weight or of a dropout mask, is a function of (seed, name of the
    place): a change elsewhere in the model leaves it as it was. Names of nested places add up,
    above the 20 bits that are the run seed's.
    """
    return None if seed is None else seed + np.int64([crc32(place.encode()) << 20, 0])


def glorot_uniform(shape, seed):
    """Initial weights of a (fan_in, fan_out) matrix: Glorot & Bengio 2010, eq. 16."""
    limit = (6.0 / (shape[0] + shape[1])) ** 0.5
    return tf.random.stateless_uniform(shape, seed, -limit, limit)


def normal(shape, stddev, seed):
    """Initial weights from a normal distribution around zero."""
    return tf.random.stateless_normal(shape, seed, stddev=stddev)


def dropout(x, rate, seed):
    """Zero a share `rate` of x and scale up the rest (section 5.4); seed None: x as it is."""
    if seed is None or rate == 0.0:
        return x
    # 16 random bits a value, two values a draw: saves 3 % of the step's time. Philox by name: the
    # same bits on every device.
    size = x.shape[-1] or tf.shape(x)[-1]  # a number where it is known
    draws = tf.concat([tf.shape(x)[:-1], [(size + 1) // 2]], axis=0)
    bits = tf.random.stateless_uniform(draws, seed, None, None, tf.uint32, alg="philox")
    bits = tf.reshape(tf.bitcast(bits, tf.uint16), tf.concat([tf.shape(x)[:-1], [-1]], axis=0))
    kept = bits[..., :size] >= tf.constant(int(rate * 2**16), tf.uint16)
    return tf.where(kept, x * (1 / (1 - rate)), 0.0)


PRODUCTS = ContextVar("PRODUCTS", default=tf.float32)


@contextmanager
def products_in(dtype):
    """Inside, `product` multiplies in `dtype`, "float32" or "bfloat16", and so do its gradients."""
    before = PRODUCTS.set(tf.as_dtype(dtype))
    try:
        yield
    finally:
        PRODUCTS.reset(before)


def product(x, kernel, transpose_b=False):
    """x W, or x Wᵀ: (rows, d_in) and a weight matrix → (rows, d_out), float32 whatever it was in.

    All else, weights, norms, softmax and loss, is always float32: Micikevicius et al. 2018.
    """
    dtype = PRODUCTS.get()
    rows = tf.matmul(tf.cast(x, dtype), tf.cast(kernel, dtype), transpose_b=transpose_b)
    return tf.cast(rows, tf.float32)


def log_sum_exp(logits, probabilities):
    """log Σ exp(logits) where their softmax is known: (rows, n), (rows, n) → (rows,).

    From the likeliest, whose probability is never too small for a logarithm; in a third of the time
    of `tf.reduce_logsumexp`.
    """
    highest = tf.reduce_max(logits, axis=-1)
    return highest - tf.math.log(tf.reduce_max(probabilities, axis=-1))


class Dense(tf.Module):
    """x W + b: (…, d_in) → (…, d_out)."""

    def __init__(self, d_in, d_out, seed):
        self.kernel = tf.Variable(glorot_uniform((d_in, d_out), fold_in(seed, "kernel")))
        self.bias = tf.Variable(tf.zeros(d_out))

    def __call__(self, x):
        # As one matrix: a rank-3 product would make the kernel's gradient batch by batch. And
        # bias_add instead of `+`, whose gradient is a much slower reduction.
        d_in, d_out = self.kernel.shape
        rows = tf.reshape(x, (-1, d_in))  # (batch · length, d_in)
        rows = tf.nn.bias_add(product(rows, self.kernel), self.bias)  # (batch · length, d_out)
        return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [d_out]], axis=0))  # (…, d_out)


class Embedding(tf.Module):
    """A vector for each id: (…) → (…, d_model), times √d_model (section 3.4)."""

    def __init__(self, vocab_size, d_model, seed):
        # Of variance 1 / d_model, so that the table serves as the output projection too (tied).
        self.table = tf.Variable(
            normal((vocab_size, d_model), d_model**-0.5, fold_in(seed, "table"))
        )

    def __call__(self, ids):
        # Of its value: a variable that is gathered from directly is copied whenever it is read.
        rows = tf.gather(tf.convert_to_tensor(self.table), ids)
        return rows * self.table.shape[1] ** 0.5  # (…, d_model)


class TiedProjection(tf.Module):
    """The output projection where it is the embeddings' table, transposed: section 3.4."""

    def __init__(self, embedding):
        self.embedding = embedding

    def __call__(self, hidden):
        return product(hidden, self.embedding.table, transpose_b=True)  # (rows, vocab_size)


def make_embeddings(config, source_vocab_size, target_vocab_size, seed):
    """The Embeddings of source and target, and the output projection: hidden → logits."""
    size = config.d_model
    target = Embedding(target_vocab_size, size, fold_in(seed, "target_embedding"))
    if not config.tie_embeddings:
        source = Embedding(source_vocab_size, size, fold_in(seed, "source_embedding"))
        return source, target, Dense(size, target_vocab_size, fold_in(seed, "output"))
    # One table for both languages where they share their vocabulary: section 3.4.
    source = (
        target
        if config.shared_vocabulary
        else Embedding(source_vocab_size, size, fold_in(seed, "source_embedding"))
    )
    return source, target, TiedProjection(target)


class LayerNorm(tf.Module):
    """Zero mean and unit variance over the last axis, then scale and offset (Ba et al. 2016)."""

    def __init__(self, d_model):
        self.scale = tf.Variable(tf.ones(d_model))
        self.offset = tf.Variable(tf.zeros(d_model))

    def __call__(self, x):
        # A custom gradient wants tensors; of variables it would ask for gradients by name.
        return layer_norm(x, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.offset))


EPSILON = 1e-6  # under the root of the variance


def plain_layer_norm(x, scale, offset):
    """What `layer_norm` below computes, left to automatic differentiation.

    To read, and to test against. The model calls the other one: to try a change here, call this
    one in `LayerNorm`.
    """
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + EPSILON) * scale + offset


@tf.custom_gradient
def layer_norm(x, scale, offset):
    """`plain_layer_norm` with its gradient in closed form: saves a fifth of the step's time."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    inverse_deviation = tf.math.rsqrt(variance + EPSILON)
    normalised = centred * inverse_deviation

    def gradient(upstream):
        batch_axes = list(range(x.shape.rank - 1))
        inner = upstream * scale
        along = tf.reduce_mean(inner * normalised, axis=-1, keepdims=True)
        inner_mean = tf.reduce_mean(inner, axis=-1, keepdims=True)
        x_gradient = (inner - inner_mean - normalised * along) * inverse_deviation
        scale_gradient = tf.reduce_sum(upstream * normalised, axis=batch_axes)
        return x_gradient, scale_gradient, tf.reduce_sum(upstream, axis=batch_axes)

    return normalised * scale + offset, gradient


class FeedForward(tf.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, position by position: section 3.3, eq. 2."""

    def __init__(self, d_model, dff, seed):
        self.inner = Dense(d_model, dff, fold_in(seed, "inner"))
        self.outer = Dense(dff, d_model, fold_in(seed, "outer"))

    def __call__(self, x):
        return self.outer(tf.nn.relu(self.inner(x)))  # (batch, length, d_model)
