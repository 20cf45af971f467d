"""This project: the train step of train.py, and the search of evaluate.py and translate.py."""

from training import machine

machine.import_tensorflow()  # as train.py does

import tensorflow as tf

from benchmarks import sentences
from config import Config
from evaluation import loading
from evaluation.search import Search
from model import build
from train import make_optimizer, make_train_step
from training.records import load_config


def train(job: dict) -> dict:
    """Time training on batches of similar length."""
    config = machine.adapt_to_device(Config(**job["config"]))
    tf.config.experimental.enable_op_determinism()
    machine.set_parallelism(config.shards)
    pairs, batches = job["pairs"], job["batches"]
    model = build(config, job["vocab_size"], job["vocab_size"])
    train_step = make_train_step(model, make_optimizer(model, config), config)
    padded = [pairs.batch(indices) for indices in batches]
    return sentences.time_training(job, lambda *ids: float(train_step(*ids)["objective"]), padded)


def search(job: dict) -> dict:
    """Time decoding with a trained model."""
    machine.set_parallelism(len(machine.cores()))
    ours = loading.load(job["run"], load_config(job["run"]), search=Search(**job["search"]))
    limits = {"batch_tokens": 1 << 20, "batch_sentences": job["batch"]}
    return sentences.time_decoding(job, lambda texts: ours.translate(texts, **limits))
