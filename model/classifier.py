"""Text classifier: a Transformer encoder, pooling and a projection to the labels.

A label is a target of one token, so that classifiers are trained, decoded and evaluated as
translators are.
"""

import tensorflow as tf

from config import Config
from model.interface import Intermediates, TeacherForcing
from model.layers import Dense, Embedding, Seed, dropout, fold_in, initial_seed
from model.masks import FIRST_WORD, padding_mask
from model.transformer import Stack

# Poolings: memory (batch, length, d_model) and real (batch, length), bool, False at padding →
# (batch, d_model). The maximum and the mean of a text without tokens are zero.


def max_pooling(memory: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Maximum of each column over the real positions."""
    highest = tf.reduce_max(tf.where(real[:, :, tf.newaxis], memory, -float("inf")), axis=1)
    return tf.where(tf.reduce_any(real, axis=1, keepdims=True), highest, 0.0)


def mean_pooling(memory: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Mean of each column over the real positions."""
    real = tf.cast(real, tf.float32)[:, :, tf.newaxis]  # (batch, length, 1)
    return tf.math.divide_no_nan(tf.reduce_sum(memory * real, axis=1), tf.reduce_sum(real, axis=1))


def first_pooling(memory: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """The first position, the first word; in BERT a [CLS] token: Devlin et al. 2019, section 3."""
    return memory[:, 0]


POOLING = {"max": max_pooling, "mean": mean_pooling, "first": first_pooling}


class Classifier(TeacherForcing):
    """An encoder, a pooling and a projection to the labels. Its methods are described in `Model`.

    Labels are ids of a vocabulary that begins with padding and other special ids. Special ids are
    never correct and become unlikely in training, although label smoothing gives them a share. In
    decoding they are excluded, so that the probabilities of the labels sum to 1.
    """

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int):
        seed = initial_seed(config.seed)
        embedding = Embedding(source_vocab_size, config.d_model, fold_in(seed, "source_embedding"))
        self.encoder = Stack(config, embedding, fold_in(seed, "encoder"))
        self.pooling, self.dropout_rate = POOLING[config.pooling], config.dropout_rate
        self.output = Dense(
            config.d_model, target_vocab_size, fold_in(seed, "output"), config.precision
        )

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of source tokens."""
        return self.encoder.embedding

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """source (batch, source_len) → memory (batch, source_len, d_model), intermediates."""
        return self.encoder(source, source_mask, fold_in(seed, "encoder"))[:2]

    def decode(
        self,
        target_in: tf.Tensor | None,
        memory: tf.Tensor,
        self_mask: tf.Tensor | None,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list]:
        """Pool memory (batch, source_len, d_model) → hidden (batch, 1, d_model).

        target_in, which is bos, and its mask are ignored.
        """
        pooled = self.pooling(memory, cross_mask[:, 0, 0])  # (batch, d_model)
        return dropout(pooled, self.dropout_rate, fold_in(seed, "pooled"))[:, tf.newaxis], []

    def init_decode(self, source: tf.Tensor) -> dict:
        """Encode and pool source (batch, source_len) → the state of decoding."""
        source_mask = padding_mask(source)
        memory, _ = self.encode(source, source_mask)
        hidden, _ = self.decode(None, memory, None, source_mask)
        return {"caches": hidden[:, 0]}  # (batch, d_model)

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """token (rows,), ignored, and the state → logits (rows, vocab_size), state."""
        logits = self.logits(state["caches"])
        special = tf.range(self.output.bias.shape[0]) < FIRST_WORD
        return tf.where(special, -1e9, logits), state
