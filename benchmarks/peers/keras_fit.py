"""The same model from stock Keras layers, under compile and fit: batches of 64."""

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import keras_twin, sentences
from config import Config


def main():
    job = sentences.the_job()
    config = Config(**job["config"] | {"tie_embeddings": False})  # three tables, as the tutorial
    pairs, batches = sentences.read(job["sentences"])
    padded = [pairs.batch(indices) for indices in sentences.shuffled(batches, 64)]
    kind = tf.TensorSpec((None, None), tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: (((s, t[:, :-1]), t[:, 1:], (t[:, 1:] != 0).astype(np.float32)) for s, t in padded),
        output_signature=((kind, kind), kind, tf.TensorSpec((None, None), tf.float32)),
    ).prefetch(tf.data.AUTOTUNE)
    model = keras_twin.build(config, job["vocab_size"], job["vocab_size"])
    model.compile(
        keras.optimizers.Adam(keras_twin.WarmUp(config), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
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
