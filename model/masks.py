"""Masks. One polarity everywhere: boolean, True = may attend, combined with `&`.

It is the reverse of the well-known tutorial's, where 1 means "hide".
"""

import tensorflow as tf

PAD = 0  # the id that fills a batch's shorter rows


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
