"""The loss over the real target tokens, and other sums over a batch."""

import math
from typing import NamedTuple

import tensorflow as tf

from model.masks import PAD

UNK = 1  # as in data/tokenizer.py
# Nats to choose among all characters of Unicode: the target is unknown, and so is its text.
UNKNOWN_LOSS = math.log(0x110000)


def real_targets(target: tf.Tensor) -> tf.Tensor:
    """Return which tokens are predicted and count: all of target[:, 1:] but padding.

    target (batch, target_len), ids → (batch, target_len − 1), bool.
    """
    return target[:, 1:] != PAD


class Sums(NamedTuple):
    """Sums over tokens, so that the parts of a batch can simply be added."""

    objective: tf.Tensor  # in nats; the training step minimizes it per predicted token
    loss: tf.Tensor  # cross-entropy without label smoothing, in nats
    correct: tf.Tensor  # number of correct predictions
    tokens: tf.Tensor  # number of predictions
    others: dict[str, tf.Tensor]  # by name; logged per target token, as means like the loss

    def add_loss(self, name: str, value: tf.Tensor, weight: float = 1.0) -> "Sums":
        """Add an auxiliary loss to the objective, `weight` times its value, and log the value.

        value: a scalar, a sum over the real tokens of the batch.
        """
        others = self.others | {name: value}
        return self._replace(objective=self.objective + weight * value, others=others)


def loss_sums(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> Sums:
    """Return the sums of the objective and the loss, and the numbers of predictions.

    The loss is the cross-entropy of each token, log Σ exp(logits) − the logit of the label. The
    loss of an unknown token is larger by `UNKNOWN_LOSS`, and its prediction is not correct, so that
    a vocabulary that leaves text out does not have a lower loss. The objective is the cross-entropy
    with label smoothing ε: the target distribution is 1 − ε on the label plus ε / vocab_size on
    every token, the label included (Vaswani et al. 2017, section 5.4, and Szegedy et al. 2016,
    section 7). To minimize something else and report the same loss, edit the objective.

    logits (tokens, vocab_size), labels (tokens,).
    """
    # `tf.gather(logits, labels, batch_dims=1)` has a slower gradient.
    label_index = tf.stack([tf.range(tf.size(labels)), labels], axis=1)  # (tokens, 2)
    label_logit = tf.gather_nd(logits, label_index)  # (tokens,)
    mean_logit = tf.reduce_sum(logits, axis=-1) / logits.shape[-1]  # (tokens,)
    expected_logit = (1.0 - label_smoothing) * label_logit + label_smoothing * mean_logit
    log_sum_exp = tf.reduce_logsumexp(logits, axis=-1)  # (tokens,)

    objective = log_sum_exp - expected_logit
    loss = log_sum_exp - label_logit
    loss += tf.where(tf.equal(labels, UNK), UNKNOWN_LOSS, 0.0)
    highest = tf.reduce_max(logits, axis=-1)  # (tokens,)
    correct = (label_logit >= highest) & tf.not_equal(labels, UNK)  # a tie counts
    correct = tf.math.count_nonzero(correct, dtype=tf.float32)
    tokens = tf.cast(tf.size(labels), tf.float32)
    return Sums(tf.reduce_sum(objective), tf.reduce_sum(loss), correct, tokens, {})
