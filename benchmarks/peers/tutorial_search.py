"""The tutorial's decoding: one sentence at a time, without a cache."""

import numpy as np
import tensorflow as tf

from benchmarks import sentences
from data import tokenizer
from evaluation import translator
from model import IDS
from model.decoding import output_limit
from model.masks import look_ahead_mask, padding_mask
from training.records import load_config

if __name__ == "__main__":
    job = sentences.load_job()
    ours = translator.load(job["run"], load_config(job["run"]))
    model = ours.model

    @tf.function(input_signature=[IDS, IDS])
    def logits(source, prefix):
        mask = padding_mask(source)
        memory = model.encode(source, mask)
        hidden, _ = model.decode(prefix, memory, look_ahead_mask(tf.shape(prefix)[1]), mask)
        return model.logits(hidden[0])[-1]  # of one sentence

    def translate(texts):
        outputs = []
        for text in texts:
            row = ours.source_tokenizer.encode([text])[0][: ours.max_length]
            source = np.int32([[*row, tokenizer.EOS]])
            prefix, limit = [tokenizer.BOS], int(output_limit(source)[0])
            while prefix[-1] != tokenizer.EOS and len(prefix) <= limit:
                prefix.append(int(np.argmax(logits(source, np.int32([prefix])))))
            outputs.append(prefix[1:])
        return ours.target_tokenizer.decode(outputs)

    sentences.time_decoding(job, translate)
