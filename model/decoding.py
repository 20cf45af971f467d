"""Search for a translation, over `start` and `step` of any model."""

import tensorflow as tf

from model.masks import PAD


def output_limit(source):
    """The most tokens an output may have: twice its own source's and 20 → (batch,), int.

    It hangs on the sentence alone, so that a sentence's output does not hang on its batch.
    """
    return 2 * tf.math.count_nonzero(source != PAD, axis=1, dtype=tf.int32) + 20


def greedy(model, source, bos, eos):
    """The likeliest token at each place, until `eos`: (batch, source_len) → (batch, output_len).

    Rows end in `eos` (unless they reached `output_limit`) and are filled up with padding.
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source)
    batch = tf.shape(source)[0]

    def step(outputs, token, finished, state):
        logits, state = model.step(token, state)
        token = tf.where(finished, PAD, tf.argmax(logits, axis=-1, output_type=tf.int32))
        outputs = tf.concat([outputs, token[:, tf.newaxis]], axis=1)  # (batch, length + 1)
        finished |= (token == eos) | (tf.shape(outputs)[1] >= limit)
        return outputs, token, finished, state

    start = (tf.zeros((batch, 0), tf.int32), tf.fill([batch], bos), tf.zeros(batch, tf.bool))
    variables = (*start, model.start(source))
    outputs, *_ = tf.while_loop(
        lambda outputs, token, finished, state: ~tf.reduce_all(finished),
        step,
        variables,
        shape_invariants=tf.nest.map_structure(grows, variables),
    )
    return outputs


def grows(tensor):
    """The shape of a loop's tensor of which any axis may grow."""
    return tf.TensorShape([None] * tensor.shape.rank)
