"""CTranslate2 with the weights of our model, in float32. Does not import TensorFlow."""

import ctranslate2

from benchmarks import sentences
from data import tokenizer
from training.machine import cores


def search(job: dict) -> dict:
    """Time decoding: batches in parallel, one per core, or all cores for one batch."""
    source_tokenizer, target_tokenizer = tokenizer.load_pair(job["exported"], job["lowercase"])
    threads, parallel = len(cores()), job["parallel_batches"]
    translator = ctranslate2.Translator(
        job["exported"],
        compute_type="float32",
        inter_threads=threads if parallel else 1,
        intra_threads=1 if parallel else threads,
    )

    def translate(texts):
        rows = [row[: job["max_length"]] for row in source_tokenizer.encode(texts)]
        results = translator.translate_batch(
            [source_tokenizer.tokens(row) for row in rows],
            max_batch_size=job["batch"],
            beam_size=job["search"].get("beam", 1),
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=2 * (max(map(len, rows)) + 1) + 20,
        )
        return [target_tokenizer.processor.decode(result.hypotheses[0]) for result in results]

    return sentences.time_decoding(job, translate)
