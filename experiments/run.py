"""Run experiments over seeds, each beside the baseline: python -m experiments.run NAME …

Of each, a copy of the last commit with its patch applied trains and scores itself by train.py and
evaluate.py, under runs/experiments/NAME/seed-K. What is finished is skipped, so this can be stopped
at any moment and taken up again. Then: python -m experiments.compare.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from config import fail
from experiments import patches
from experiments.jobs import RECIPES, Job
from experiments.patches import BASELINE, ExperimentError
from experiments.trees import Trees
from training import machine


class Runner:
    """Does jobs, several at a time, each on cores of its own."""

    def __init__(self, count):
        self.processes, self.stopping, self.lock = set(), False, threading.Lock()
        self.cores = queue.SimpleQueue()
        for i in range(count):
            self.cores.put(machine.cores()[i::count])
        self.pool = ThreadPoolExecutor(count, initializer=self.settle)

    def settle(self):
        """Give this thread, and the processes that it will start, their share of the cores."""
        cores = self.cores.get()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)

    def call(self, job, log, *command):
        """Run a program of the job's copy from where the user is → its exit status."""
        with self.lock:
            if self.stopping:
                return None
            process = subprocess.Popen(
                [sys.executable, job.tree / command[0], *map(str, command[1:])],
                env=job.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self.processes.add(process)
        status = process.wait()
        with self.lock:
            self.processes.discard(process)
        return status

    def do(self, job, cache):
        """Train and score → seconds it took. Raises ExperimentError where it failed."""
        began = time.monotonic()
        job.write()
        run = job.run.resolve()
        if run.exists() and not (run / "config.json").exists():  # it had hardly begun
            shutil.rmtree(run)
        shared = ["--cache-dir", cache, "--runs-dir", run.parent]
        flags = [*job.common, *job.patch.arguments, "--seed", job.seed, "--name", run.name]
        train = ["--resume", run] if run.exists() else flags
        commands = [("train.py", *train, *shared)]
        commands += [("evaluate.py", run, "--split", split) for split in job.splits]
        with open(run.with_suffix(".log"), "ab") as log:
            for command in commands:
                status = self.call(job, log, *command)
                if self.stopping:
                    return None
                if status:
                    # A killed one's own last word comes from a process that outlives it.
                    time.sleep(0.5 * (status < 0))
                    text = Path(log.name).read_text("utf-8", "replace").strip().splitlines()
                    why = text[-1] if text else f"exit status {status}"
                    job.write(failed=why)
                    raise ExperimentError(f"{why}; {log.name} has the rest")
        job.write(finished=True)
        return time.monotonic() - began

    def stop(self):
        """End what runs, saved; begin nothing more."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGTERM)
        self.pool.shutdown(cancel_futures=True)


def alone(folder):
    """Keep a second experiments.run out of a folder → its lock. Raises ExperimentError."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return machine.lock(folder / ".lock")
    except BlockingIOError:
        raise ExperimentError(f"another experiments.run is at work in {folder}") from None


def plan(flags, trees):
    """The jobs that are left, and how many are finished. Raises ExperimentError."""
    recipe = RECIPES[flags.recipe]
    chosen = [patches.read(name) for name in (patches.names() if flags.all else flags.names)]
    chosen = [BASELINE, *dict.fromkeys(patch for patch in chosen if patch != BASELINE)]
    for patch in chosen:
        trees.give(patch)  # what does not apply is told before anything is done
    for words in ([*flags.flags, *patch.arguments] for patch in chosen):
        if "classifier" in words or "--model=classifier" in words:
            raise ExperimentError("translations are compared here: leave --model classifier out")
    left, finished = [], 0
    for seed in range(flags.seeds):  # all with one seed first: a table that fills row by row
        for patch in chosen:
            common = [*recipe.flags, *flags.flags]
            splits = flags.splits or recipe.splits
            job = Job(patch, seed, common, splits, flags.folder, trees.base)
            try:
                done = job.finished()
            except ExperimentError:
                if not flags.again:
                    raise
                job.move_aside()
                done = False
            finished += done
            if not done:
                left.append(job)
    for job in left:
        job.tree = trees.give(job.patch)
        job.environment = trees.environment(job.tree)
    return left, finished


def run(flags):
    """Do what is left → how many failed. Raises ExperimentError."""
    edited = patches.git("status", "--porcelain", "--", ".", ":(exclude)experiments")
    if edited:
        print(f"note: a commit is run; what has been edited since is not in it:\n{edited}",
              end="", file=sys.stderr)  # fmt: skip
    with alone(flags.folder), tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        trees = Trees(scratch, flags.commit)
        left, done = plan(flags, trees)
        total, failed = len(left) + done, 0
        print(f"{total} runs of commit {trees.commit[:7]}, {done} of them finished before; "
              f"{flags.jobs} at a time", flush=True)  # fmt: skip
        began, runner = time.monotonic(), Runner(flags.jobs)
        try:
            futures = {runner.pool.submit(runner.do, job, flags.cache_dir): job for job in left}
            for count, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                try:
                    seconds = future.result()
                    took = f"{job.result()}; {seconds:.0f} s"
                except (ExperimentError, OSError, KeyError, ValueError, TypeError) as error:
                    took, failed = f"FAILED: {error}", failed + 1
                rest = (time.monotonic() - began) / count * (len(left) - count) / 60
                print(f"[{done + count}/{total}] {job.patch.name} seed {job.seed}: {took}; about "
                      f"{rest:.0f} min left", flush=True)  # fmt: skip
        finally:
            runner.stop()
    return failed


def from_flags():
    parser = argparse.ArgumentParser(
        "python -m experiments.run", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Flags after -- go to train.py, after the recipe's.",
    )  # fmt: skip
    parser.error = fail
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments: the names of experiments/*.patch")
    add("--all", action="store_true", help="all of them")
    add("--seeds", type=int, default=3, help="seeds 0, 1, … of each [3]")
    said = "; ".join(f"{name}: {' '.join(recipe.flags)}" for name, recipe in RECIPES.items())
    add("--recipe", choices=RECIPES, default="mini", help=f"flags for all [mini]; {said}")
    add("--folder", type=Path, help="where the runs are [the recipe's: "
        + ", ".join(recipe.folder for recipe in RECIPES.values()) + "]")  # fmt: skip
    add("--splits", nargs="+", help="what is scored [the recipe's]")
    add("--commit", default="HEAD", help="of which commit [the last one]")
    add("--jobs", type=int, help="runs at a time, each on its share of the cores [one a core]")
    add("--again", action="store_true", help="where a run was made with other code or flags, make "
        "it anew and keep the old one beside it")  # fmt: skip
    add("--cache-dir", type=Path, default=Path(".cache"), help="tokenized corpora [.cache]")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    flags = parser.parse_args(words[:cut])
    flags.flags = words[cut + 1 :]
    if flags.all == bool(flags.names):
        fail("name experiments, or give --all: " + ", ".join(patches.names()))
    allowed = len(machine.cores())
    flags.jobs = flags.jobs or allowed
    for name in ("seeds", "jobs"):
        if getattr(flags, name) < 1:
            fail(f"--{name} {getattr(flags, name)} is not at least 1")
    if flags.jobs > allowed:
        fail(f"--jobs {flags.jobs}: there are {allowed} cores")
    if "test" not in (flags.splits or ["test"]):
        fail(f"--splits {' '.join(flags.splits)} lacks test, which is compared in any case")
    flags.folder = flags.folder or Path(RECIPES[flags.recipe].folder)
    flags.folder, flags.cache_dir = flags.folder.resolve(), flags.cache_dir.resolve()
    return flags


def main():
    def terminated(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    try:
        raise SystemExit(1 if run(from_flags()) else 0)
    except (ExperimentError, OSError) as error:
        if detail := getattr(error, "detail", ""):
            print(detail, file=sys.stderr)
        fail(error)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
