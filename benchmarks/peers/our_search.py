"""evaluate.py's own search."""

from pathlib import Path

from benchmarks import sentences
from evaluation import translator
from evaluation.search import Search
from training import machine
from training.records import load_config

if __name__ == "__main__":
    job = sentences.the_job()
    translator.set_parallelism(len(machine.cores()))
    search = Search(**job["search"])
    model = translator.load(Path(job["run"]), load_config(job["run"]), search=search)
    sentences.time_decoding(job, lambda texts: model.translate(texts, 1 << 20, job["batch"]))
