"""Devices, cores, signals and out-of-memory errors."""

import contextlib
import ctypes
import dataclasses
import os
import re
import signal
import sys

from config import Config
from utils import exit_at_ctrl_c, first_line, print_line

# TensorFlow's graph optimizers that are switched off on a CPU. Without them, the step and the
# searches are as fast as with them, and the first call of a graph takes 7 to 30 % less time.
DISABLED_OPTIMIZERS = (
    "constant_folding",
    "dependency_optimization",
    "implementation_selector",
    "layout_optimizer",
    "loop_optimization",
    "remapping",
    "shape_optimization",
)


def import_tensorflow() -> None:
    """Import TensorFlow with the settings of a program.

    On a CPU, it is without DISABLED_OPTIMIZERS. Ctrl-C meanwhile ends the process at once. Keras 3,
    which takes a quarter of the import's time, is imported when `tf.keras` is first used:
    TensorFlow looks for Keras 2 instead, which is usually not installed.
    """
    keep_freed_memory()  # before TensorFlow's threads start
    set_gpu_defaults()
    with exit_at_ctrl_c():
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        load_tensorflow()
        import tensorflow as tf

        del os.environ["TF_USE_LEGACY_KERAS"]
        if not tf.config.list_physical_devices("GPU"):
            tf.config.optimizer.set_experimental_options(dict.fromkeys(DISABLED_OPTIMIZERS, False))


def load_tensorflow() -> None:
    """Import TensorFlow and look for GPUs, without the messages of its C++ code."""
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones.

    By default, glibc returns the memory of a large tensor to Linux. Each page of the next tensor
    then costs a page fault: in all, a tenth of a training step on an AMD EPYC (Zen 3). Other C
    libraries are left as they are.
    """
    with contextlib.suppress(TypeError, AttributeError):  # Windows, and libraries without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # as in malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, -1)  # never
        mallopt(m_arena_max, 1)  # the arenas of threads return their memory all the same


def set_gpu_defaults() -> None:
    """Let several programs use a GPU, in true float32, unless the environment says otherwise.

    By default, TensorFlow reserves all memory of a GPU for one program, and rounds the factors of
    float32 products to the 10 bits of TensorFloat-32: relative errors of 2e-4 instead of 7e-7 for
    a product of 2,048 × 2,048 matrices on an H100. Call it before TensorFlow is imported.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")


def adapt_to_device(config: Config) -> Config:
    """Return the config with `shards` set: by default 2 on a CPU and 1 on a GPU.

    Not the number of cores, because the dropout masks depend on the number of shards.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return dataclasses.replace(config, shards=config.shards or (1 if gpus else 2))


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use: all, if that is unknown."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def set_parallelism(tasks: int, threads: int | None = None) -> None:
    """Divide the cores among `tasks` parallel computations: shards or batches.

    threads: of each; by default, such that all cores are used.

    Call it before the first TensorFlow operation. With one core per shard, no thread waits. If
    every operation used all cores, its threads would have to synchronize after each operation,
    which costs 15 to 20 % of a step.
    """
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(tasks)
    threads = threads or max(1, len(cores()) // tasks)
    tf.config.threading.set_intra_op_parallelism_threads(threads)


class StopSignal:
    """Record Ctrl-C and SIGTERM so that training can save before it exits.

    number: the signal that was received, or 0. A second signal ends the process at once.
    """

    def __init__(self):
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.record)

    def record(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.number = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        print_line("saving and exiting; press Ctrl-C again to quit now")


def out_of_memory_errors() -> tuple[type[Exception], ...]:
    """Return the errors that mean there was not enough memory. oneDNN's is AbortedError.

    Does not import TensorFlow: an error that precedes its import cannot be one of its own.
    """
    if tf := sys.modules.get("tensorflow"):
        return tf.errors.ResourceExhaustedError, tf.errors.AbortedError, MemoryError
    return (MemoryError,)


def out_of_memory_message(error: Exception, hint: str) -> str:
    """Describe one of the `out_of_memory_errors`. hint: which settings need less memory."""
    if re.search("No space left|quota exceeded", str(error), re.IGNORECASE):
        return f"{first_line(error)}: free some disk space"
    return f"out of memory: {hint}"
