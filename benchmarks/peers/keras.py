"""The Keras twin of our model, trained with `fit`."""

import time

import keras

from benchmarks import keras_twin, sentences
from config import Config


def train(job: dict) -> dict:
    """Time the second epoch of two, in random batches of 64."""
    # As the tutorial: three embedding tables, no label smoothing.
    config = Config(**job["config"] | {"tie_embeddings": False, "label_smoothing": 0.0})
    pairs, batches = job["pairs"], sentences.shuffled(job["batches"], 64)
    data = keras_twin.dataset(pairs, batches, job["vocab_size"], config).cache()
    model = keras_twin.build(config, job["vocab_size"], job["vocab_size"])
    keras_twin.compile_twin(model, config, measure_loss=False)
    ends = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.time())
    )
    model.fit(data, verbose=0, callbacks=[record])
    start = time.perf_counter()
    model.fit(data, verbose=0)
    seconds = time.perf_counter() - start
    return sentences.training_speed(job, [pairs.batch(b) for b in batches], ends[0], seconds)
