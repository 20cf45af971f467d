"""BLEU in the course of training: train.py."""

import itertools

from training.machine import adapt_to_device, import_tensorflow, set_parallelism

import_tensorflow()  # as train.py does

import tensorflow as tf

from benchmarks import sentences
from config import Config
from data import pipeline
from data.batches import plan
from evaluation.translator import Translator
from model import build
from model.layers import in_float32
from model.optimizer import Adam
from train import make_train_step

if __name__ == "__main__":
    job = sentences.load_job()
    config = adapt_to_device(Config(**job["config"]))
    tf.config.experimental.enable_op_determinism()
    set_parallelism(config.shards)
    data = pipeline.load(config)
    tokenizers = data.source_tokenizer, data.target_tokenizer
    model = build(config, *(tokenizer.vocab_size for tokenizer in tokenizers))
    train_step = make_train_step(model, Adam(model.trainable_variables), config)
    limits = config.batch_tokens, config.batch_sentences
    epochs = (
        map(data.train.batch, plan(data.train, *limits, config.seed, epoch))
        for epoch in itertools.count()
    )
    translator = Translator(in_float32(model), *tokenizers, config.max_length)
    sentences.time_curve(
        job, lambda *ids: float(train_step(*ids)["loss"]), epochs, translator.translate
    )
