"""The runs of experiments: their source and identity, their results, and what runs them."""

import hashlib
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from config import write_json
from experiments import patches
from experiments.patches import BASELINE, Patch
from experiments.recipes import Recipe, load_texts
from training.machine import cores, cpu_info
from training.provenance import normalized_code
from training.records import read_json

# The code that can change a score.
SCORED_CODE = ("model", "data", "config.py", "train.py", "training/run.py", "experiments/trial.py")
SCORED_CODE += ("training/checkpoints.py", "training/distribution.py", "training/machine.py")
SCORED_CODE += ("evaluation/translator.py", "evaluation/metrics.py", "evaluation/search.py")
Job = tuple[Patch, int]  # an experiment and a seed: one run
PACKAGES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")
MODEL_FIELDS = {"model name", "cpu family", "model", "CPU part"}  # of /proc/cpuinfo


def short_hash(value: object) -> str:
    """Return the first characters of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def code_hashes(folder: Path) -> dict[str, str]:
    """Return a hash of each file that can change a score. Comments and docstrings are ignored."""
    parts = [folder / part for part in SCORED_CODE]
    files = sorted(file for part in parts for file in [part, *part.rglob("*")] if file.is_file())
    files = [file for file in files if file.name != "__main__.py"]  # a command of its own
    codes = {file: normalized_code(file) for file in files if file.suffix == ".py"}
    texts = {file: file.read_text("utf-8") for file in files if file.suffix == ".tsv"}
    return {str(f.relative_to(folder)): short_hash(text) for f, text in (codes | texts).items()}


def processor() -> str:
    """Return the processor's model, and a hash of its vector instructions; "" if unknown."""
    info = cpu_info()
    model = [value for name, value in info.items() if name in MODEL_FIELDS]
    flags = [flag for flag in info.get("flags", "").split() if flag.startswith(("avx", "amx"))]
    flags += info.get("Features", "").split()  # on Arm
    return ", ".join(model + ([short_hash(sorted(flags))] if flags else []))


class Setup:
    """A recipe on this machine: copies of the source in `scratch`, texts to score, and runs."""

    def __init__(self, recipe: Recipe, scratch: str | Path, final: bool = False):
        self.recipe, self.scratch, self.keys = recipe, Path(scratch), {}
        self.cache = patches.ROOT / ".cache"
        self.folder = patches.ROOT / "runs/experiments" / (recipe.name + "-final" * final)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(exist_ok=True)
        self.commit = patches.git("rev-parse", "HEAD").strip()
        self.code = code_hashes(self.checkout(BASELINE))
        data = [pair for pair in code_hashes(patches.ROOT).items() if pair[0].startswith("data/")]
        sample = repr(recipe.final if final else recipe.sample)
        self.texts = self.cache / f"texts-{short_hash([data, recipe.flags, sample])}.json"
        if not self.texts.exists():
            print(f"preparing the texts to score: {sample}", file=sys.stderr)
            write_json(self.texts, load_texts(recipe, final))
        self.identity = {
            "flags": recipe.flags,
            "average": recipe.average,
            "texts": short_hash(self.texts.read_text("utf-8")),
            "processor": processor(),
            **{name: metadata.version(name) for name in PACKAGES},
        }

    def checkout(self, patch: Patch) -> Path:
        """Return a patched copy of the last commit, with the present programs of experiments/."""
        folder, unfinished = self.scratch / patch.name, self.scratch / "unfinished"
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)  # of a patch that does not apply
            archive = self.scratch / "source.tar"
            patches.git("archive", f"--output={archive}", self.commit)
            shutil.unpack_archive(archive, unfinished, filter="data")
            for path in patches.HERE.glob("*.py"):
                shutil.copy(path, unfinished / "experiments")
            patch.apply(unfinished)
            unfinished.rename(folder)
        return folder

    def key(self, patch: Patch) -> str:
        """Return a hash of all that the results of an experiment depend on, apart from the seed."""
        if patch not in self.keys:
            code = code_hashes(self.checkout(patch))
            self.keys[patch] = short_hash([self.identity, code, patch.flags])
        return self.keys[patch]

    def file(self, job: Job, ending: str = "") -> Path:
        """Return the directory of a run, or a file next to it."""
        patch, seed = job
        return self.folder / patch.name / f"seed-{seed}{ending}"

    def result(self, job: Job) -> dict | None:
        """Return the result of a run, or None if it has not finished.

        The same code may have run under another name, before the edit was saved as a patch.
        """
        patch, seed = job
        paths = self.folder.glob(f"*/seed-{seed}.{self.key(patch)}.json")
        return next(map(read_json, paths), None)

    def delete_other(self, job: Job) -> None:
        """Delete the directory of a run if it is that of other code."""
        run, path = self.file(job), self.file(job, ".job.json")
        if run.exists() and not (path.exists() and read_json(path)["key"] == self.key(job[0])):
            shutil.rmtree(run)

    def write(self, job: Job) -> Path:
        """Write the file for experiments.trial. Deletes the run directory of other code."""
        (patch, seed), run, path = job, self.file(job), self.file(job, ".job.json")
        self.delete_other(job)
        files = {"run": run, "cache": self.cache, "texts": self.texts}
        files["result"] = self.file(job, f".{self.key(patch)}.json")
        about = {"name": patch.name, "seed": seed, "commit": self.commit}
        values = {"key": self.key(patch), "diff": patch.diff, "about": about}
        flags = [*self.recipe.flags.split(), *shlex.split(patch.flags), f"--seed={seed}"]
        values |= {"flags": flags, "average": self.recipe.average}
        run.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, values | {name: str(file) for name, file in files.items()})
        return path

    def run(self, jobs: list[Job]) -> dict[str, str]:
        """Run unfinished jobs, one on each core. Returns the reasons of those that failed."""
        free, processes, failed = queue.SimpleQueue(), set(), {}
        starting, stopping = threading.Lock(), threading.Event()
        for core in cores():
            free.put([core])

        def call(job):
            log, tree = self.file(job, ".log"), self.checkout(job[0])
            command = [sys.executable, "-m", "experiments.trial", str(self.write(job))]
            with starting, open(log, "wb") as file:
                if stopping.is_set():
                    return "stopped"
                options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                options |= {"cwd": tree, "env": os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}}
                # In a session of its own, or Ctrl-C would reach it twice and end it unsaved.
                process = subprocess.Popen(command, start_new_session=True, **options)
                processes.add(process)
            status = process.wait()
            lines = log.read_text("utf-8", "replace").strip().splitlines() or [f"status {status}"]
            return f"{lines[-1]}; see {log}" if status else ""

        # A thread, and the processes that it starts, are bound to a core. They do not see any GPU.
        pool = ThreadPoolExecutor(free.qsize(), "run", lambda: os.sched_setaffinity(0, free.get()))
        try:
            futures = {pool.submit(call, job): job for job in jobs if not self.result(job)}
            with tqdm(total=len(futures), unit="run", smoothing=0, disable=not futures) as progress:
                for future in as_completed(futures):
                    job, reason = futures[future], future.result()
                    name = f"{job[0].name} seed {job[1]}"
                    failed |= {name: reason} if reason else {}
                    shown = f"FAILED: {reason}"
                    if not reason:
                        result = self.result(job)
                        score = self.recipe.values([result])[0]
                        shown = f"{score:.2f}" if "scores" in result else result["diverged"]
                    tqdm.write(f"{name}: {shown}")
                    progress.update()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            with starting:  # running jobs save and exit
                stopping.set()
                for process in processes:
                    process.terminate()  # does nothing to a process that has ended
            pool.shutdown()
        return failed
