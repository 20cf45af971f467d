"""BLEU in the course of training: the tutorial's loop on Keras 3, with its warm-up."""

import itertools

import numpy as np
import tensorflow as tf

from benchmarks import sentences
from benchmarks.peers.keras_loop import model_and_step
from config import Config
from data import pipeline, tokenizer

IDS = tf.TensorSpec((None, None), tf.int32)
TUTORIAL = {"warmup_steps": 4000}

if __name__ == "__main__":
    job = sentences.load_job()
    config = Config(**job["config"])
    data = pipeline.load(config)
    vocab_size = data.target_tokenizer.vocab_size  # the same as that of the source
    model, train_step = model_and_step(job["config"] | TUTORIAL, vocab_size)

    @tf.function(input_signature=[IDS, IDS])
    def next_token(source, prefix):
        return tf.argmax(model((source, prefix))[:, -1], axis=-1, output_type=tf.int32)

    def translate(texts):
        """Translate batches of 64 greedily: the tutorial's loop, for several sentences at once."""
        rows = data.source_tokenizer.encode(texts)
        outputs = []
        for start in range(0, len(rows), 64):
            chunk = [[*row[: config.max_length], tokenizer.EOS] for row in rows[start : start + 64]]
            source = tf.ragged.constant(chunk, dtype=tf.int32).to_tensor()
            prefix = tf.fill((len(chunk), 1), tokenizer.BOS)
            limit = 2 * source.shape[1] + 20
            while prefix.shape[1] <= limit and not np.all(np.any(prefix == tokenizer.EOS, axis=1)):
                prefix = tf.concat([prefix, next_token(source, prefix)[:, None]], axis=1)
            outputs += [row[1:].tolist() for row in prefix.numpy()]
        return data.target_tokenizer.decode(outputs)  # each up to its first eos

    everything = [np.arange(len(data.train.source.lengths))]
    epochs = (
        map(data.train.batch, sentences.shuffled(everything, 64, seed=epoch))
        for epoch in itertools.count()
    )
    sentences.time_curve(job, lambda *ids: float(train_step(*ids)), epochs, translate)
