"""Execute runs, each in a process of its own: on this machine, or on the workers of Dask."""

import concurrent.futures
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from ablation.experiments import ExperimentError
from ablation.worker import REFUSED
from training.machine import cores
from utils import warn

LINE = "{percentage:3.0f} % [{elapsed}<{remaining}] {n}/{total} runs"
KILLED = (
    "killed, probably because memory ran out: execute fewer runs at a time, on fewer cores "
    "(taskset -c 0 python …) or with fewer threads of a Dask worker"
)


def environment() -> dict[str, str]:
    """Return the environment of a process without GPU that imports from its working directory."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    return own | {"CUDA_VISIBLE_DEVICES": "-1"}


def execute(job: dict, stop: threading.Event | str) -> dict:
    """Execute `python -m ablation.worker JOB` in the job's copy of the source.

    Returns its exit status, the end of its output if it failed, and its result as a text. stop: an
    event, or the name of one of Dask, after which the run saves and ends. It also ends if this
    process does, because its standard input is then closed. Dask sends the code of this function
    to its workers, so it uses nothing but the standard library, this module and Dask.
    """
    worker = "this machine"
    if isinstance(stop, str):
        from distributed import Event, get_client, get_worker

        stop, worker = Event(stop, client=get_client()), get_worker().address
    if not os.path.isdir(job["source"]):
        why = f"{job['source']} does not exist there: share the checkout"
        return {"status": REFUSED, "worker": worker, "why": why}
    if stop.is_set():
        return {"status": 128 + signal.SIGTERM, "worker": worker, "why": "stopped"}
    with open(job["log"], "wb") as log:
        options = {"cwd": job["source"], "env": environment(), "stdin": subprocess.PIPE}
        # In a session of its own, or Ctrl-C would reach it as well and end it unsaved.
        options |= {"stdout": log, "stderr": log, "start_new_session": True}
        command = [sys.executable, "-m", "ablation.worker", job["job"]]
        process = subprocess.Popen(command, **options)

    def end_run() -> None:
        try:
            while process.poll() is None and not stop.wait(30):
                pass
        finally:  # also if Dask's scheduler is lost
            process.stdin.close()

    threading.Thread(target=end_run, daemon=True).start()
    status, result = process.wait(), None
    with open(job["log"], encoding="utf-8", errors="replace") as log:
        why = "\n".join(log.read().strip().splitlines()[-8:]) or "no message"
    with contextlib.suppress(FileNotFoundError), open(job["result"], encoding="utf-8") as file:
        result = file.read()
    why = KILLED if status == -signal.SIGKILL else why
    return {"status": status, "worker": worker, "why": why, "result": result}


class Pool:
    """Executes jobs: one per core of this machine, or one per thread of the workers of Dask.

    address: of Dask's scheduler, or None.
    """

    def __init__(self, address: str | None = None):
        self.address, self.stop, self.left_out = address, threading.Event(), set()
        self.execute = execute
        self.client = connect(address) if address else None
        if self.client:
            self.stop = f"ablation-{uuid.uuid4()}"
            self.execute = lambda *words: execute(*words)  # is sent as code, not as a name
            self.executor = self.client.get_executor(pure=False)
        else:
            self.executor = concurrent.futures.ThreadPoolExecutor(len(cores()))

    def machine(self, probe: dict) -> dict[str, str]:
        """Return the name of a processor, and a hash that identifies its arithmetic.

        probe: the job that computes them. Raises ExperimentError.
        """
        ((_, answer),) = self.run([probe], silent=True)
        if answer["status"]:
            raise ExperimentError(f"{answer['worker']} cannot run the code: {answer['why']}")
        return json.loads(answer["result"])

    def run(self, jobs: list[dict], silent: bool = False) -> Iterator[tuple[dict, dict]]:
        """Execute jobs, and yield each with what `execute` returns. A progress bar shows the time.

        A Dask worker that refuses a job is named and left out. If the caller ends this iterator, or
        at a signal, the runs save and end. Raises ExperimentError if Dask is lost.
        """
        options = {"total": len(jobs), "mininterval": 1 if sys.stderr.isatty() else 60}
        options |= {"miniters": 0, "smoothing": 0, "dynamic_ncols": True}
        options["disable"] = silent or not jobs
        futures = {}
        try:
            futures |= {self.submit(job): job for job in jobs}
            with tqdm(bar_format=LINE, **options) as bar:
                while futures:
                    done, _ = concurrent.futures.wait(futures, 1, "FIRST_COMPLETED")
                    bar.update(0)
                    for future in done:
                        job, answer = futures.pop(future), self.answer(future)
                        if answer["status"] == REFUSED and self.client:
                            self.left_out.add(answer["worker"])
                            warn(f"{answer['worker']} is left out: {answer['why']}")
                            futures[self.submit(job)] = job
                            continue
                        bar.update()
                        yield job, answer
        finally:
            self.close({*futures})

    def submit(self, job: dict) -> concurrent.futures.Future:
        """Submit a job to any worker that is not left out. Raises ExperimentError."""
        where = {}
        if self.left_out:
            where["workers"] = [x for x in self.client.nthreads() if x not in self.left_out]
            if not where["workers"]:
                raise ExperimentError(f"no Dask worker at {self.address} can be used: see above")
        return self.executor.submit(self.execute, job, self.stop, **where)

    def answer(self, future: concurrent.futures.Future) -> dict:
        """Return the result of a future. Raises ExperimentError if Dask has lost it."""
        try:
            return future.result()
        except Exception as error:
            if not self.client:
                raise
            why = f"Dask at {self.address} has lost a run ({type(error).__name__})"
            raise ExperimentError(f"{why}: finished runs are kept; repeat the command") from None

    def close(self, left: set[concurrent.futures.Future]) -> None:
        """Stop unfinished runs, and wait until they have saved. Signals are ignored meanwhile."""
        if not left:
            return
        tqdm.write(f"waiting for runs to save; {len(left)} have not ended", file=sys.stderr)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
        with contextlib.suppress(Exception):  # without Dask's scheduler, they end by themselves
            if self.client:
                from distributed import Event

                Event(self.stop, client=self.client).set()
            else:
                self.stop.set()
            concurrent.futures.wait(left, 120)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def connect(address: str) -> Any:
    """Return a client of a Dask scheduler. Raises ExperimentError if it does not answer."""
    try:
        import cloudpickle
        from distributed import Client
    except ImportError:
        raise ExperimentError('--cluster needs Dask: pip install -e ".[cluster]"') from None
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for name in ("distributed", "distributed.client"):  # each has a handler of its own
        logging.getLogger(name).handlers = [logging.NullHandler()]
    try:
        client = Client(address, timeout=5)
    except (OSError, ValueError):
        hint = "start one with `dask scheduler`, or correct the address"
        raise ExperimentError(f"no Dask scheduler answers at {address}: {hint}") from None
    print(f"waiting for Dask workers at {address}", file=sys.stderr, flush=True)
    client.wait_for_workers(1)
    return client
