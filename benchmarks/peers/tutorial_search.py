"""The tutorial's loop: one sentence, the source and the whole prefix again for each token."""

from pathlib import Path

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
    job = sentences.the_job()
    ours = translator.load(Path(job["run"]), load_config(job["run"]))
    model = ours.model
    source_tokenizer, target_tokenizer = ours.tokenizers

    @tf.function(input_signature=[IDS, IDS])
    def logits(source, prefix):
        mask, length = padding_mask(source), tf.shape(prefix)[1]
        memory = model.encode(source, mask)
        hidden, _ = model.decode(prefix, memory, look_ahead_mask(length, length), mask)
        return model.logits(hidden)[:, -1]

    def translate(texts):
        outputs = []
        for text in texts:
            row = source_tokenizer.encode([text])[0][: ours.max_length]
            source = np.int32([[*row, tokenizer.EOS]])
            prefix, limit = [tokenizer.BOS], int(output_limit(source)[0])
            while prefix[-1] != tokenizer.EOS and len(prefix) <= limit:
                prefix.append(int(np.argmax(logits(source, np.int32([prefix]))[0])))
            outputs.append(prefix[1:])
        return target_tokenizer.decode(outputs)

    sentences.time_decoding(job, translate)
