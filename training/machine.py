"""Devices, cores, signals and out-of-memory errors."""

import contextlib
import ctypes
import dataclasses
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from config import Config
from utils import first_line, warn

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
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def import_tensorflow() -> None:
    """Import TensorFlow without its messages and, on a CPU, without DISABLED_OPTIMIZERS.

    The messages are shown only if the import fails or if CUDA_VISIBLE_DEVICES names a GPU that is
    not found. Meanwhile, a terminal shows "loading TensorFlow". Ctrl-C ends the process at once: an
    exception within the import would show its traceback. Keras is imported when `tf.keras` is first
    used.
    """
    keep_freed_memory()  # before TensorFlow's threads start
    set_gpu_defaults()
    if os.path.expanduser("~") == "~":  # no home: Keras would create a directory with this name
        os.environ.setdefault("KERAS_HOME", os.path.join(os.devnull, "keras"))
    if sys.stderr.isatty():
        print("loading TensorFlow", end="\r", file=sys.stderr)
    handler = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)  # the lines are written by C++ code
        show_messages = True
        try:
            with without_keras():
                import tensorflow as tf

            devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            gpus = tf.config.list_physical_devices("GPU")  # prints lines, too
            show_messages = devices not in ("", "-1") and not gpus
            if not gpus:
                options = dict.fromkeys(DISABLED_OPTIMIZERS, False)
                tf.config.optimizer.set_experimental_options(options)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            if sys.stderr.isatty():
                print("\033[K", end="", file=sys.stderr, flush=True)  # erases the line
            if show_messages:
                lines.seek(0)
                sys.stderr.write(lines.read().decode("utf-8", "replace"))
            signal.signal(signal.SIGINT, handler)


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


@contextlib.contextmanager
def without_keras() -> Iterator[None]:
    """Import TensorFlow, in a `with` statement, without Keras 3, a quarter of its import time.

    TensorFlow imports Keras only to register its optimizers, and continues if Keras is missing.
    TF_USE_LEGACY_KERAS selects Keras 2, a separate package that is usually not installed.
    """
    before = os.environ.get("TF_USE_LEGACY_KERAS")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        yield
    finally:
        del os.environ["TF_USE_LEGACY_KERAS"]
        if before is not None:
            os.environ["TF_USE_LEGACY_KERAS"] = before


def adapt_to_device(config: Config) -> Config:
    """Return the config with `shards` set: by default 2 on a CPU and 1 on a GPU.

    Not the number of cores, because the dropout masks depend on the number of shards. Warns if
    products in bfloat16 are not faster than in float32, or if TensorFlow does not find the GPU.
    """
    import tensorflow as tf

    gpu = bool(tf.config.list_physical_devices("GPU"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not gpu and not hidden and NVIDIA_DRIVER.exists():
        warn('TensorFlow does not find the GPU and uses the CPU: pip install -e ".[cuda]"')
    if config.precision == "bfloat16" and not gpu and not has_bfloat16():
        warn(
            "this processor has no bfloat16 instructions, so --precision bfloat16 is not faster: "
            "use --precision float32"
        )
    return dataclasses.replace(config, shards=config.shards or (1 if gpu else 2))


def cpu_info(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return what Linux reports about the first processor, by field; {} if that is unknown."""
    try:
        lines = path.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields}


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the processor multiplies in bfloat16. True if that is unknown."""
    info = cpu_info(cpuinfo)
    flags = info.get("flags", info.get("Features"))  # the latter on Arm
    return flags is None or not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())


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
        print("saving and exiting; press Ctrl-C again to quit now", file=sys.stderr)


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
    shape = re.search(r"tensor with shape\s*(\[[\d,]+\])", str(error))
    return (
        f"out of memory{f' while allocating a tensor of shape {shape[1]}' if shape else ''}: {hint}"
    )
