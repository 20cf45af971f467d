"""evaluate.py's own search."""

from pathlib import Path

import config
import machine
from benchmarks import sentences
from evaluation import inference
from evaluation.search import Search

if __name__ == "__main__":
    job = sentences.the_job()
    inference.share_cores(len(machine.cores()))
    search = Search(**job["search"])
    model = inference.load(Path(job["run"]), config.read(job["run"]), search=search)
    sentences.time_decoding(job, lambda texts: model.translate(texts, 1 << 20, job["batch"]))
