"""What the machine gives, and how to get on with it: cores, locks, and memory.

Running out of memory ends in a sentence that says which knob to turn, whoever notices it: Linux
promises memory that it does not have, and kills without a word when it is used. Under a limit
TensorFlow is refused a tensor that does not fit, and says so; where it, or the system, ends the
process instead, another process speaks for it (but for a container's first process, with which all
others end).
"""

import atexit
import contextlib
import os
import re
import signal
from pathlib import Path

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


def guard(knobs):
    """Begin a small process that says what to do if this one ends without a word.

    To be called before TensorFlow is imported: then there is little of it. knobs: which to turn.
    """
    if not hasattr(os, "fork"):  # Windows
        return
    reading, writing = os.pipe()
    try:
        watched = os.fork()
    except OSError:  # no more processes: it must do without
        return
    if watched:
        os.close(reading)
        atexit.register(say_good_bye, writing)
        return
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these are for the other
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        for held in {0, 1, writing} - {reading}:
            with contextlib.suppress(OSError):
                os.close(held)
        if not os.read(reading, 1):
            text = (
                "error: ended by a signal; where nothing above says why and nobody did it, memory "
                f"ran out: {knobs}\n"
            )
            os.write(2, text.encode())
    finally:
        os._exit(0)


def say_good_bye(writing):
    with contextlib.suppress(OSError):  # nobody is there any more
        os.write(writing, b".")


def limit_memory():
    """Have this process be refused what is not there: beside what it has, what is free now; but not
    less than half of all, as others may end before it does.

    On Linux, on a processor: what a GPU's driver maps is far more than it uses.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU") or not Path("/proc/meminfo").exists():
        return
    import resource

    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a system unlike others
        free, whole = memory()
        most = mapped() + max(free, whole // 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        others = [known for known in (soft, hard) if known != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([most, *others]), hard))


def mapped():
    """Bytes that count against the limit by now."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmData:\s*(\d+)", text)[1])


def memory(root="/"):
    """Bytes that are free, and all there are: of the machine, or of the control groups that this
    process is in, version 1 or 2, where they have fewer. What holds files can be had back.

    root: of the system's own files, for tests.
    """
    numbers = lambda path: {  # noqa: E731
        name: int(count) for name, count in re.findall(r"(\w+):?\s+(\d+)", path.read_text())
    }
    known = numbers(Path(root, "proc/meminfo"))
    free, whole = 1024 * (known["MemAvailable"] + known["SwapFree"]), 1024 * known["MemTotal"]
    groups = Path(root, "proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else []:
        number, kinds, path = line.split(":", 2)
        base, most, used = Path(root, "sys/fs/cgroup"), "memory.max", "memory.current"
        if number != "0":
            if "memory" not in kinds.split(","):
                continue
            base, most, used = base / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if (folder / most).exists() and (folder / most).read_text().strip() != "max":
                kept = numbers(folder / "memory.stat")
                held = kept.get("active_file", 0) + kept.get("inactive_file", 0)
                own = int((folder / most).read_text())
                whole = min(whole, own)
                free = min(free, own - int((folder / used).read_text()) + held)
            if folder == base:
                break
    return max(free, 0), whole


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
