"""Cores, file locks and out-of-memory errors."""

import os
import re

from config import first_line


def cores():
    """The cores that this process may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count()))


def lock(path):
    """Keep other processes out of what a lock file stands for → the file, which keeps them out
    until it is closed. Raises BlockingIOError where another one was quicker.
    """
    file = open(path, "w")
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def set_parallelism(tasks):
    """Divide the cores among `tasks` parallel computations: shards or batches.

    Call it before the first TensorFlow operation. A shard that has a core to itself never waits;
    if every operation is divided among all cores, they wait for each other at its end (15 to 20 %
    of a step's time).
    """
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(tasks)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(cores()) // tasks))


def out_of_memory_errors():
    """The errors that say that there is not enough. oneDNN's is an aborted operation."""
    import tensorflow as tf

    return tf.errors.ResourceExhaustedError, tf.errors.AbortedError, MemoryError


def advice(error, knobs):
    """A sentence about one of the `out_of_memory_errors`. knobs: which to turn for memory."""
    if "No space left" in str(error):
        return f"{first_line(error)}: make room"
    found = re.search(r"tensor with shape\s*(\[[\d,]+\])", str(error))
    at = f" at a tensor of {found[1]}" if found else ""
    return f"out of memory{at}: {knobs}"
