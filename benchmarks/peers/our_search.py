"""The search of evaluate.py and translate.py."""

from benchmarks import sentences
from evaluation import translator
from evaluation.search import Search
from training import machine
from training.records import load_config

if __name__ == "__main__":
    job = sentences.load_job()
    machine.set_parallelism(len(machine.cores()))
    search = Search(**job["search"])
    ours = translator.load(job["run"], load_config(job["run"]), search=search)
    sentences.time_decoding(job, lambda texts: ours.translate(texts, 1 << 20, job["batch"]))
