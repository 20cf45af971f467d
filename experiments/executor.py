"""Execute runs as processes on this machine. `cluster.ClusterExecutor` has the same methods."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from training.machine import cores
from training.records import read_json

interrupts = []  # signals that have asked this process to stop
KILLED = (
    "\nkilled, probably because memory ran out: execute fewer runs at a time, on fewer cores "
    "(taskset -c 0 python …) or with fewer threads of a Dask worker\n"
)
patience = 0  # number of further signals to ignore
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1  # of Linux' prctl


def interrupt(number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt, as a signal handler, and remember the signal.

    Python ignores an exception in a destructor, such as those of Dask's futures. So loops should
    also look at `interrupts`.
    """
    global patience
    interrupts.append(number)
    patience -= 1
    if patience < 0:
        raise KeyboardInterrupt


@contextlib.contextmanager
def while_saving(count: int) -> Iterator[None]:
    """Ignore one signal, which would end runs that save. count: number of these runs."""
    global patience
    patience = 1
    if count:
        text = f"waiting for {count} run{'s' * (count > 1)} to save"
        tqdm.write(text, file=sys.stderr)  # not glued to the progress bar
    try:
        yield
    finally:
        patience = 0


class LocalExecutor:
    """Execute `python -m experiments.worker JOB.json` for each job, on a core of its own."""

    def __init__(self):
        self.free, self.queue, self.running = cores(), [], {}

    def poll(self) -> list[Path]:
        """Return the jobs that have ended since the last call, and start queued ones."""
        ended = [job for job, (_, process) in self.running.items() if process.poll() is not None]
        for job in ended:
            core, process = self.running.pop(job)
            self.free.append(core)
            log_if_killed(job, process.returncode)
        while self.queue and self.free:
            job, core = self.queue.pop(0), self.free.pop(0)
            self.running[job] = core, start(job, core)
        return ended

    def stop(self) -> None:
        """Empty the queue. Let the jobs that are running save, and wait until they end."""
        stopped, self.queue, self.running = self.running.values(), [], {}
        with while_saving(len(stopped)):
            for _, process in stopped:
                process.terminate()
            for core, process in stopped:
                process.wait()
                self.free.append(core)


def log_if_killed(job: Path, status: int) -> None:
    """Append the probable cause to the log of a run if its exit status says that it was killed."""
    if status == -signal.SIGKILL:
        with open(read_json(job)["log"], "a", encoding="utf-8") as log:
            log.write(KILLED)


def environment() -> dict[str, str]:
    """Return the environment of a process that imports the modules of its working directory."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}


def start(job: Path, core: int) -> subprocess.Popen:
    """Start a worker on a core. It does not see any GPU, and stops if this process is killed."""
    command, values = [sys.executable, "-m", "experiments.worker", str(job)], read_json(job)
    options = {"cwd": values["source"], "env": environment() | {"CUDA_VISIBLE_DEVICES": "-1"}}
    with open(values["log"], "wb") as log:
        options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        options["preexec_fn"] = lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # In a session of its own, or Ctrl-C would reach it twice and end it unsaved.
        process = subprocess.Popen(command, start_new_session=True, **options)
    os.sched_setaffinity(process.pid, [core])  # before it has threads
    return process
