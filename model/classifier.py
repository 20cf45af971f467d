"""A text's label: an Encoder alone, its memory pooled into one vector.

A label is a target of one token, so that a classifier is trained, decoded and measured as a
translator is: the label takes the place of the first token, and nothing follows it.
"""

import tensorflow as tf

from model.layers import Dense, Embedding, dropout, fold_in, initial_seed
from model.masks import FIRST_WORD, padding_mask
from model.transformer import Encoder


def max_pooling(memory, real):
    """The highest value of each column: (batch, length, d_model), real (batch, length) → (batch,
    d_model), as all poolings; `real`, bool, says which positions count.
    """
    return tf.reduce_max(tf.where(real[:, :, tf.newaxis], memory, -float("inf")), axis=1)


def mean_pooling(memory, real):
    """The mean of each column."""
    real = tf.cast(real, tf.float32)[:, :, tf.newaxis]  # (batch, length, 1)
    return tf.reduce_sum(memory * real, axis=1) / tf.reduce_sum(real, axis=1)


def first_pooling(memory, real):
    """The first position, which attention has to make speak for all: Devlin et al. 2019."""
    return memory[:, 0]


POOLING = {"max": max_pooling, "mean": mean_pooling, "first": first_pooling}


class Bigrams(Embedding):
    """An Embedding of words and, beside it, of each word with the one before it: "not good".

    There are more pairs than vectors, `count`: a hash says which pairs share one, so that a pair is
    known by its neighbours in the text alone (Joulin et al. 2017, section 2.2). They begin at zero.
    """

    def __init__(self, vocab_size, d_model, count, seed):
        super().__init__(vocab_size, d_model, seed)
        self.pairs = tf.Variable(tf.zeros((count, d_model)))

    def __call__(self, ids):
        before = tf.pad(ids[:, :-1], [(0, 0), (1, 0)])  # (batch, length)
        first, second = tf.cast(before, tf.int64), tf.cast(ids, tf.int64)
        place = (first * 1_000_003 + second) % self.pairs.shape[0]
        words = (before >= FIRST_WORD) & (ids >= FIRST_WORD)  # of eos and padding there are none
        rows = tf.gather(tf.convert_to_tensor(self.pairs), place)  # (batch, length, d_model)
        rows *= tf.cast(words, tf.float32)[:, :, tf.newaxis]
        return super().__call__(ids) + rows * self.pairs.shape[1] ** 0.5


class Classifier(tf.Module):
    """An Encoder, a pooling and a projection to the labels.

    config: as for a Transformer, and pooling, bigrams. Labels are ids of a vocabulary that begins
    with padding and other special ids. These are never right, and are learned to be unlikely; but
    label smoothing gives them their share, too. In decoding they are out of the question, so that
    the probabilities of the labels sum to 1.
    """

    def __init__(self, config, source_vocab_size, target_vocab_size):
        seed = initial_seed(config.seed)
        size = config.d_model
        sizes, place = (source_vocab_size, size), fold_in(seed, "source_embedding")
        embedding = (
            Bigrams(*sizes, config.bigrams, place) if config.bigrams else Embedding(*sizes, place)
        )
        self.encoder = Encoder(config, embedding, fold_in(seed, "encoder"))
        self.pooling, self.dropout_rate = POOLING[config.pooling], config.dropout_rate
        self.output = Dense(size, target_vocab_size, fold_in(seed, "output"))

    @property
    def source_embedding(self):
        """What words mean, before any context."""
        return self.encoder.embedding

    def encode(self, source, source_mask, seed=None):
        """source (batch, source_len), int → memory (batch, source_len, d_model)."""
        return self.encoder(source, source_mask, fold_in(seed, "encoder"))[0]

    def decode(self, target_in, memory, self_mask, cross_mask, seed=None):
        """What the memory says at the label's place → hidden (batch, 1, d_model), no weights.

        target_in (batch, 1), which holds nothing but bos, and its mask tell nothing.
        """
        pooled = self.pooling(memory, cross_mask[:, 0, 0])  # (batch, d_model)
        return dropout(pooled, self.dropout_rate, fold_in(seed, "pooled"))[:, tf.newaxis], []

    def logits(self, hidden):
        """hidden (…, d_model) → (…, vocab_size)."""
        return self.output(hidden)

    def attention(self, source, target_in):
        """The encoder's weights: (batch, num_layers, num_heads, source_len, source_len)."""
        _, weights = self.encoder(source, padding_mask(source))
        return {"encoder": tf.stack(weights, axis=1)}

    def start(self, source):
        """Decoding's state before the label: what it hangs on, (batch, d_model)."""
        source_mask = padding_mask(source)
        hidden, _ = self.decode(None, self.encode(source, source_mask), None, source_mask)
        return {"past": hidden[:, 0]}

    def step(self, token, state):
        """The state → logits (batch, vocab_size), state. The last token, bos, tells nothing."""
        logits = self.logits(state["past"])
        special = tf.range(self.output.bias.shape[0]) < FIRST_WORD
        return tf.where(special, -1e9, logits), state
