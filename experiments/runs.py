"""The runs of experiments: their source and identity, their results, and what runs them."""

import contextlib
import hashlib
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from experiments import patches
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import Recipe
from training.machine import cores
from training.provenance import normalized_code
from training.records import read_json, write_json

# The code that can change a score.
SCORED_CODE = (
    *("model", "data", "config.py", "train.py"),
    *("training/run.py", "training/checkpoints.py", "training/distribution.py"),
    *("evaluation/translator.py", "evaluation/metrics.py", "evaluation/search.py"),
    "experiments/trial.py",
)
VERSIONS = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")


def short_hash(value: object) -> str:
    """Return the first characters of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def code_hashes(folder: Path) -> dict[str, str]:
    """Return a hash of each file that can change a score. Comments and docstrings are ignored."""
    paths = [folder / part for part in SCORED_CODE]
    files = {path for part in paths for path in (part.rglob("*") if part.is_dir() else [part])}
    return {
        path.relative_to(folder).as_posix(): short_hash(
            normalized_code(path) if path.suffix == ".py" else path.read_text("utf-8", "replace")
        )
        for path in sorted(files)
        if path.is_file() and "__pycache__" not in path.parts
    }


def processor() -> str:
    """Return the processor's model, and a hash of the instruction sets that it has."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    sets = sorted(set(re.findall(r"\b(?:fma|avx\w*|amx_\w+)\b", text)))
    return ", ".join([*fields.values(), short_hash(sets)])


class Trees:
    """Copies of the files of the last commit, with patches applied.

    They share a repository of their own that borrows the objects of the user's repository. So the
    provenance of a run names the commit, and its source.diff is the patch. The programs of
    experiments/ are those of the working tree: they measure, and are not what is measured.
    """

    def __init__(self, scratch: str | Path):
        self.scratch = Path(scratch).resolve()
        self.commit = patches.git("rev-parse", "--verify", "HEAD^{commit}").strip()
        repository = self.scratch / "repository"
        patches.git("clone", "--quiet", "--shared", "--no-checkout", ".", repository)
        self.variables = {"GIT_DIR": str(repository / ".git"), "GIT_OPTIONAL_LOCKS": "0"}
        patches.git("update-ref", "--no-deref", "HEAD", self.commit, **self.variables)
        patches.git("read-tree", "HEAD", **self.variables)

    def checkout(self, patch: Patch) -> Path:
        """Return the directory of the patched source. Raises ExperimentError."""
        folder = self.scratch / patch.name
        if not folder.exists():
            variables = self.variables | {"GIT_WORK_TREE": str(self.scratch)}
            patches.git("checkout-index", "--all", f"--prefix={folder}/", **variables)
            for path in patches.HERE.glob("*.py"):
                shutil.copy(path, folder / "experiments")
            patch.apply(folder)
        return folder

    def start(self, patch: Patch, *command: object, **options) -> subprocess.Popen:
        """Start `python -m …` in a copy."""
        folder = self.checkout(patch)
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            cwd=folder,
            env=os.environ | self.variables | {"GIT_WORK_TREE": str(folder)},
            stdin=subprocess.DEVNULL,
            **options,
        )


@dataclass(frozen=True)
class Job:
    """One run: an experiment with one seed. key: hash of all else that the result depends on."""

    patch: Patch
    seed: int
    key: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.patch.name} seed {self.seed}"

    @property
    def run_dir(self) -> Path:
        return self.folder / self.patch.name / f"seed-{self.seed}"

    def file(self, ending: str) -> Path:
        return self.run_dir.with_name(f"seed-{self.seed}.{ending}")

    def result(self) -> dict | None:
        """Return the result of the run, or None if it has not finished."""
        path = self.file(f"{self.key}.json")
        return read_json(path) if path.exists() else None


class Setup:
    """A recipe on this machine: the folder of its runs, the texts to score, and the identity.

    name: directory of the runs [that of the recipe]. final: score the texts for what is adopted.
    """

    def __init__(self, recipe: Recipe, trees: Trees, name: str = "", final: bool = False):
        self.recipe, self.trees = recipe, trees
        name = name or recipe.name + "-final" * final
        self.folder, self.cache = patches.ROOT / "runs/experiments" / name, patches.ROOT / ".cache"
        for folder in (self.folder, self.cache):
            folder.mkdir(parents=True, exist_ok=True)
        self.code = code_hashes(trees.checkout(BASELINE))
        self.sample = self.write_sample(final)
        self.identity = {
            "flags": recipe.flags,
            "averages": list(recipe.averages),
            "texts": short_hash(self.sample.read_text("utf-8")),
            "processor": processor(),
            **{name: metadata.version(name) for name in VERSIONS},
        }

    def write_sample(self, final: bool) -> Path:
        """Return the file of the texts to score, which the unpatched source writes once."""
        recipe = self.recipe
        data = [value for name, value in self.code.items() if name.startswith("data/")]
        sample = repr(recipe.final if final else recipe.sample)
        path = self.cache / f"texts-{short_hash([data, recipe.flags, sample])}.json"
        if not path.exists():
            print(f"preparing the texts to score: {sample}", file=sys.stderr)
            command = ["experiments.recipes", recipe.name, path, *["--final"] * final]
            pipe = subprocess.PIPE
            process = self.trees.start(BASELINE, *command, stdout=pipe, stderr=pipe, text=True)
            _, errors = process.communicate()
            if process.returncode:
                lines = errors.strip().splitlines() or ["no message"]
                raise ExperimentError(f"the texts to score cannot be prepared: {lines[-1]}")
        return path

    def jobs(self, patch: Patch, seeds: int) -> list[Job]:
        """Return the runs of an experiment."""
        code = code_hashes(self.trees.checkout(patch))
        key = short_hash([self.identity, code, patch.flags])
        return [Job(patch, seed, key, self.folder) for seed in range(seeds)]

    def results(self, patch: Patch, seeds: int) -> list[dict]:
        """Return the results of the finished runs, by seed."""
        return [result for job in self.jobs(patch, seeds) if (result := job.result())]

    def write(self, job: Job) -> Path:
        """Write the file for experiments.trial. Deletes an unfinished run of other code."""
        path = job.file("job.json")
        if job.run_dir.exists() and not (path.exists() and read_json(path)["key"] == job.key):
            shutil.rmtree(job.run_dir)
        flags = [*self.recipe.flags.split(), *job.patch.arguments, f"--seed={job.seed}"]
        paths = {"run": job.run_dir, "cache": self.cache, "sample": self.sample}
        paths["result"] = job.file(f"{job.key}.json")
        about = {"name": job.patch.name, "seed": job.seed}
        values = {"key": job.key, "flags": flags, "averages": self.recipe.averages, "about": about}
        write_json(path, values | {name: str(path) for name, path in paths.items()})
        return path


class Runner:
    """Runs jobs in parallel, each on its own share of the cores. A context manager."""

    def __init__(self, setup: Setup, count: int):
        self.setup, self.processes, self.stopping = setup, set(), False
        self.lock, self.cores = threading.Lock(), queue.SimpleQueue()
        for i in range(count):
            self.cores.put(cores()[i::count])
        # A thread, and the processes that it starts, are bound to a share of the cores.
        pin = lambda: os.sched_setaffinity(0, self.cores.get())  # noqa: E731
        self.pool = ThreadPoolExecutor(count, initializer=pin)

    def __enter__(self) -> "Runner":
        return self

    def call(self, job: Job) -> str:
        """Run a job. Returns "", or why it failed."""
        log = job.file("log")
        with self.lock:
            if self.stopping:
                return "stopped"
            command = "experiments.trial", self.setup.write(job)
            with open(log, "wb") as file:
                process = self.setup.trees.start(job.patch, *command, stdout=file, stderr=file)
            self.processes.add(process)
        status = process.wait()
        with self.lock:
            self.processes.discard(process)
        lines = log.read_text("utf-8", "replace").strip().splitlines() or [f"status {status}"]
        return f"{lines[-1]}; see {log}" if status else ""

    def run(self, jobs: list[Job], describe: Callable[[dict], str]) -> dict[str, str]:
        """Run the jobs that have not finished. Returns the reasons of those that failed."""
        failed, unfinished = {}, [job for job in jobs if job.result() is None]
        for job in unfinished:
            job.run_dir.parent.mkdir(parents=True, exist_ok=True)
        futures = {self.pool.submit(self.call, job): job for job in unfinished}
        with tqdm(total=len(futures), unit="run", smoothing=0, disable=not futures) as progress:
            for future in as_completed(futures):
                job, reason = futures[future], future.result()
                if reason:
                    failed[str(job)] = reason
                tqdm.write(f"{job}: {f'FAILED: {reason}' if reason else describe(job.result())}")
                progress.update()
        return failed

    def __exit__(self, *exception) -> None:
        """Start no more jobs, and let running ones save and exit."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGTERM)
        self.pool.shutdown(cancel_futures=True)
