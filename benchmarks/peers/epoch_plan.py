"""Time of planning the batches of an epoch, and the memory that this takes."""

import json
import time

from benchmarks import sentences
from config import Config
from data import pipeline
from data.batches import plan


def peak_mb() -> float:
    """Return the peak memory of this process, mapped files included."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    job = sentences.load_job()
    config = Config(corpus=job["corpus"], cache_dir=job["cache"])
    train = pipeline.load(config).train
    before, start = peak_mb(), time.perf_counter()
    batches = plan(train, config.batch_tokens, config.batch_sentences, config.seed)
    seconds = time.perf_counter() - start
    measured = {"plan_seconds": seconds, "plan_mb": peak_mb() - before, "batches": len(batches)}
    print(json.dumps(measured))
