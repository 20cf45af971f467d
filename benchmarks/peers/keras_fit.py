"""The Keras twin under `fit`, in batches of 64."""

import time

import keras

from benchmarks import keras_twin, sentences
from config import Config

if __name__ == "__main__":
    job = sentences.load_job()
    # As the tutorial: three embedding tables, no label smoothing.
    config = Config(**job["config"] | {"tie_embeddings": False, "label_smoothing": 0.0})
    pairs, batches = sentences.read(job["sentences"])
    batches = sentences.shuffled(batches, 64)
    data = keras_twin.dataset(pairs, batches, job["vocab_size"], config).cache()
    model = keras_twin.build(config, job["vocab_size"], job["vocab_size"])
    keras_twin.compile_twin(model, config, measure_loss=False)
    times = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.time())
    )
    model.fit(data, verbose=0, callbacks=[record])
    start = time.perf_counter()
    model.fit(data, verbose=0)
    seconds = time.perf_counter() - start
    sentences.report_training(job, [pairs.batch(b) for b in batches], times[0], seconds)
