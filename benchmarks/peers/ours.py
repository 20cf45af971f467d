"""The train step of train.py, on its own batches."""

from training.machine import adapt_to_device, import_tensorflow, set_parallelism

import_tensorflow()  # as train.py does

import tensorflow as tf

from benchmarks import sentences
from config import Config
from model import build
from model.optimizer import Adam
from train import make_train_step

if __name__ == "__main__":
    job = sentences.load_job()
    config = adapt_to_device(Config(**job["config"]))
    tf.config.experimental.enable_op_determinism()
    set_parallelism(config.shards)
    pairs, batches = sentences.read(job["sentences"])
    model = build(config, job["vocab_size"], job["vocab_size"])
    train_step = make_train_step(model, Adam(model.trainable_variables), config)
    padded = [pairs.batch(indices) for indices in batches]
    sentences.time_training(job, lambda *ids: float(train_step(*ids)["objective"]), padded)
