"""CTranslate2 with our weights, float32."""

import os
import sys

try:
    import ctranslate2
except ImportError:
    sys.exit(3)
from benchmarks import sentences
from data import tokenizer

if __name__ == "__main__":
    job = sentences.the_job()
    source_tokenizer, target_tokenizer = tokenizer.load_pair(job["exported"])
    cores, apart = os.cpu_count(), job["batches_side_by_side"]
    translator = ctranslate2.Translator(
        job["exported"], compute_type="float32", inter_threads=cores if apart else 1,
        intra_threads=1 if apart else cores,
    )  # fmt: skip

    def translate(texts):
        rows = [row[: job["max_length"]] for row in source_tokenizer.encode(texts)]
        pieces = [source_tokenizer.tokens(row) for row in rows]
        found = translator.translate_batch(
            pieces, max_batch_size=job["batch"], beam_size=job["search"].get("beam", 1),
            length_penalty=0, min_decoding_length=0,
            max_decoding_length=2 * (max(map(len, rows)) + 1) + 20,
        )  # fmt: skip
        return [target_tokenizer.pieces.decode(result.hypotheses[0]) for result in found]

    sentences.time_decoding(job, translate)
