"""Execute runs on the workers of a Dask scheduler: python -m experiments.run --cluster ADDRESS.

A worker runs this file in a copy of the baseline's source, so it needs the shared folder and the
packages, but none of the project's modules. `python -m experiments.cluster` prints what results
depend on there; with the arguments JOB.json and EXPECTED, it executes a run where that is equal.
"""

import contextlib
import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from experiments.executor import log_if_killed, start, while_saving
from experiments.patches import ExperimentError
from experiments.runs import PACKAGES, processor
from training.machine import cores
from training.records import read_json
from utils import first_line, lock, warn, write_json

REPEATS = 5  # of a run that is killed
LOST = OSError, RuntimeError  # what Dask raises without a scheduler; the latter later


class ClusterExecutor:
    """Execute a job per thread of the Dask workers, each on a core of its own.

    folder: a copy of the source. processor: that of most workers. Workers with another one, with
    other packages than this machine or without access to the folder are named and left out.
    """

    def __init__(self, address: str, folder: Path):
        try:
            from distributed import Client, wait
        except ImportError:
            raise ExperimentError('--cluster needs Dask: pip install -e ".[cluster]"') from None
        for name in ("distributed", "distributed.client"):  # each has a handler of its own
            logging.getLogger(name).handlers = [logging.NullHandler()]
        self.address, self.folder, self.queue, self.running = address, str(folder), [], {}
        self.workers, self.free, self.left_out, self.repeats = {}, [], {}, Counter()
        try:
            self.client = Client(address, timeout=5)
        except (OSError, ValueError):
            hint = "start one with `dask scheduler`, or correct the address"
            raise ExperimentError(f"no Dask scheduler answers at {address}: {hint}") from None
        print(f"waiting for Dask workers at {address}", file=sys.stderr, flush=True)
        self.client.wait_for_workers(1)
        checks = [self.call(worker) for worker in self.client.nthreads()]
        with contextlib.suppress(TimeoutError):
            wait(checks, timeout=60)
        here, answers = processor(), [x.result() for x in checks if x.status == "finished"]
        count = Counter({tuple(here.items()): 0.5})  # decides between equal numbers of workers
        seen = [x for x in answers if "unusable" not in x]
        count.update(tuple((name, x[name]) for name in here) for x in seen)
        self.processor = dict(max(count, key=count.get))
        self.expected = json.dumps(identity() | self.processor)

    def call(self, worker: str, *words: str):
        """Run this file on a worker. Returns the future of what it prints."""
        return self.client.submit(program(), self.folder, *words, workers=[worker], pure=False)

    def poll(self) -> list[Path]:
        """Return the jobs that have ended since the last call, and start queued ones.

        A job is repeated if its worker is lost or its process killed. Raises ExperimentError.
        """
        before, ended = self.workers, []
        try:
            self.workers = self.client.nthreads()
        except LOST:
            hint = "finished runs are kept; start it again, and repeat the command to resume"
            raise ExperimentError(f"the Dask scheduler at {self.address} is lost: {hint}") from None
        for worker in self.workers.keys() - before.keys():
            self.free += [worker] * self.workers[worker]
        for job, (worker, future) in list(self.running.items()):
            lost = worker not in self.workers or future.cancelled()
            if lost or future.done():
                del self.running[job]
                self.free.append(worker)
                again = self.must_repeat(job, worker, None if lost else future)
                (self.queue if again else ended).insert(0, job)
        usable = self.workers.keys() - self.left_out.keys()
        if self.left_out and not usable:
            reasons = "; ".join(f"{worker}: {why}" for worker, why in self.left_out.items())
            raise ExperimentError(f"no Dask worker can be used: {reasons}")
        self.free = [worker for worker in self.free if worker in usable]
        while self.queue and self.free:
            job, worker = self.queue.pop(0), self.free.pop(0)
            self.running[job] = worker, self.call(worker, str(job), self.expected)
        return ended

    def must_repeat(self, job: Path, worker: str, future) -> bool:
        """Return whether a job was killed or refused. future: its answer; None if that is lost."""
        error = future and future.exception()
        answer = future.result() if future and not error else {"status": -signal.SIGKILL}
        if why := first_line(error) if error else answer.get("unusable"):
            self.left_out[worker] = why
            warn(f"the Dask worker {worker} is left out: {why}")
            return True
        if answer.get("result"):  # a network file system may show a new file after seconds
            write_json(read_json(job)["result"], answer["result"])
        elif not 0 <= answer["status"] <= 128 and self.repeats[job] < REPEATS:
            self.repeats[job] += 1
            warn(f"{job}: killed, or the Dask worker {worker} lost: repeated ({self.repeats[job]})")
            return True
        else:
            log_if_killed(job, answer["status"])
        return False

    def stop(self) -> None:
        """Empty the queue. Let the jobs that are running save, and wait until they end."""
        stopped, self.queue, self.running = self.running.values(), [], {}
        self.free += [worker for worker, _ in stopped]
        keys = {future.key for _, future in stopped}

        def unfinished(dask_worker) -> bool:
            return not keys.isdisjoint(dask_worker.state.tasks)

        # Without a scheduler, the workers close by themselves.
        with while_saving(len(keys)), contextlib.suppress(*LOST):
            self.client.cancel([future for _, future in stopped])
            while keys and any(self.client.run(unfinished, on_error="ignore").values()):
                time.sleep(0.2)


def program() -> Callable:
    """Return the function that Dask calls. A local one, so that its code is sent, not its name."""

    def call(folder: str, *words: str) -> dict:
        """Run this file, and return what it prints."""
        from distributed import get_worker

        worker = get_worker()
        task = worker.state.tasks[worker.get_current_task()]
        if not os.path.exists(folder):
            return {"unusable": f"{folder} does not exist there: share the checkout"}
        command = [sys.executable, "-m", "experiments.cluster", *words]
        with tempfile.TemporaryFile("w+") as file:
            options = {"cwd": folder, "stdin": subprocess.PIPE, "stdout": file, "stderr": file}
            with subprocess.Popen(command, start_new_session=True, **options) as process:
                while process.poll() is None:
                    # Cancelled, by `stop` or because the client is lost; or the worker is closing.
                    if task.state != "executing" or worker.status.name.startswith("clos"):
                        process.communicate(b"stop")
                    time.sleep(0.2)
            file.seek(0)
            *_, line = ["no message", *file.read().splitlines()]
        return {"unusable": line} if process.returncode else json.loads(line)

    return call


def identity() -> dict[str, str]:
    """Return what results depend on, except the code: the processor and the packages."""
    return processor() | {name: metadata.version(name) for name in PACKAGES}


def execute(job: Path) -> dict:
    """Execute a job on a core that no other run uses. Returns its exit status and its result.

    The run may save and end when standard input has a byte. It is killed when standard input is
    closed: the worker has died, and the run will be repeated elsewhere.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)  # a batch system signals the run, too
    values = read_json(job)
    if Path(values["run"]).exists():  # the process of a lost worker may still save
        lock(Path(values["run"], ".lock"), wait="waiting for another process").close()
    for core in random.sample(cores(), len(cores())):  # containers share cores, but not the locks
        with contextlib.suppress(BlockingIOError):
            _locked = lock(Path(tempfile.gettempdir(), f"experiments-{os.getuid()}-{core}.lock"))
            break
    process = start(job, core)
    while process.poll() is None:
        if select.select([sys.stdin], [], [], 0.2)[0]:
            process.send_signal(signal.SIGTERM if os.read(0, 1) else signal.SIGKILL)
            break
    status, result = process.wait(), Path(values["result"])
    return {"status": status, "result": read_json(result) if result.exists() else None}


def main(job: str = "", expected: str = "{}") -> None:
    here = identity()
    other = json.loads(expected).items() - here.items()
    text = ", ".join(f"{name} is {here[name]} there, not {value}" for name, value in other)
    answer = execute(Path(job)) if job and not text else here
    print(json.dumps({"unusable": text} if text else answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
