"""evaluate.py's own search."""

import os
from pathlib import Path

import config
from benchmarks import sentences
from evaluation import inference
from evaluation.search import Search

if __name__ == "__main__":
    job = sentences.the_job()
    inference.side_by_side(os.cpu_count())
    search = Search(beam=job["beam"], length_penalty=0.0)
    model = inference.load(Path(job["run"]), config.read(job["run"]), search=search)
    sentences.time_decoding(job, lambda texts: model.translate(texts, 1 << 20, job["batch"]))
