"""Where a token stands: what is added to its embedding. Section 3.5."""

import numpy as np
import tensorflow as tf

from model.layers import fold_in, normal


class Sinusoidal(tf.Module):
    """Sines and cosines of geometrically falling frequency, interleaved, as section 3.5 has them.

    The well-known tutorials concatenate the sines and the cosines instead: the same numbers in
    another order of columns. Any length; `max_length` is not used.
    """

    def __init__(self, d_model, max_length=None, seed=None):
        self.d_model = d_model
        self.frequencies = np.float32(10000.0 ** (-np.arange(0, d_model, 2) / d_model))

    def __call__(self, start, stop):
        """Encodings of the positions start … stop − 1 → (stop − start, d_model)."""
        position = tf.cast(tf.range(start, stop), tf.float32)[:, tf.newaxis]
        angle = position * self.frequencies  # (length, d_model / 2)
        pairs = tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1)  # (length, d_model / 2, 2)
        return tf.reshape(pairs, (-1, self.d_model))  # (length, d_model)


class Learned(tf.Module):
    """One vector a position, learned: table 3, row E. Past the table the last vector repeats."""

    def __init__(self, d_model, max_length, seed):
        self.table = tf.Variable(normal((max_length, d_model), 0.02, fold_in(seed, "table")))

    def __call__(self, start, stop):
        last = self.table.shape[0] - 1
        return tf.gather(self.table, tf.minimum(tf.range(start, stop), last))  # (length, d_model)


class NoPositions(tf.Module):
    """Nothing is added: the encoder sees a bag of words, the decoder order by its mask alone."""

    def __init__(self, d_model, max_length=None, seed=None):
        self.d_model = d_model

    def __call__(self, start, stop):
        return tf.zeros((stop - start, self.d_model))


POSITIONS = {"sinusoidal": Sinusoidal, "learned": Learned, "none": NoPositions}
