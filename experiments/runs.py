"""The runs of experiments: their source and identity, their results, and what runs them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from experiments import patches
from experiments.patches import BASELINE, Patch
from experiments.recipes import Recipe, load_texts
from same_code import ROOT, code_hashes, file_hash, git
from training.machine import cores, cpu_info
from training.records import read_json
from utils import write_json

PACKAGES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")
MODEL_FIELDS = {"model name", "cpu family", "model", "CPU part"}  # of /proc/cpuinfo


class Job(NamedTuple):
    """One run: an experiment and the number of its seed."""

    patch: Patch
    seed: int

    def __str__(self) -> str:
        return f"{self.patch.name} seed {self.seed}"


def short_hash(value: object) -> str:
    """Return the first characters of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


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
        self.first_seed = 100 if final else 0  # the final score is of other runs, too
        self.cache = ROOT / ".cache"
        self.folder = ROOT / "runs/experiments" / (recipe.name + "-final" * final)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(exist_ok=True)
        self.commit = git("rev-parse", "HEAD").strip()
        self.code = code_hashes("score", self.checkout(BASELINE))
        data = [pair for pair in code_hashes("score").items() if pair[0].startswith("data/")]
        source = [data, file_hash(patches.HERE / "recipes.py")]
        contents = [source, recipe.flags, recipe.sentences, final]
        self.texts = self.cache / f"texts-{short_hash(contents)}.json"
        if not self.texts.exists():
            print("preparing the texts to score", file=sys.stderr)
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
        folder = self.scratch / patch.name
        if not folder.exists():
            archive = self.scratch / "source.tar"
            git("archive", f"--output={archive}", self.commit)
            shutil.unpack_archive(archive, folder, filter="data")
            for path in patches.HERE.glob("*.py"):
                shutil.copy(path, folder / "experiments")
            patch.apply(folder)
        return folder

    def key(self, patch: Patch) -> str:
        """Return a hash of all that the results of an experiment depend on, apart from the seed."""
        if patch not in self.keys:
            code = code_hashes("score", self.checkout(patch))
            self.keys[patch] = short_hash([self.identity, code, patch.flags])
        return self.keys[patch]

    def file(self, patch: Patch, seed: int, ending: str = "") -> Path:
        """Return the directory of a run, or a file next to it."""
        return self.folder / patch.name / f"seed-{seed}{ending}"

    def result(self, patch: Patch, seed: int) -> dict | None:
        """Return the result of a run, or None if it has not finished.

        The same code may have run under another name, before the edit was saved as a patch.
        """
        paths = self.folder.glob(f"*/seed-{seed}.{self.key(patch)}.json")
        return next(map(read_json, paths), None)

    def delete_other(self, patch: Patch, seed: int) -> None:
        """Delete the directory of a run if it is that of other code."""
        run, path = self.file(patch, seed), self.file(patch, seed, ".job.json")
        if run.exists() and not (path.exists() and read_json(path)["key"] == self.key(patch)):
            shutil.rmtree(run)

    def start(self, patch: Patch, seed: int, core: int) -> subprocess.Popen:
        """Start a run on a core, or resume it. It does not see any GPU."""
        run, path = self.file(patch, seed), self.file(patch, seed, ".job.json")
        self.delete_other(patch, seed)
        files = {"run": run, "cache": self.cache, "texts": self.texts}
        files["result"] = self.file(patch, seed, f".{self.key(patch)}.json")
        about = {"name": patch.name, "seed": seed, "commit": self.commit}
        flags = f"{self.recipe.flags} {patch.flags} --seed={self.first_seed + seed}".split()
        job = {"flags": flags, "average": self.recipe.average, "key": self.key(patch)}
        job |= {"about": about} | {name: str(file) for name, file in files.items()}
        run.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, job)
        command = [sys.executable, "-m", "experiments.worker", str(path)]
        options = {"cwd": self.checkout(patch), "env": os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}}
        with open(self.file(patch, seed, ".log"), "wb") as log:
            options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # In a session of its own, or Ctrl-C would reach it twice and end it unsaved.
            process = subprocess.Popen(command, start_new_session=True, **options)
        os.sched_setaffinity(process.pid, [core])  # before it has threads
        return process

    def run(self, jobs: list[Job]) -> dict[Job, str]:
        """Run unfinished jobs, one on each core. Returns the reasons of those that failed."""
        waiting, free = [job for job in jobs if not self.result(*job)], cores()
        running, failed = {}, {}
        progress = tqdm(total=len(waiting), unit="run", smoothing=0, disable=not waiting)
        try:
            while waiting or running:
                while waiting and free:
                    job, core = waiting.pop(0), free.pop(0)
                    running[job] = core, self.start(*job, core)
                time.sleep(0.1)
                ended = [job for job, (_, each) in running.items() if each.poll() is not None]
                for job in ended:
                    core, _ = running.pop(job)
                    free.append(core)
                    if result := self.result(*job):
                        text = result.get("diverged") or f"{self.recipe.values([result])[0]:.2f}"
                    else:
                        log = self.file(*job, ".log")
                        lines = log.read_text("utf-8", "replace").strip().splitlines()
                        failed[job] = f"{lines[-1] if lines else 'no message'}; see {log}"
                        text = f"FAILED: {failed[job]}"
                    tqdm.write(f"{job}: {text}")
                    progress.update()
        finally:
            for _, process in running.values():
                process.terminate()  # it saves and exits
            for _, process in running.values():
                process.wait()
            progress.close()
        return failed
