"""BLEU in the course of training: train.py."""

import itertools

from benchmarks import sentences
from benchmarks.peers.ours import model_and_step
from config import Config
from data import pipeline
from data.batches import plan_batches
from evaluation.translator import Translator
from model.layers import in_float32

if __name__ == "__main__":
    job = sentences.load_job()
    config = Config(**job["config"])
    data = pipeline.load(config)
    tokenizers = data.source_tokenizer, data.target_tokenizer
    model, train_step = model_and_step(config, tokenizers[1].vocab_size)  # of both languages
    limits = config.batch_tokens, config.batch_sentences
    epochs = (
        map(data.train.batch, plan_batches(data.train, *limits, config.seed, epoch))
        for epoch in itertools.count()
    )
    translator = Translator(in_float32(model), *tokenizers, config.max_length)
    sentences.time_curve(
        job, lambda *ids: float(train_step(*ids)["loss"]), epochs, translator.translate
    )
