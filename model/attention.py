"""Attention: Vaswani et al. 2017, section 3.2."""

import tensorflow as tf

from config import Config
from model.layers import Dense, Seed, fold_in, leading_dimensions

KeysValues = tuple[tf.Tensor, tf.Tensor]  # each (rows, num_heads, length, depth)


def scaled_dot_product_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """softmax(Q Kᵀ / √depth) V: section 3.2.1, eq. 1.

    Args:
        query: (…, query_len, depth).
        key: (…, key_len, depth).
        value: (…, key_len, value_depth).
        mask: boolean, broadcastable to (…, query_len, key_len); True = may attend.

    Returns:
        The output (…, query_len, value_depth), and the weights (…, query_len, key_len), whose rows
        sum to 1.
    """
    depth = query.shape[-1]
    # Equal to (query · key) / √depth.
    scores = tf.matmul(query * depth**-0.5, key, transpose_b=True)  # (…, query_len, key_len)
    if mask is not None:
        scores += tf.where(mask, 0.0, -1e9)  # exp(−1e9) is exactly 0
    weights = tf.nn.softmax(scores)  # over the keys
    return tf.matmul(weights, value), weights


class MultiHeadAttention(tf.Module):
    """Several attention heads, each on its own projection of the inputs: section 3.2.2.

    To change attention, edit `scaled_dot_product_attention` or `attend`. `__call__` is only for
    self-attention over whole sequences: cross-attention and decoding call `project_keys_values` and
    `attend` themselves.
    """

    def __init__(self, config: Config, seed: Seed):
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        d_model, d_heads = config.d_model, config.num_heads * config.head_dim
        self.query = Dense(d_model, d_heads, fold_in(seed, "query"), config.precision)
        self.key = Dense(d_model, d_heads, fold_in(seed, "key"), config.precision)
        self.value = Dense(d_model, d_heads, fold_in(seed, "value"), config.precision)
        self.output = Dense(d_heads, d_model, fold_in(seed, "output"), config.precision)

    def split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, length, num_heads · depth) → (batch, num_heads, length, depth)."""
        x = tf.reshape(x, (*leading_dimensions(x, 2), self.num_heads, self.head_dim))
        return tf.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, num_heads, length, depth) → (batch, length, num_heads · depth)."""
        x = tf.transpose(x, (0, 2, 1, 3))
        return tf.reshape(x, (*leading_dimensions(x, 2), self.num_heads * self.head_dim))

    def project_keys_values(self, key: tf.Tensor, value: tf.Tensor) -> KeysValues:
        """Project (batch, key_len, d_model) to keys and values (batch, num_heads, key_len, depth).

        Separate from `attend`, so that decoding can compute them once and reuse them.
        """
        return self.split_heads(self.key(key)), self.split_heads(self.value(value))

    def attend(
        self, query: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend from (batch, query_len, d_model) to projected keys and values.

        Returns (batch, query_len, d_model) and weights (batch, num_heads, query_len, key_len).
        """
        queries = self.split_heads(self.query(query))  # (batch, num_heads, query_len, depth)
        heads, weights = scaled_dot_product_attention(queries, keys, values, mask)
        return self.output(self.merge_heads(heads)), weights

    def __call__(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend from query (batch, query_len, d_model) to key and value (batch, key_len, d_model).

        mask: boolean, broadcastable to (batch, num_heads, query_len, key_len). Returns the same as
        `attend`.
        """
        keys, values = self.project_keys_values(key, value)
        return self.attend(query, keys, values, mask)

    def attend_to_past(
        self, x: tf.Tensor, past: KeysValues
    ) -> tuple[tf.Tensor, tf.Tensor, KeysValues]:
        """Self-attention of the newest token of each hypothesis to itself and to earlier tokens.

        x is (sources, hypotheses, d_model). The hypotheses of a source are separate sequences, so
        each becomes a row. past: the keys and values of earlier tokens. The newest token may attend
        to all of them, so there is no mask; an edit of `look_ahead_mask` needs one here, too.

        Returns the output (sources, hypotheses, d_model), the weights (rows, num_heads, 1, length),
        and `past` with the new keys and values.
        """
        rows = tf.reshape(x, (-1, 1, x.shape[-1]))  # (sources · hypotheses, 1, d_model)
        past_keys, past_values = past
        new_keys, new_values = self.project_keys_values(rows, rows)
        keys = tf.concat([past_keys, new_keys], axis=2)  # (rows, num_heads, length, depth)
        values = tf.concat([past_values, new_values], axis=2)
        y, weights = self.attend(rows, keys, values, mask=None)
        return tf.reshape(y, tf.shape(x)), weights, (keys, values)
