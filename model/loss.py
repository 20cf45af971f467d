"""Teacher forcing, and the loss over the real target tokens alone."""

import tensorflow as tf

from model.masks import PAD, look_ahead_mask, padding_mask


def teacher_forcing(model, source, target, seed=None):
    """Every target token predicted from the true ones before it.

    source (batch, source_len) and target (batch, target_len), ids, 0 = padding. Returns the logits
    (tokens, vocab_size) and labels (tokens,) of the batch's real target tokens, one after another:
    no logit is computed where there is only padding.
    """
    target_in, target_out = target[:, :-1], target[:, 1:]  # (batch, target_len − 1)
    length = tf.shape(target_in)[1]
    source_mask = padding_mask(source)
    target_mask = look_ahead_mask(length, length) & padding_mask(target_in)

    memory = model.encode(source, source_mask, seed)
    hidden, _ = model.decode(target_in, memory, target_mask, source_mask, seed)
    real = tf.where(target_out != PAD)  # (tokens, 2)
    return model.logits(tf.gather_nd(hidden, real)), tf.gather_nd(target_out, real)


def cross_entropy(logits, labels, label_smoothing=0.0):
    """Each token's cross-entropy, nats: (tokens, vocab_size), (tokens,) → (tokens,).

    With smoothing (section 5.4, Szegedy et al. 2016) the label has 1 − ε of the probability, and ε
    is shared by the whole vocabulary.
    """
    vocab_size = logits.shape[-1]
    share = label_smoothing / vocab_size
    labels = tf.one_hot(labels, vocab_size, on_value=1.0 - label_smoothing + share, off_value=share)
    return tf.nn.softmax_cross_entropy_with_logits(labels, logits)


def token_totals(logits, labels):
    """Sums over the tokens → (3,): cross-entropy without smoothing, in nats; right guesses; tokens.

    Sums, so that batches of any size add up to the true mean of an epoch.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    label_logits = tf.gather(logits, labels, batch_dims=1)  # (tokens,)
    # Much quicker than argmax; a tie counts as right.
    right = label_logits >= tf.reduce_max(logits, axis=-1)
    return tf.stack([
        tf.reduce_sum(losses),
        tf.math.count_nonzero(right, dtype=tf.float32),
        tf.cast(tf.size(labels), tf.float32),
    ])  # fmt: skip
