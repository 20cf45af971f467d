"""Sentences, a table of sinusoids and the timing that all contestants share."""

import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data.arrays import Pairs
from data.batches import plan_batches

Batch = tuple[np.ndarray, np.ndarray]  # padded source and target ids


def sample(pairs: Pairs, batch_tokens: int, tokens: int) -> list[np.ndarray]:
    """Return random batches of similar lengths, as index arrays: `tokens` real tokens in all."""
    batches, count, sizes = [], 0, pairs.source.lengths + pairs.target.lengths - 1
    for indices in plan_batches(pairs, batch_tokens, 1024, seed=0):
        if count >= tokens:
            break
        batches.append(indices)
        count += sizes[indices].sum()
    return batches


def shuffled(batches: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Return the same sentences in random batches of `size`."""
    indices = np.random.default_rng(0).permutation(np.concatenate(batches))
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """Return sinusoidal positional encodings, (length, d_model): section 3.5."""
    column = np.arange(d_model)
    angle = np.arange(length)[:, None] / 10000 ** (column // 2 * 2 / d_model)
    return np.where(column % 2, np.cos(angle), np.sin(angle))


def peak_mb() -> float:
    """Return the peak memory of this process.

    `ru_maxrss` is at least that of the parent process when it started this one, so it is used only
    where /proc does not exist.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def training_speed(
    job: dict, batches: Sequence[Batch], first_step: float, seconds: float
) -> dict[str, float]:
    """Return the measurements of a timed pass over the batches.

    first_step: the time at the end of the first step; seconds: the duration of the pass.
    """
    arrays = [ids for source, target in batches for ids in (source, target[:, 1:])]
    real, positions = sum(map(np.count_nonzero, arrays)), sum(ids.size for ids in arrays)
    return {
        "tokens_per_second": real / seconds,
        "step_ms": 1000 * seconds / len(batches),
        "tokens_per_step": real / len(batches),
        "real_share": real / positions,
        "peak_mb": peak_mb(),
        "seconds_to_first_step": first_step - job["launched"],
    }


def time_training(job: dict, step: Callable, batches: Sequence[Batch]) -> dict[str, float]:
    """Time the second of two passes. step: (source, target) → returns when the update is done."""
    step(*batches[0])
    first_step = time.time()
    for batch in batches:
        step(*batch)
    start = time.perf_counter()
    for batch in batches:
        step(*batch)
    return training_speed(job, batches, first_step, time.perf_counter() - start)


def time_decoding(job: dict, translate: Callable[[list[str]], list[str]]) -> dict:
    """Time the second of two passes over the texts, and return the speed and the outputs.

    With a batch size of 1, each text is a call of its own.
    """
    texts = job["texts"]
    calls = [[text] for text in texts] if job["batch"] == 1 else [texts]
    for call in calls:
        translate(call)
    start = time.perf_counter()
    outputs = [line for call in calls for line in translate(call)]
    seconds = time.perf_counter() - start
    return {"sentences_per_second": len(texts) / seconds, "outputs": outputs}
