"""Masks. One polarity everywhere: boolean, True = may attend, combined with `&`.

It is the reverse of the well-known tutorial's, where 1 means "hide".
"""

import tensorflow as tf

PAD = 0  # the id that fills a batch's shorter rows
FIRST_WORD = 4  # the ids before it are no words: padding, unknown, bos, eos


def padding_mask(ids):
    """Where the keys are real tokens: ids (batch, key_len) → (batch, 1, 1, key_len), bool."""
    return (ids != PAD)[:, tf.newaxis, tf.newaxis, :]


def look_ahead_mask(query_len, key_len):
    """Section 3.2.3: a query sees the keys up to its own position → (query_len, key_len), bool.

    The queries are the last `query_len` of `key_len` positions, so that one rule serves the whole
    sentence in training (query_len = key_len) and one more token in decoding (query_len = 1).
    """
    query_position = tf.range(key_len - query_len, key_len)[:, tf.newaxis]
    return query_position >= tf.range(key_len)  # (query_len, key_len)


def masks(source, target_in):
    """What the positions of target_in may attend to: in target_in itself, and in the source.

    → (batch, 1, target_len, target_len) and (batch, 1, 1, source_len), bool.
    """
    length = tf.shape(target_in)[1]
    return look_ahead_mask(length, length) & padding_mask(target_in), padding_mask(source)


def word_dropout(ids, rate, seed):
    """A share `rate` of the words become padding, which no attention sees and no mean counts: Iyyer
    et al. 2015, section 3. (As unknown words they would pull every mean of a text towards one and
    the same vector, in training alone.)

    ids (batch, length); seed None: ids as they are.
    """
    if seed is None or rate == 0.0:
        return ids
    draws = tf.random.stateless_uniform(tf.shape(ids), seed, alg="philox")
    return tf.where((draws < rate) & (ids >= FIRST_WORD), PAD, ids)
