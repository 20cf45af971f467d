"""Teacher forcing and the loss over the real target tokens."""

from typing import NamedTuple

import tensorflow as tf

from model.layers import Seed
from model.masks import PAD, masks


def teacher_forced_logits(
    model: tf.Module, source: tf.Tensor, target: tf.Tensor, seed: Seed | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Predict every target token from the true tokens before it.

    source (batch, source_len) and target (batch, target_len): ids, 0 = padding. Returns the logits
    (tokens, vocab_size) and the labels (tokens,) of the real target tokens only: padding is left
    out before the projection to the vocabulary.
    """
    target_in, target_out = target[:, :-1], target[:, 1:]  # (batch, target_len − 1)
    source_mask, target_mask = masks(source, target_in)
    memory = model.encode(source, source_mask, seed)
    hidden, _ = model.decode(target_in, memory, target_mask, source_mask, seed)
    real = tf.where(target_out != PAD)  # (tokens, 2)
    return model.logits(tf.gather_nd(hidden, real)), tf.gather_nd(target_out, real)


class Sums(NamedTuple):
    """Sums over tokens. Those of several batches add up to those of all their tokens."""

    objective: tf.Tensor  # what is minimized, in nats
    loss: tf.Tensor  # cross-entropy without label smoothing, in nats
    correct: tf.Tensor  # number of correct predictions


def loss_sums(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> Sums:
    """Return the objective, the loss and the number of correct predictions.

    The loss is the cross-entropy of each token, log Σ exp(logits) − the logit of the label. The
    objective is the cross-entropy with label smoothing ε: the target distribution is 1 − ε on the
    label plus ε / vocab_size on every token, the label included (Vaswani et al. 2017, section 5.4,
    and Szegedy et al. 2016, section 7). To minimize something else and report the same loss, edit
    the objective.

    logits (tokens, vocab_size), labels (tokens,).
    """
    # Subtracting a constant from all logits of a token changes neither loss nor objective. With the
    # highest logit at 0, exp cannot overflow.
    logits -= tf.stop_gradient(tf.reduce_max(logits, axis=-1, keepdims=True))
    log_sum_exp = tf.math.log(tf.reduce_sum(tf.exp(logits), axis=-1))  # (tokens,)
    label_logit = tf.gather(logits, labels, batch_dims=1)  # (tokens,)
    mean_logit = tf.reduce_sum(logits, axis=-1) / logits.shape[-1]  # (tokens,)
    expected_logit = (1.0 - label_smoothing) * label_logit + label_smoothing * mean_logit

    objective = log_sum_exp - expected_logit
    loss = log_sum_exp - label_logit
    correct = tf.math.count_nonzero(label_logit >= 0.0, dtype=tf.float32)  # a tie counts
    return Sums(tf.reduce_sum(objective), tf.reduce_sum(loss), correct)
