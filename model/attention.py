"""Attention: Vaswani et al. 2017, section 3.2."""

import tensorflow as tf

from config import Config
from model.layers import Dense, Seed, dropout, fold_in

KeysValues = tuple[tf.Tensor, tf.Tensor]  # each (rows, num_heads, length, head_dim)


def scaled_dot_product_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None = None,
    dropout_rate: float = 0.0,
    seed: Seed | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """softmax(Q Kᵀ / √head_dim) V: section 3.2.1, eq. 1.

    Args:
        query: (…, query_len, head_dim).
        key: (…, key_len, head_dim).
        value: (…, key_len, value_dim).
        mask: boolean, broadcastable to (…, query_len, key_len); True = may attend. Or float32, to
            be added to the scores, such as a bias for each distance; 0 and 1 would not mask.
        dropout_rate: dropout rate of the weights; not in the paper.
        seed: seed of this dropout; None disables it.

    Returns:
        The output (…, query_len, value_dim), and the weights (…, query_len, key_len), whose rows
        sum to 1.
    """
    head_dim = query.shape[-1]
    # Equal to (query · key) / √head_dim.
    scores = tf.matmul(query * head_dim**-0.5, key, transpose_b=True)  # (…, query_len, key_len)
    if mask is not None:
        # exp(−1e9) is exactly 0, so a masked key has no weight unless all keys are masked.
        scores += tf.where(mask, 0.0, -1e9) if mask.dtype == tf.bool else mask
    weights = tf.nn.softmax(scores)  # over the keys
    return tf.matmul(dropout(weights, dropout_rate, seed), value), weights


class MultiHeadAttention(tf.Module):
    """Several attention heads, each on its own projection of the inputs: section 3.2.2.

    Training and decoding both call `self_attend` and `cross_attend`: training with whole sequences,
    decoding with the newest token.
    """

    def __init__(self, config: Config, seed: Seed):
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.dropout_rate = config.attention_dropout_rate
        d_model, d_heads = config.d_model, config.num_heads * config.head_dim
        self.query = Dense(d_model, d_heads, fold_in(seed, "query"), config.precision)
        self.key = Dense(d_model, d_heads, fold_in(seed, "key"), config.precision)
        self.value = Dense(d_model, d_heads, fold_in(seed, "value"), config.precision)
        self.output = Dense(d_heads, d_model, fold_in(seed, "output"), config.precision)

    def split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, length, num_heads · head_dim) → (batch, num_heads, length, head_dim)."""
        num_heads = x.shape[-1] // self.head_dim  # keys and values may have fewer than queries
        x = tf.reshape(x, tf.concat([tf.shape(x)[:2], (num_heads, self.head_dim)], axis=0))
        return tf.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, num_heads, length, head_dim) → (batch, length, num_heads · head_dim)."""
        x, width = tf.transpose(x, (0, 2, 1, 3)), self.num_heads * self.head_dim
        return tf.reshape(x, tf.concat([tf.shape(x)[:2], (width,)], axis=0))

    def keys_values(self, x: tf.Tensor) -> KeysValues:
        """Project x (batch, length, d_model) → two of (batch, num_heads, length, head_dim)."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def attend(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        mask: tf.Tensor | None,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend in each head, and project the merged heads.

        queries: (batch, num_heads, query_len, head_dim). keys, values: from `keys_values`. mask: of
        `scaled_dot_product_attention`, broadcastable to (batch, num_heads, query_len, key_len).
        Returns (batch, query_len, d_model) and the weights (batch, num_heads, query_len, key_len).
        """
        seed = fold_in(seed, "weights")
        heads, weights = scaled_dot_product_attention(
            queries, keys, values, mask, self.dropout_rate, seed
        )
        return self.output(self.merge_heads(heads)), weights

    def self_attend(
        self,
        x: tf.Tensor,
        mask: tf.Tensor | None,
        seed: Seed | None = None,
        cache: KeysValues | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, KeysValues]:
        """Attend from each position of x (batch, length, d_model) to those of the cache and of x.

        cache: in decoding, the keys and values of all earlier positions; x is then the newest one,
        (batch, 1, d_model). Returns the same as `attend`, and the keys and values of all positions,
        which are the next cache. The caller also draws from `seed`: derive others with `fold_in`.
        """
        queries = self.split_heads(self.query(x))  # (batch, num_heads, length, head_dim)
        keys, values = self.keys_values(x)
        if cache is not None:
            keys = tf.concat([cache[0], keys], axis=2)  # (batch, num_heads, key_len, head_dim)
            values = tf.concat([cache[1], values], axis=2)
        y, weights = self.attend(queries, keys, values, mask, seed)
        return y, weights, (keys, values)

    def empty_cache(self, batch: int | tf.Tensor) -> KeysValues:
        """Return the cache before the first position: keys and values of length 0.

        Cut from those of one position, so that they have the shape of an edited `keys_values`.
        """
        keys, values = self.keys_values(tf.zeros((batch, 1, self.output.kernel.shape[1])))
        return keys[:, :, :0], values[:, :, :0]  # (batch, num_heads, 0, head_dim)

    def cross_attend(
        self, x: tf.Tensor, memory: KeysValues, mask: tf.Tensor | None, seed: Seed | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend from x (rows, length, d_model) to the memory, the `keys_values` of the encoder.

        In training, there is one row per source. In beam search, consecutive rows of x are the
        hypotheses of one source, and the memory still has one row per source. Each position of a
        query attends to the memory independently of the others, so the hypotheses are treated as
        positions of one query: each source's memory is read once, and never copied. Therefore an
        edit to attention must not depend on the index of a query here. If it must, repeat the
        memory and its mask for each hypothesis.

        Returns (rows, length, d_model), and weights (sources, num_heads, rows / sources · length,
        source_len).
        """
        keys, values = memory
        sources = tf.shape(keys)[0]
        hypotheses = tf.maximum(tf.shape(x)[0] // tf.maximum(sources, 1), 1)  # also if none is left
        grouped = tf.reshape(x, (sources, hypotheses * tf.shape(x)[1], x.shape[-1]))
        queries = self.split_heads(self.query(grouped))
        y, weights = self.attend(queries, keys, values, mask, seed)
        y = tf.reshape(y, tf.shape(x))
        y.set_shape(x.shape)
        return y, weights
