"""The train step of train.py, on its own batches."""

from collections.abc import Callable

from training.machine import adapt_to_device, import_tensorflow, set_parallelism

import_tensorflow()  # as train.py does

import tensorflow as tf

from benchmarks import sentences
from config import Config
from model import build
from model.optimizer import Adam
from train import make_train_step


def model_and_step(config: Config, vocab_size: int) -> tuple[tf.Module, Callable]:
    """Return a model and its train step. Call it before any other operation of TensorFlow."""
    config = adapt_to_device(config)
    tf.config.experimental.enable_op_determinism()
    set_parallelism(config.shards)
    model = build(config, vocab_size, vocab_size)
    return model, make_train_step(model, Adam(model.trainable_variables), config)


def main() -> None:
    job = sentences.load_job()
    pairs, batches = sentences.read(job["sentences"])
    _, train_step = model_and_step(Config(**job["config"]), job["vocab_size"])
    padded = [pairs.batch(indices) for indices in batches]
    sentences.time_training(job, lambda *ids: float(train_step(*ids)["objective"]), padded)


if __name__ == "__main__":
    main()
