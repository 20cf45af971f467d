"""Positional encodings, added to the embeddings: Vaswani et al. 2017, section 3.5."""

import numpy as np
import tensorflow as tf

from model.layers import Seed, fold_in, normal


class Sinusoidal(tf.Module):
    """Sines and cosines of geometrically decreasing frequency, interleaved as in section 3.5.

    Many tutorials concatenate sines and cosines instead, which only permutes the columns. Any
    length; max_length is not used.
    """

    def __init__(self, d_model: int, max_length: int | None = None, seed: Seed | None = None):
        self.d_model = d_model
        self.frequencies = np.float32(10000.0 ** (-np.arange(0, d_model, 2) / d_model))

    def __call__(self, start: int | tf.Tensor, stop: int | tf.Tensor) -> tf.Tensor:
        """Return the encodings of positions start, …, stop − 1: (stop − start, d_model)."""
        position = tf.cast(tf.range(start, stop), tf.float32)[:, tf.newaxis]
        angle = position * self.frequencies  # (length, d_model / 2)
        pairs = tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1)  # (length, d_model / 2, 2)
        return tf.reshape(pairs, (-1, self.d_model))  # (length, d_model)


class Learned(tf.Module):
    """One learned vector per position: table 3, row E. Later positions share the last vector."""

    def __init__(self, d_model: int, max_length: int, seed: Seed):
        self.table = tf.Variable(normal((max_length, d_model), 0.02, fold_in(seed, "table")))

    def __call__(self, start: int | tf.Tensor, stop: int | tf.Tensor) -> tf.Tensor:
        """Return the encodings of positions start, …, stop − 1: (stop − start, d_model)."""
        last = self.table.shape[0] - 1
        return tf.gather(self.table, tf.minimum(tf.range(start, stop), last))


class NoPositions(tf.Module):
    """No positional encoding: only the decoder's look-ahead mask depends on the order of words."""

    def __init__(self, d_model: int, max_length: int | None = None, seed: Seed | None = None):
        self.d_model = d_model

    def __call__(self, start: int | tf.Tensor, stop: int | tf.Tensor) -> tf.Tensor:
        """Return zeros: (stop − start, d_model)."""
        return tf.zeros((stop - start, self.d_model))


POSITIONS = {"sinusoidal": Sinusoidal, "learned": Learned, "none": NoPositions}
