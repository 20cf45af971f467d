"""Teacher forcing and the loss over the real target tokens."""

import tensorflow as tf

from model import kernels
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
    target_mask, source_mask = masks(source, target_in)
    memory = model.encode(source, source_mask, seed)
    hidden, _ = model.decode(target_in, memory, target_mask, source_mask, seed)
    real = tf.where(target_out != PAD)  # (tokens, 2)
    return model.logits(tf.gather_nd(hidden, real)), tf.gather_nd(target_out, real)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Cross-entropy of each token, in nats: (tokens, vocab_size), (tokens,) → (tokens,).

    With label smoothing ε, the target distribution is 1 − ε on the label plus ε / vocab_size on
    every token, the label included: Vaswani et al. 2017, section 5.4, and Szegedy et al. 2016,
    section 7.
    """
    vocab_size = logits.shape[-1]
    share = label_smoothing / vocab_size
    target = tf.one_hot(labels, vocab_size, 1.0 - label_smoothing + share, share)
    return -tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=-1)


def loss_sums(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return sums over the tokens: the objective, the loss and the number of correct predictions.

    The objective, which is minimized, is the cross-entropy with label smoothing, in nats. The loss,
    which is reported, is the cross-entropy without it. To minimize something else and report the
    same loss, change the line of the objective: an edit of `cross_entropy` changes both. Sums of
    several batches give the mean over all their tokens; means would not.

    logits (tokens, vocab_size), labels (tokens,).
    """
    fast_cross_entropy = kernels.fastest(cross_entropy, kernels.cross_entropy)
    objective = tf.reduce_sum(fast_cross_entropy(logits, labels, label_smoothing))
    loss = tf.reduce_sum(fast_cross_entropy(tf.stop_gradient(logits), labels))
    label_logits = tf.gather(logits, labels, batch_dims=1)  # (tokens,)
    # Faster than argmax. A tie counts as correct.
    correct = tf.math.count_nonzero(label_logits >= tf.reduce_max(logits, -1), dtype=tf.float32)
    return objective, loss, correct
