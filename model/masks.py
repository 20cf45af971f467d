"""Boolean masks. True means that a position may be attended to. Combine masks with `&`.

Training and decoding call the same two functions, so an edit to one of them affects both.
"""

import tensorflow as tf

from model.layers import Seed

# As in data/tokenizer.py, which model/ does not import.
PAD = 0
FIRST_WORD = 4  # smaller ids are special tokens: padding, unknown, bos, eos


def padding_mask(ids: tf.Tensor) -> tf.Tensor:
    """Mask the padding among the keys: ids (batch, key_len) → (batch, 1, 1, key_len), bool."""
    return (ids != PAD)[:, tf.newaxis, tf.newaxis, :]


def look_ahead_mask(length: int | tf.Tensor, start: int | tf.Tensor = 0) -> tf.Tensor:
    """Let a position attend to itself and to earlier ones: section 3.2.3.

    Returns the rows of positions start, …, length − 1: (length − start, length), bool. Training
    needs all rows; a step of decoding needs the one of the newest token. Padding of a target comes
    last, so that no real position attends to it.
    """
    position = tf.range(length)
    return position[start:, tf.newaxis] >= position


def word_dropout(ids: tf.Tensor, rate: float, seed: Seed | None) -> tf.Tensor:
    """Replace a fraction `rate` of the words with padding: Iyyer et al. 2015, section 3.

    Attention and mean pooling ignore padding. If words were replaced with the unknown token, its
    vector would shift every mean, in training only.

    ids: (batch, length). Without a seed, or with a rate of 0, they are returned unchanged.
    """
    if seed is None or (not tf.is_tensor(rate) and rate == 0.0):
        return ids
    draws = tf.random.stateless_uniform(tf.shape(ids), seed.tensor())
    return tf.where((draws < rate) & (ids >= FIRST_WORD), PAD, ids)
