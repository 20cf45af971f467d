"""Execute runs, each in a process of its own: on this machine, or on the workers of Dask."""

import concurrent.futures
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from ablation.experiments import ExperimentError
from training.machine import cores

LINE = "{percentage:3.0f} % [{elapsed}<{remaining}] {n:.1f} of {total} runs"


def execute(job: dict, worker: str = "this machine") -> dict:
    """Execute `python -m ablation.worker JOB` in the job's copy of the source.

    Returns its exit status, the end of its output, and its result as a text. The run saves and ends
    if the file job["running"] is deleted, or if this process ends: its standard input is then
    closed. Dask sends the code of this function to its workers, so it uses nothing but the standard
    library, this module and Dask.
    """
    answer = {"worker": worker, "result": None}
    if not os.path.exists(job["running"]):
        return answer | {"why": "stopped", "status": 128 + signal.SIGTERM}
    # Without a GPU unless the environment names one, and importing from its working directory.
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    options = {"cwd": job["source"], "env": {"CUDA_VISIBLE_DEVICES": "-1"} | variables}
    # In a session of its own, or Ctrl-C would reach it as well and end it unsaved.
    options |= {"stdin": subprocess.PIPE, "start_new_session": True}
    with open(job["log"], "wb") as log:
        command = [sys.executable, "-m", "ablation.worker", job["job"]]
        process = subprocess.Popen(command, stdout=log, stderr=log, **options)
    while process.poll() is None:
        if not os.path.exists(job["running"]):
            process.stdin.close()
        time.sleep(0.2)
    process.stdin.close()
    with open(job["log"], encoding="utf-8", errors="replace") as log:
        why = "\n".join(["", *log.read().strip().splitlines()[-8:]])
    why = why.rpartition("\nerror: ")[2].strip()  # an expected error has one line
    if process.returncode == -signal.SIGKILL:
        why = "killed, probably because memory ran out: use fewer cores (taskset -c 0 python …)"
    with contextlib.suppress(FileNotFoundError), open(job["result"], encoding="utf-8") as file:
        answer["result"] = file.read()
    return answer | {"why": why, "status": process.returncode}


def trained(job: dict, began: float) -> float:
    """Return the share of a run's updates that its log shows, 0 if it is older than `began`."""
    path = Path(job["log"])
    text = path.read_text("utf-8", errors="replace") if path.exists() else ""
    percent = re.findall(r"^epoch [^\n|]*?(\d+)%\|", text, re.MULTILINE)
    return int(percent[-1]) / 100 if percent and path.stat().st_mtime >= began else 0.0


class Pool:
    """Executes jobs: one per core of this machine, or one per thread of the workers of Dask.

    address: of Dask's scheduler, or None. size: how many jobs run at a time. Raises ExperimentError
    if the scheduler does not answer.
    """

    def __init__(self, address: str | None = None):
        self.client = None
        self.execute, self.size = execute, len(cores())
        if not address:
            self.executor = concurrent.futures.ThreadPoolExecutor(self.size)
            return
        try:
            import cloudpickle
            from distributed import Client, get_worker
        except ImportError:
            raise ExperimentError('--cluster needs Dask: pip install -e ".[cluster]"') from None
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        for name in ("distributed", "distributed.client"):  # each has a handler of its own
            logging.getLogger(name).handlers = [logging.NullHandler()]
        try:
            self.client = Client(address, timeout=5)
        except (OSError, ValueError):
            hint = "start one with `dask scheduler`, or correct the address"
            raise ExperimentError(f"no Dask scheduler answers at {address}: {hint}") from None
        print(f"waiting for Dask workers at {address}", file=sys.stderr, flush=True)
        self.client.wait_for_workers(1)
        self.size = sum(self.client.nthreads().values())
        # A lambda is sent as code, not as a name.
        self.execute = lambda job: execute(job, get_worker().address)
        self.executor = self.client.get_executor(pure=False)

    def probe(self, job: dict) -> dict[str, str]:
        """Return what a job without flags computes: see `worker.run`. Raises ExperimentError."""
        ((_, result),) = self.run([job], silent=True)
        return result

    def run(self, jobs: list[dict], silent: bool = False) -> Iterator[tuple[dict, dict]]:
        """Execute jobs, and yield each with its result. A progress bar shows the time.

        If the caller ends this iterator, at a signal, or when one fails, the runs save and end.
        Raises ExperimentError if one fails.
        """
        options = {"total": len(jobs), "mininterval": 1 if sys.stderr.isatty() else 60}
        options |= {"miniters": 0, "smoothing": 0, "dynamic_ncols": True}
        futures, began = {}, time.time()
        try:
            futures |= {self.executor.submit(self.execute, job): job for job in jobs}
            with tqdm(bar_format=LINE, disable=silent or not jobs, **options) as bar:
                while futures:
                    done, _ = concurrent.futures.wait(futures, 1, "FIRST_COMPLETED")
                    shares = (trained(job, began) for job in futures.values())
                    bar.n = len(jobs) - len(futures) + sum(shares)
                    bar.update(0)
                    for future in done:
                        job, answer = futures.pop(future), self.answer(future)
                        if answer["status"] or not answer["result"]:
                            tqdm.write(answer["why"])
                            last = answer["why"].splitlines()[-1:] or ["no message"]
                            what = f"a run failed on {answer['worker']}: {last[0]}"
                            raise ExperimentError(f"{what}; its log was {job['log']}")
                        yield job, json.loads(answer["result"])
                bar.n = len(jobs)
                bar.refresh()
        finally:
            if futures:
                tqdm.write(f"waiting for {len(futures)} runs to save", file=sys.stderr)
                for job in futures.values():
                    Path(job["running"]).unlink(missing_ok=True)
                concurrent.futures.wait(futures, 120)

    def answer(self, future: concurrent.futures.Future) -> dict:
        """Return the result of a future. Raises ExperimentError if Dask has lost it."""
        try:
            return future.result()
        except Exception as error:
            if not self.client:
                raise
            why = f"Dask has lost a run ({type(error).__name__})"
            raise ExperimentError(f"{why}: finished runs are kept; repeat the command") from None
