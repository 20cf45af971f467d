"""The same model from stock Keras layers, under compile and fit: batches of 64."""

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import sentences
from benchmarks.peers.keras_loop import Schedule, positional_encoding

layers = keras.layers


def build(config, vocab_size):
    """A functional model: (source, target_in) → logits."""
    size, rate = config["d_model"], config["dropout_rate"]
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    norm = lambda x: layers.LayerNormalization(epsilon=1e-6)(x)  # noqa: E731
    drop = lambda x: layers.Dropout(rate)(x)  # noqa: E731

    def attend(query, value, mask, causal=False):
        heads = config["num_heads"]
        attention = layers.MultiHeadAttention(heads, size // heads)
        return attention(query, value, attention_mask=mask, use_causal_mask=causal)

    def feed_forward(x):
        return layers.Dense(size)(layers.Dense(config["dff"], activation="relu")(x))

    encodings = tf.constant(positional_encoding(1000, size))

    def embed(ids):
        x = layers.Embedding(vocab_size, size)(ids) * size**0.5
        place = layers.Lambda(lambda x: x + encodings[:, : tf.shape(x)[1]], lambda shape: shape)
        return drop(place(x))

    real = layers.Lambda(lambda ids: (ids != 0)[:, None, :], lambda shape: (shape[0], 1, shape[1]))
    source_mask, target_mask = real(source), real(target)
    x = embed(source)
    for _ in range(config["num_layers"]):
        y = norm(x)
        x = x + drop(attend(y, y, source_mask))
        x = x + drop(feed_forward(norm(x)))
    memory, x = norm(x), embed(target)
    for _ in range(config["num_layers"]):
        y = norm(x)
        x = x + drop(attend(y, y, target_mask, causal=True))
        x = x + drop(attend(norm(x), memory, source_mask))
        x = x + drop(feed_forward(norm(x)))
    return keras.Model((source, target), layers.Dense(vocab_size)(norm(x)))


def main():
    job = sentences.the_job()
    config = job["config"]
    pairs, batches = sentences.read(job["sentences"])
    padded = [pairs.batch(indices) for indices in sentences.shuffled(batches, 64)]
    kind = tf.TensorSpec((None, None), tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: (((s, t[:, :-1]), t[:, 1:], (t[:, 1:] != 0).astype(np.float32)) for s, t in padded),
        output_signature=((kind, kind), kind, tf.TensorSpec((None, None), tf.float32)),
    ).prefetch(tf.data.AUTOTUNE)
    model = build(config, job["vocab_size"])
    schedule = Schedule(config["d_model"], config["warmup_steps"])
    model.compile(
        keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,  # "auto" compiles for each shape anew
    )
    times = []
    after = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.time())
    )
    model.fit(data, verbose=0, callbacks=[after])
    began = time.perf_counter()
    model.fit(data, verbose=0)
    sentences.outcome(job, padded, times[0], time.perf_counter() - began)


if __name__ == "__main__":
    main()
