"""Execute runs, each in a process of its own: on this machine, or on the workers of Dask."""

import concurrent.futures
import contextlib
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ablation.experiments import ExperimentError
from training.machine import cores
from utils import print_line, progress_bar

LINE = "{percentage:3.0f} % [{elapsed}<{remaining}] {n:.1f} of {total} runs"


def execute(job: dict) -> dict:
    """Execute `python -m ablation.worker JOB` in the job's copy of the source.

    Returns the host, the exit status, the end of the output, and the result as a text. The run
    saves and ends if the file job["running"] is deleted, or if this process ends: its standard
    input is then closed. Dask sends the code of this function to its workers, so it uses nothing
    but the standard library.
    """
    answer = {"host": platform.node(), "result": None}
    if not os.path.exists(job["running"]):
        return answer | {"why": "stopped", "status": 128 + signal.SIGTERM}
    # Without a GPU unless the environment names one, and importing from its working directory.
    environment = {"CUDA_VISIBLE_DEVICES": "-1", **os.environ}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-m", "ablation.worker", job["job"]]
    # In a session of its own, or Ctrl-C would reach it as well and end it unsaved.
    options = {"cwd": job["source"], "env": environment, "start_new_session": True}
    with open(job["log"], "wb") as log:
        options |= {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
        with subprocess.Popen(command, **options) as process:
            while process.poll() is None:
                if not os.path.exists(job["running"]):
                    process.stdin.close()
                time.sleep(0.2)
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
        self.client, self.size = None, len(cores())
        if not address:
            self.executor = concurrent.futures.ThreadPoolExecutor(self.size)
            return
        try:
            import cloudpickle
            from distributed import Client
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
        print_line(f"waiting for Dask workers at {address}")
        self.client.wait_for_workers(1)
        self.size = sum(self.client.nthreads().values())
        self.executor = self.client.get_executor(pure=False)

    def run(self, jobs: list[dict]) -> Iterator[tuple[dict, dict]]:
        """Execute jobs, and yield each with its result. A progress bar shows the time.

        If the caller ends this iterator, at a signal, or when one fails, the runs save and end.
        Raises ExperimentError if one fails.
        """
        options = {"total": len(jobs), "miniters": 0, "smoothing": 0, "bar_format": LINE}
        futures, began = {}, time.time()
        try:
            # Dask sends a lambda as code, not as a name.
            futures |= {self.executor.submit(lambda job: execute(job), job): job for job in jobs}
            with progress_bar(disable=not jobs, **options) as bar:
                while futures:
                    done, _ = concurrent.futures.wait(futures, 1, "FIRST_COMPLETED")
                    shares = (trained(job, began) for job in futures.values())
                    bar.n = len(jobs) - len(futures) + sum(shares)
                    bar.update(0)
                    for future in done:
                        job = futures.pop(future)
                        yield job, self.result(future, job)
        finally:
            if futures:
                print_line(f"waiting for {len(futures)} runs to save")
                for job in futures.values():
                    Path(job["running"]).unlink(missing_ok=True)
                concurrent.futures.wait(futures, 120)

    def result(self, future: concurrent.futures.Future, job: dict) -> dict:
        """Return the result of a job. Raises ExperimentError if it has failed or is lost."""
        try:
            answer = future.result()
        except Exception as error:
            if not self.client:
                raise
            why = f"Dask has lost a run ({type(error).__name__})"
            raise ExperimentError(f"{why}: finished runs are kept; repeat the command") from None
        if answer["status"] or not answer["result"]:
            print_line(answer["why"], sys.stdout)
            last = answer["why"].splitlines()[-1:] or ["no message"]
            what = f"a run failed on {answer['host']}: {last[0]}"
            raise ExperimentError(f"{what}; its log was {job['log']}")
        return json.loads(answer["result"])
