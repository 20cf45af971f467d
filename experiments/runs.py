"""The runs of a recipe: the source of each experiment, the key of its results, and its files.

runs/experiments/RECIPE/NAME/ has, for each seed, the result (seed-N.KEY.json), the output of the
worker (seed-N.log), what it was told (seed-N.job.json) and the run directory (seed-N).
"""

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from data import corpora
from experiments.executor import environment
from experiments.patches import BASELINE, NOT_SCORED, ExperimentError, Patch
from experiments.recipes import Recipe, corpus_of, load_texts
from same_code import ROOT, changed_files, code_hashes, file_hash, git, imported_names
from training.machine import cpu_info
from training.records import read_json
from utils import UserError, flag, warn, write_json

PACKAGES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")
METRICS = "evaluation/metrics.py"
JUDGING = ("experiments/*.py", METRICS)  # the same on both sides
# Edits of these cannot change an encoded corpus.
NOT_ENCODING = ("model/", "training/", "evaluation/", "train.py", "data/batches.py")


class Job(NamedTuple):
    """One run: an experiment and the number of its seed."""

    patch: Patch
    seed: int

    def __str__(self) -> str:
        return f"{self.patch.name} seed {self.seed}"


def short_hash(value: object) -> str:
    """Return the first characters of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def processor() -> dict[str, str]:
    """Return the processor's name, and a hash of its model and vector instructions."""
    info = cpu_info()
    vector = re.findall(r"\b(?:avx|amx)\w*", info.get("flags", "")) or info.get("Features")  # Arm
    model = [info.get(field) for field in ("cpu family", "model", "CPU part")]
    name = info.get("model name", "unknown")
    return {"processor": name, "vector instructions": short_hash([model, vector])}


def settings_of(flags: str) -> set[str]:
    """Return the names of the settings that flags of train.py give, known or not."""
    return {name.replace("-", "_") for name in re.findall(r"--(?:no-)?([\w-]+)", flags)}


def edited_defaults(one: Path, other: Path) -> set[str]:
    """Return the settings whose defaults in config.py differ between two copies of the source."""
    defaults = []
    for folder in (one, other):
        nodes = ast.walk(ast.parse((folder / "config.py").read_bytes()))
        fields = (
            x for x in nodes if isinstance(x, ast.AnnAssign) and isinstance(x.value, ast.Call)
        )
        defaults.append({(x.target.id, *map(ast.unparse, x.value.args[:1])) for x in fields})
    return {name for name, *_ in defaults[0] ^ defaults[1]}


def named_files(flags: str, labelled: bool) -> list[str]:
    """Return hashes of the files that flags name: of an own corpus, and of a run to start from.

    labelled: whether the corpus has labels. Raises UserError.
    """
    hashes = []
    for name in re.findall(r"--corpus[= ](\S+)", flags):
        corpus = corpora.find(name, task="classification" if labelled else "translation")
        if corpus.local:
            check_absolute(name)
            hashes.append(corpus.fingerprint())
    for run in re.findall(r"--init-from[= ](\S+)", flags):
        check_absolute(run)
        files = sorted(path for path in Path(run).glob("checkpoints/**/*") if path.is_file())
        hashes.append(short_hash([file_hash(path) for path in files]))
    return hashes


def check_absolute(path: str) -> None:
    """Raise ExperimentError for a relative path, because runs have other working directories."""
    if not Path(path).is_absolute():
        raise ExperimentError(f"{path}: give an absolute path, because runs start elsewhere")


class Runner:
    """The runs of a recipe on this machine. Copies of the source are written to `scratch`.

    commit: the source of the baseline. final: whether the runs are those of the final score.
    """

    def __init__(
        self, recipe: Recipe, scratch: str | Path, commit: str = "HEAD", final: bool = False
    ):
        self.recipe, self.scratch, self.keys = recipe, Path(scratch), {}
        self.first_seed = 100 if final else 0  # the final score is of other runs, too
        self.commit = git("rev-parse", f"{commit}^{{commit}}").strip()
        self.cache = ROOT / ".cache"
        self.folder = ROOT / "runs/experiments" / (recipe.name + "-final" * final)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(exist_ok=True)
        corpus = corpus_of(recipe)
        # The files of a download can be replaced. The cache of `mini` knows its own code.
        built_in = corpus.name.partition(":")[0] == "mini"
        self.files = "" if built_in else corpus.fingerprint()
        own = {"corpus": self.files} if corpus.local else {}  # the user's own files
        recipes = file_hash(Path(__file__).with_name("recipes.py"))
        code = [*code_hashes("texts", self.source(BASELINE)).items()], recipes
        contents = [code, recipe.flags, recipe.sentences, final, corpus.languages]
        self.texts = self.cache / f"texts-{short_hash([*contents, self.files])}.json"
        if not self.texts.exists():
            print("preparing the texts to score", file=sys.stderr)
            self.write_texts(final)
        self.processor = processor()
        self.identity = {"flags": recipe.flags, "average": recipe.average}
        self.identity |= {name: metadata.version(name) for name in PACKAGES}
        self.identity["texts"] = short_hash(self.texts.read_text("utf-8"))
        self.identity |= own

    def write_texts(self, final: bool) -> None:
        """Write the texts that both sides are scored on, as the baseline's code reads them.

        Raises UserError.
        """
        source = self.source(BASELINE)
        if not changed_files("texts", source, ROOT):
            write_json(self.texts, load_texts(self.recipe, final))
            return
        recipe = json.dumps(asdict(self.recipe))
        command = [sys.executable, "-m", "experiments.recipes", recipe, self.texts]
        options = {"cwd": source, "env": environment(), "stderr": subprocess.PIPE}
        done = subprocess.run([*command, *["final"] * final], **options)
        if done.returncode:
            *_, message = ["no message", *done.stderr.decode("utf-8", "replace").splitlines()]
            raise ExperimentError(f"the baseline's code cannot read the texts to score: {message}")

    def source(self, patch: Patch) -> Path:
        """Return a patched copy of the baseline's source, with the present code of `JUDGING`.

        Raises ExperimentError.
        """
        folder = self.scratch / patch.name
        if not folder.exists():
            archive = self.scratch / "source.tar"
            git("archive", f"--output={archive}", self.commit)
            shutil.unpack_archive(archive, folder, filter="data")
            try:
                patch.apply(folder)
                patch.check_syntax(folder)
            except UserError as error:
                raise ExperimentError(f"{patch.name}: {error}") from None
            for pattern in JUDGING:
                for path in ROOT.glob(pattern):
                    shutil.copy(path, folder / path.relative_to(ROOT))
        return folder

    def check(self, patch: Patch) -> None:
        """Raise ExperimentError if a patch cannot be compared with the baseline.

        Warns if an edited default has no effect.
        """
        edited, own = set(), settings_of(patch.flags)
        if "config.py" in patch.files:
            edited = edited_defaults(self.source(patch), self.source(BASELINE))
        incomparable = {"max_length", "tokenizer"} if self.recipe.lower_is_better else set()
        incomparable |= {"reverse", "lowercase"} if self.recipe.score != "accuracy" else set()
        if names := sorted((edited | own) & incomparable):
            raise ExperimentError(
                f"{patch.name} changes {flag(names[0])}, so its scores could not be compared with "
                "those of the baseline: leave this setting as it is"
            )
        for name in sorted(edited & settings_of(self.recipe.flags) - own):
            warn(
                f"{patch.name} changes the default of {flag(name)}, which has no effect, because "
                f"recipe {self.recipe.name} sets this flag: use a patch with the line "
                f"`flags: {flag(name)} VALUE`"
            )
        if METRICS in patch.files:
            warn(f"both sides are scored by the present {METRICS}, whatever {patch.name} changes")
        scored = [name for name in patch.files if name.partition("/")[0] not in NOT_SCORED]
        for path in (self.source(patch) / name for name in scored):
            if path.suffix == ".py" and path.exists():
                if found := sorted(imported_names(path.read_bytes()).intersection(NOT_SCORED)):
                    name = path.relative_to(self.source(patch))
                    raise ExperimentError(
                        f"{name} imports from {found[0]}/, where edits do not count: move what it "
                        "imports to model/, or to a new module"
                    )
        if self.key(patch) == self.key(BASELINE):
            raise ExperimentError(
                f"{patch.name} changes nothing that can change a score: edit code, not only "
                "comments or docstrings (same_code.py lists the files that do not count)"
            )

    def key(self, patch: Patch) -> str:
        """Return a hash of all that a result depends on, except the seed and the processor."""
        if patch not in self.keys:
            code = code_hashes("score", folder := self.source(patch))
            for name in patch.files:  # an edit can make files count that same_code.py leaves out
                edited, before = folder / name, self.source(BASELINE) / name
                if name.startswith(("training/", "evaluation/")) and edited.exists():
                    if not before.exists() or file_hash(edited) != file_hash(before):
                        code[name] = file_hash(edited)
            identity = self.identity | {"average": self.average(patch)}
            labelled = "classifier" in self.recipe.flags + patch.flags
            files = named_files(patch.flags, labelled)
            self.keys[patch] = short_hash([identity, code, patch.flags, *files])
        return self.keys[patch]

    def average(self, patch: Patch) -> int:
        """Return the number of last epochs whose weights are averaged."""
        return int(patch.average or self.recipe.average)

    def file(self, job: Job, ending: str = "") -> Path:
        """Return the directory of a run, or a file next to it."""
        return self.folder / job.patch.name / f"seed-{job.seed}{ending}"

    def result(self, patch: Patch, seed: int) -> dict | None:
        """Return the result of a run, or None if it has not finished.

        The same code may have run under another name, before the edit was saved as a patch.
        """
        paths = self.folder.glob(f"*/seed-{seed}.{self.file_key(patch)}.json")
        return next(map(read_json, paths), None)

    def file_key(self, patch: Patch) -> str:
        """Return the part of a file's name that identifies code and processor."""
        return f"{self.key(patch)}-{short_hash([self.processor, self.files])[:4]}"

    def prepare(self, job: Job) -> Path:
        """Write a JSON file with all that a worker needs. Returns its path.

        The run directory is deleted if it is that of other code.
        """
        patch, path, key = job.patch, self.file(job, ".job.json"), self.file_key(job.patch)
        files = {name: self.file(job, end) for name, end in (("run", ""), ("log", ".log"))}
        files |= {"result": self.file(job, f".{key}.json"), "source": self.source(patch)}
        # An edit outside the model could change how the corpus is encoded.
        own = any(not name.startswith(NOT_ENCODING) for name in patch.files)
        files |= {"cache": self.scratch / f"cache-{patch.name}" if own else self.cache}
        files |= {"texts": self.texts}
        if files["run"].exists() and not (path.exists() and read_json(path)["key"] == key):
            shutil.rmtree(files["run"])
        flags = f"{self.recipe.flags} {patch.flags} --seed={self.first_seed + job.seed}".split()
        about = {"name": patch.name, "seed": job.seed, "commit": self.commit}
        about |= {"key": self.key(patch), **self.processor}
        values = {"key": key, "flags": flags, "average": self.average(job.patch), "about": about}
        # An edit of the loop could have state that no checkpoint contains.
        values["resumable"] = not any(x.startswith(("train.py", "training/")) for x in patch.files)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, values | {name: str(file) for name, file in files.items()})
        return path


def progress(log: Path) -> tuple[str, float]:
    """Return what a worker is doing, and the share of its run that is done, from its log."""
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    steps = re.findall(r"\| (\d+)/(\d+) \[[^\r\n\]]*step", text)  # of the progress bar
    step, last = map(int, steps[-1]) if steps else (0, 1)
    if "\nscoring\n" in text:
        return "scoring", 0.9
    return f"step {step:,} of {last:,}" if step else "starting", 0.9 * step / last


def failure(log: Path) -> str:
    """Return the last lines of a traceback in a log, or the last line if there is none."""
    text = log.read_text("utf-8", "replace").strip()
    lines = text.splitlines()[-8 if "Traceback (most recent call last)" in text else -1 :]
    return "\n".join(lines) or "no message"
