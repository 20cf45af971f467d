"""What the machine gives, and how to get on with it: cores, locks, and memory.

Running out of memory ends in a sentence that says which knob to turn, whoever notices it: Linux
promises memory that it does not have, and kills without a word when it is used. Under a limit
TensorFlow is refused a tensor that does not fit, and says so; where it, or the system, ends the
process instead, another process speaks for it.
"""

import atexit
import os
import re
import signal
from pathlib import Path


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


def guard(knobs):
    """Begin a small process that says what to do if this one is killed.

    To be called before TensorFlow is imported: then there is little of it. knobs: which to turn.
    """
    if not hasattr(os, "fork"):  # Windows
        return
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        atexit.register(os.write, writing, b".")
        return
    os.setsid()  # Ctrl-C is for the other
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for held in (0, 1, writing):
        os.close(held)
    if not os.read(reading, 1):  # it is gone, and has said no good-bye
        text = f"error: killed; if nobody did it, it ran out of memory: {knobs}\n"
        os.write(2, text.encode())
    os._exit(0)


def limit_memory():
    """Have this process be refused what is not there: beside what it has, what is free now.

    On Linux, on a processor: what a GPU's driver maps is far more than it uses.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU") or not Path("/proc/meminfo").exists():
        return
    import resource

    most = mapped() + available()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    others = [known for known in (soft, hard) if known != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *others]), hard))


def mapped():
    """Bytes that count against the limit by now."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmData:\s*(\d+)", text)[1])


def available():
    """Bytes that can still be used: of the machine, or of the container where it has fewer."""
    known = dict(re.findall(r"(\w+):\s*(\d+) kB", Path("/proc/meminfo").read_text()))
    free = 1024 * (int(known["MemAvailable"]) + int(known["SwapFree"]))
    most, used = (Path("/sys/fs/cgroup", f"memory.{what}") for what in ("max", "current"))
    if most.exists() and most.read_text().strip() != "max":
        free = min(free, int(most.read_text()) - int(used.read_text()))
    return max(free, 0)


def refusals():
    """The errors that say that there is not enough."""
    import tensorflow as tf

    return tf.errors.ResourceExhaustedError, MemoryError


def advice(error, knobs):
    """A sentence about one of the `refusals`. knobs: which to turn."""
    found = re.search(r"tensor with shape\s*(\[[\d,]+\])", str(error))
    at = f" at a tensor of {found[1]}" if found else ""
    return f"out of memory{at}: {knobs}"
