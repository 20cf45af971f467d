"""The sentences that all contestants get, as a file, and how they are timed on them."""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from data.batches import Pairs, Rows, plan


def write(path, pairs, batch_tokens, tokens, seed=0):
    """Batches of like length, drawn from a whole corpus until they have so many real tokens."""
    batches, count, sizes = [], 0, pairs.source.lengths + pairs.target.lengths - 1
    for indices in plan(pairs, batch_tokens, 1024, seed):
        if count >= tokens:
            break
        batches.append(indices)
        count += sizes[indices].sum()
    rows = Rows.of([batch.tolist() for batch in batches])
    np.savez(path, source_ids=pairs.source.ids, source_offsets=pairs.source.offsets,
             target_ids=pairs.target.ids, target_offsets=pairs.target.offsets,
             batch_ids=rows.ids, batch_offsets=rows.offsets)  # fmt: skip


def read(path):
    """Pairs, and the batches as index arrays."""
    with np.load(path) as kept:
        rows = [Rows(kept[f"{x}_ids"], kept[f"{x}_offsets"]) for x in ("source", "target", "batch")]
    offsets = rows[2].offsets
    batches = [rows[2].ids[i:j] for i, j in zip(offsets[:-1], offsets[1:], strict=True)]
    return Pairs(*rows[:2]), batches


def shuffled(batches, size, seed=0):
    """The same sentences in batches of `size`, at random."""
    together = np.random.default_rng(seed).permutation(np.concatenate(batches))
    return [together[i : i + size] for i in range(0, len(together), size)]


def the_job():
    """The job that the harness gave this process, a dict."""
    return json.loads(Path(sys.argv[1]).read_text())


def counted(padded):
    """Real tokens and positions of padded batches, source and target_out."""
    real = sum(
        np.count_nonzero(source) + np.count_nonzero(target[:, 1:]) for source, target in padded
    )
    return real, sum(source.size + target[:, 1:].size for source, target in padded)


def outcome(job, padded, first, seconds):
    """What the harness wants to know of a timed pass; prints it.

    first: the time of the first step's end; seconds: what the pass took.
    """
    real, positions = counted(padded)
    measures = {
        "tokens_per_second": real / seconds,
        "step_ms": 1000 * seconds / len(padded),
        "tokens_a_step": real / len(padded),
        "real_share": real / positions,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds_to_first_step": first - job["launched"],
    }
    print(json.dumps({name: float(value) for name, value in measures.items()}))


def time_training(job, step, padded):
    """Two passes, the second timed. step: source, target → nothing, when the update is done."""
    step(*padded[0])
    first = time.time()
    for batch in padded:
        step(*batch)
    began = time.perf_counter()
    for batch in padded:
        step(*batch)
    outcome(job, padded, first, time.perf_counter() - began)


def time_decoding(job, translate):
    """Two passes over the texts, the second timed; print the outcome for the harness.

    translate: texts → texts. A batch of 1 is one call for each text.
    """
    texts = Path(job["texts"]).read_text("utf-8").split("\n")
    calls = [[text] for text in texts] if job["batch"] == 1 else [texts]
    for call in calls:
        translate(call)
    began = time.perf_counter()
    outputs = [line for call in calls for line in translate(call)]
    seconds = time.perf_counter() - began
    print(json.dumps({"sentences_per_second": len(texts) / seconds, "outputs": outputs}))
