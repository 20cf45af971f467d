"""Run experiments and the baseline over several seeds: python -m experiments.run NAME …

Each experiment trains and scores in a copy of the last commit with its patch applied, under
runs/experiments/NAME/seed-K. Finished runs are skipped, so the command can be stopped and repeated
at any time. Compare the results with python -m experiments.compare.
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
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

from config import UserError, fail, make_parser
from experiments import jobs, patches
from experiments.jobs import RECIPES, Job, is_classifier
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.trees import Trees
from training import machine


class Runner:
    """Runs jobs in parallel, each on its own share of the cores."""

    def __init__(self, count: int):
        self.processes, self.stopping, self.lock = set(), False, threading.Lock()
        self.cores = queue.SimpleQueue()
        for i in range(count):
            self.cores.put(machine.cores()[i::count])
        self.pool = ThreadPoolExecutor(count, initializer=self.pin_thread)

    def pin_thread(self) -> None:
        """Bind this thread, and the processes that it starts, to its share of the cores."""
        cores = self.cores.get()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)

    def call(self, job: Job, log: IO, *command: object) -> int | None:
        """Run a program of the job's source in the current directory. Returns its exit status."""
        with self.lock:
            if self.stopping:
                return None
            process = subprocess.Popen(
                [sys.executable, job.tree / command[0], *map(str, command[1:])],
                env=job.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            self.processes.add(process)
        status = process.wait()
        with self.lock:
            self.processes.discard(process)
        return status

    def train_and_score(self, job: Job, cache: Path) -> float | None:
        """Run a job. Returns the seconds it took. Raises ExperimentError if a program fails."""
        start = time.monotonic()
        job.write_metadata()
        run_dir = job.run_dir.resolve()
        if run_dir.exists() and not (run_dir / "config.json").exists():  # killed at its start
            shutil.rmtree(run_dir)
        paths = ["--cache-dir", cache, "--runs-dir", run_dir.parent]
        flags = [*job.common, *job.patch.arguments, "--seed", job.seed, "--name", run_dir.name]
        train = ["--resume", run_dir] if run_dir.exists() else flags
        commands = [("train.py", *train, *paths)]
        commands += [("evaluate.py", run_dir, "--split", split) for split in job.unscored()]
        with open(job.log, "ab") as log:
            for command in commands:
                status = self.call(job, log, *command)
                if self.stopping:
                    return None
                if status:
                    reason = jobs.last_line(job.log) or f"exit status {status}"
                    raise ExperimentError(f"{reason}; see {job.log}")
        return time.monotonic() - start

    def stop(self) -> None:
        """Start no more jobs, and let running ones save and exit."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGTERM)
        self.pool.shutdown(cancel_futures=True)


def lock_folder(folder: Path) -> IO:
    """Create a directory and lock it against a second experiments.run. Raises ExperimentError."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return machine.lock(folder / ".lock")
    except BlockingIOError:
        raise ExperimentError(f"another experiments.run is using {folder}: wait for it") from None


def choose_patches(flags: argparse.Namespace) -> list[Patch]:
    """Return the baseline and the experiments to run. Raises ExperimentError."""
    names = jobs.for_recipe(flags.recipe) if flags.all else flags.names
    chosen = [patches.read(name) for name in names]
    for patch in chosen:
        if is_classifier([*flags.common, *patch.arguments]) != is_classifier(flags.common):
            raise ExperimentError(
                f"{patch.name} and the baseline cannot be compared: --model differs"
            )
    return [BASELINE, *dict.fromkeys(patch for patch in chosen if patch != BASELINE)]


def plan(flags: argparse.Namespace, trees: Trees) -> tuple[list[Job], int]:
    """Return the jobs to run, and the number of finished ones. Raises ExperimentError."""
    chosen = choose_patches(flags)
    for patch in chosen:
        trees.checkout(patch)  # report a patch that does not apply before anything runs
    unfinished, finished = [], 0
    for seed in range(flags.seeds):  # one seed of everything first: the table fills early
        for patch in chosen:
            job = Job(patch, seed, flags.common, flags.splits, flags.folder, trees.base)
            try:
                job.check()
            except ExperimentError:
                if not flags.again:
                    raise
                job.move_aside()
            if not job.unscored():
                finished += 1
                continue
            job.tree = trees.checkout(patch)
            job.environment = trees.environment(job.tree)
            unfinished.append(job)
    return unfinished, finished


def outcome(future: Future, job: Job) -> tuple[str, bool]:
    """Return a summary of a completed job, and whether it succeeded."""
    try:
        seconds = future.result()
        return f"{job.result()}; {seconds:.0f} s", True
    except (UserError, OSError) as error:
        return f"FAILED: {error}", False


def run(flags: argparse.Namespace) -> int:
    """Run all unfinished jobs. Returns the number that failed. Raises ExperimentError."""
    edited = patches.git("status", "--porcelain", "--", ".", ":(exclude)experiments")
    if edited:
        print(f"note: these uncommitted edits are not part of the runs:\n{edited}", file=sys.stderr)
    with lock_folder(flags.folder), tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        trees = Trees(scratch, flags.commit)
        unfinished, finished = plan(flags, trees)
        total, failed = len(unfinished) + finished, 0
        print(
            f"{total} runs of commit {trees.commit[:7]}, {finished} finished; "
            f"{flags.jobs} in parallel",
            flush=True,
        )
        start, runner = time.monotonic(), Runner(flags.jobs)
        try:
            futures = {
                runner.pool.submit(runner.train_and_score, job, flags.cache_dir): job
                for job in unfinished
            }
            for count, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                text, succeeded = outcome(future, job)
                failed += not succeeded
                rest = (time.monotonic() - start) / count * (len(unfinished) - count) / 60
                print(
                    f"[{finished + count}/{total}] {job.patch.name} seed {job.seed}: {text}; "
                    f"about {rest:.0f} min left",
                    flush=True,
                )
        finally:
            runner.stop()
    return failed


def make_flags() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    parser = make_parser(
        __doc__,
        prog="python -m experiments.run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Flags after -- are passed to train.py, after those of the recipe.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments: the names of experiments/*.patch")
    add("--all", action="store_true", help="run all experiments of the recipe")
    add("--seeds", type=int, default=3, help="number of seeds: 0, 1, … [3]")
    recipes = "; ".join(f"{name}: {' '.join(recipe.flags)}" for name, recipe in RECIPES.items())
    add("--recipe", choices=RECIPES, help=f"flags of all runs [that of the patch]; {recipes}")
    add("--folder", type=Path, help="directory of the runs [that of the recipe]")
    add("--splits", nargs="+", help="splits to score [those of the recipe]")
    add("--commit", default="HEAD", help="commit to run [the last one]")
    add("--jobs", type=int, help="number of parallel runs, which share the cores [one per core]")
    again = "repeat runs whose code or flags differ, and keep the old ones under another name"
    add("--again", action="store_true", help=again)
    add("--cache-dir", type=Path, default=Path(".cache"), help="tokenized corpora [.cache]")
    return parser


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    flags = make_flags().parse_args(words[:end])
    if flags.all == bool(flags.names):
        raise ExperimentError("name experiments, or use --all: " + ", ".join(patches.names()))
    cores = len(machine.cores())
    flags.jobs = flags.jobs or cores
    for name in ("seeds", "jobs"):
        if getattr(flags, name) < 1:
            raise ExperimentError(f"--{name} {getattr(flags, name)}: must be at least 1")
    if flags.jobs > cores:
        raise ExperimentError(f"--jobs {flags.jobs}: must be at most {cores}, the number of cores")
    flags.recipe = flags.recipe or jobs.default_recipe(flags.names)
    recipe = RECIPES[flags.recipe]
    flags.common = [*recipe.flags, *words[end + 1 :]]
    flags.splits = flags.splits or recipe.splits
    if "test" not in flags.splits:
        raise ExperimentError(f"--splits {' '.join(flags.splits)}: must include test")
    flags.folder = (flags.folder or Path(recipe.folder)).resolve()
    flags.cache_dir = flags.cache_dir.resolve()
    return flags


def main() -> None:
    def terminate(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        raise SystemExit(1 if run(parse_flags()) else 0)
    except (UserError, OSError) as error:
        if detail := getattr(error, "detail", ""):
            print(detail, file=sys.stderr)
        fail(error)
    except KeyboardInterrupt:
        print("stopped; repeat the command to resume", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
