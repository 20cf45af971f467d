"""Attention. Section 3.2."""

import tensorflow as tf

from model.layers import Dense, fold_in


def scaled_dot_product_attention(query, key, value, mask=None):
    """softmax(Q Kᵀ / √d_k) V: section 3.2.1, eq. 1.

    query (…, query_len, key_dim), key (…, key_len, key_dim), value (…, key_len, value_dim); mask
    boolean, broadcast to (…, query_len, key_len), True = may attend.
    Returns (…, query_len, value_dim) and the weights (…, query_len, key_len), whose rows sum to 1.
    """
    key_dim = query.shape[-1]
    scores = tf.matmul(query / key_dim**0.5, key, transpose_b=True)  # (…, query_len, key_len)
    if mask is not None:
        scores += tf.where(mask, 0.0, -1e9)  # exp(−1e9) is exactly 0
    weights = tf.nn.softmax(scores)  # over the keys
    return tf.matmul(weights, value), weights


class MultiHeadAttention(tf.Module):
    """Several attentions side by side, each on its own projection of the input: section 3.2.2."""

    def __init__(self, d_model, num_heads, key_dim, seed):
        self.num_heads, self.key_dim = num_heads, key_dim
        self.query = Dense(d_model, num_heads * key_dim, fold_in(seed, "query"))
        self.key = Dense(d_model, num_heads * key_dim, fold_in(seed, "key"))
        self.value = Dense(d_model, num_heads * key_dim, fold_in(seed, "value"))
        self.output = Dense(num_heads * key_dim, d_model, fold_in(seed, "output"))

    def split_heads(self, x):
        """(batch, length, num_heads · key_dim) → (batch, num_heads, length, key_dim)."""
        batch, length = tf.shape(x)[0], tf.shape(x)[1]
        x = tf.reshape(x, (batch, length, self.num_heads, self.key_dim))
        return tf.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x):
        """(batch, num_heads, length, key_dim) → (batch, length, num_heads · key_dim)."""
        batch, length = tf.shape(x)[0], tf.shape(x)[2]
        x = tf.transpose(x, (0, 2, 1, 3))
        return tf.reshape(x, (batch, length, self.num_heads * self.key_dim))

    def project_keys_values(self, x):
        """What x offers to queries: a pair of (batch, num_heads, length, key_dim)."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def __call__(self, x, keys_values, mask):
        """Each position of x, (batch, query_len, d_model), looks at the keys that the mask allows.

        Keys and values come projected, from `keys_values`, so that decoding can keep them.
        Returns (batch, query_len, d_model) and weights (batch, num_heads, query_len, key_len).
        """
        query = self.split_heads(self.query(x))  # (batch, num_heads, query_len, key_dim)
        heads, weights = scaled_dot_product_attention(query, *keys_values, mask)
        return self.output(self.merge_heads(heads)), weights
