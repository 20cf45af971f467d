"""The runs of a recipe: the source of each experiment, the key of its results, and its files.

comparisons/RECIPE/NAME/ has, for each seed, the run directory (seed-N), the output of its worker
(seed-N.log), what the worker was told (seed-N.job.json), and its result (seed-N.KEY.json).
"""

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from ablation.executor import environment
from ablation.experiments import (
    BASELINE,
    Experiment,
    ExperimentError,
    Recipe,
    flag_values,
    short_hash,
)
from config import Config
from same_code import (
    CODE,
    NOT_CODE,
    ROOT,
    can_change,
    code_hashes,
    file_hash,
    git,
    imported_modules,
)
from training.records import read_json
from utils import UserError, flag, warn, write_json

DEPENDENCIES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")  # results depend on them
# The present code scores both sides.
SHARED_CODE = ("ablation/*.py", "evaluation/metrics.py", "evaluation/scores.py")
FINAL_SEEDS = 100  # the first seed of --final


def hash_files(flags: str) -> list[str]:
    """Return hashes of the files and folders that flags name, such as a corpus or a run.

    Raises ExperimentError for a relative path, because runs have other working directories.
    """
    paths = [Path(value) for value in flag_values(flags).values() if value]
    if relative := [path for path in paths if not path.is_absolute() and (ROOT / path).exists()]:
        raise ExperimentError(f"{relative[0]}: give an absolute path, because runs start elsewhere")
    hashes = []
    for path in (path for path in paths if path.exists()):
        for file in (x for x in sorted([path, *path.rglob("*")]) if x.is_file()):
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            hashes.append(f"{file.relative_to(path.parent)} {digest}")
    return hashes


def counts(name: str) -> bool:
    """Return whether an edited file counts even if no other file imports it: packages do."""
    folder, slash, _ = name.partition("/")
    return bool(slash) and folder in CODE or name in ("train.py", "config.py", "utils.py")


def settings(folder: Path) -> dict[str, str]:
    """Return the default of each setting in config.py, as code."""
    path = folder / "config.py"
    nodes = ast.walk(ast.parse(path.read_bytes() if path.exists() else b""))
    fields = [x for x in nodes if isinstance(x, ast.AnnAssign) and isinstance(x.value, ast.Call)]
    return {x.target.id: ast.unparse(x.value.args[0]) for x in fields if x.value.args}


class Workspace:
    """The runs of a recipe on this machine. Copies of the source are written to `scratch`.

    commit: the source of the baseline. final: whether the runs are those of the final score.
    """

    def __init__(
        self, recipe: Recipe, scratch: str | Path, commit: str = "HEAD", final: bool = False
    ):
        self.recipe, self.scratch, self.final, self.keys = recipe, Path(scratch), final, {}
        self.commit = git("rev-parse", f"{commit}^{{commit}}").strip()
        self.cache = ROOT / ".cache"
        self.folder = ROOT / "comparisons" / (f"{recipe.name}-final" if final else recipe.name)
        for folder in (self.cache, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        files = hash_files(recipe.flags)
        what = [code_hashes("", self.source(BASELINE)), recipe.flags, recipe.sentences, final]
        self.texts = self.cache / f"texts-{short_hash([what, files])}.json"
        if not self.texts.exists():
            self.write_texts()
        self.packages = {name: metadata.version(name) for name in DEPENDENCIES}
        texts = short_hash(self.texts.read_text("utf-8"))
        self.identity = [recipe.flags, files, texts, self.packages]

    def write_texts(self) -> None:
        """Write the texts that both sides are scored on, as the baseline's code reads them.

        Raises ExperimentError.
        """
        print("preparing the texts to score", file=sys.stderr, flush=True)
        job = {"flags": self.recipe.flags.split(), "sentences": self.recipe.sentences}
        words = ["texts", json.dumps(job | {"final": self.final}), str(self.texts)]
        options = {"cwd": self.source(BASELINE), "env": environment(), "stderr": subprocess.PIPE}
        done = subprocess.run([sys.executable, "-m", "ablation.worker", *words], **options)
        if done.returncode:
            *_, message = ["no message", *done.stderr.decode("utf-8", "replace").splitlines()]
            raise ExperimentError(f"the texts to score cannot be read: {message}")

    def source(self, experiment: Experiment) -> Path:
        """Return a patched copy of the baseline's source, with the present code of `SHARED_CODE`.

        Raises ExperimentError.
        """
        folder, archive = self.scratch / experiment.name, self.scratch / "source.tar"
        if folder.exists():
            return folder
        git("archive", f"--output={archive}", self.commit)
        shutil.unpack_archive(archive, folder, filter="data")
        try:
            experiment.apply(folder)
        except UserError as error:
            hint = f"python -m ablation --refresh {experiment.name} may fix it"
            raise ExperimentError(f"{experiment.name}: {error}; {hint}") from None
        for path in (path for pattern in SHARED_CODE for path in ROOT.glob(pattern)):
            (folder / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
            shutil.copy(path, folder / path.relative_to(ROOT))
        return folder

    # ---- Checks, before anything runs ----

    def check(self, experiment: Experiment) -> None:
        """Raise ExperimentError if an experiment cannot be compared with the baseline.

        Warns if a part of it has no effect.
        """
        name, recipe, idle = experiment.name, self.recipe, self.unused_files(experiment)
        self.check_settings(experiment)
        for file in idle:
            warn(f"recipe {recipe.name} never executes {file}, which {name} changes")
        if idle and idle == experiment.files and not experiment.flags:
            raise ExperimentError(f"recipe {recipe.name} executes nothing of {name}: give --recipe")
        if self.key(experiment) == self.key(BASELINE):
            raise ExperimentError(
                f"{name} changes nothing that can change a score: edit code, not only comments or "
                f"docstrings, and not {', '.join([*NOT_CODE, *SHARED_CODE[1:]])}"
            )

    def check_settings(self, experiment: Experiment) -> None:
        """Raise ExperimentError if an experiment changes settings that must be equal, or cannot
        work. Warns if an edited default has no effect.
        """
        recipe, name, own = self.recipe, experiment.name, flag_values(experiment.flags)
        edited = set()
        if "config.py" in experiment.files:
            both = (settings(self.source(x)).items() for x in (experiment, BASELINE))
            edited = {setting for setting, _ in set.symmetric_difference(*map(set, both))}
        fixed = {"max_length", "tokenizer"} if recipe.lower_is_better else set()
        fixed |= {"reverse", "lowercase"} if recipe.score != "accuracy" else set()
        for each in sorted((edited | own.keys()) & fixed):
            raise ExperimentError(
                f"{name} changes {flag(each)}, so its scores could not be compared with those of "
                "the baseline: leave this setting as it is"
            )
        given = flag_values(recipe.flags)
        epochs = int((given | own).get("epochs", Config.epochs))
        average = self.average(experiment)
        if average > epochs:
            raise ExperimentError(
                f"{name} averages {average} of {epochs} epochs: lower `average` in "
                "experiments/recipes.toml, or of the experiment"
            )
        for each in sorted(edited & given.keys() - own.keys()):
            warn(f"the default of {flag(each)} has no effect: recipe {recipe.name} sets this flag")

    def unused_files(self, experiment: Experiment) -> list[str]:
        """Return the changed modules of model/ that the model of the recipe does not import."""
        model = flag_values(f"{self.recipe.flags} {experiment.flags}").get("model", "transformer")
        folder, left, used = self.source(experiment), ["train.py", f"model/{model}.py"], set()
        while left:
            used.add(file := left.pop())
            content = (folder / file).read_bytes() if (folder / file).exists() else b""
            names = (f"{module.replace('.', '/')}.py" for module in imported_modules(content))
            left += [name for name in names if (folder / name).exists() and name not in used]
        changed = [x for x in experiment.files if x.startswith("model/") and x.endswith(".py")]
        return [name for name in changed if name not in used]

    # ---- Results ----

    def key(self, experiment: Experiment) -> str:
        """Return a hash of all that a result depends on, except the seed and the machine."""
        if experiment not in self.keys:
            folder, before = self.source(experiment), self.source(BASELINE)
            code = code_hashes("", folder)
            for name in filter(counts, experiment.files):  # of a package, whatever can_change says
                own, old = folder / name, before / name
                if own.exists() and (not old.exists() or file_hash(own) != file_hash(old)):
                    code[name] = file_hash(own)
            what = [self.identity, code, experiment.flags, self.average(experiment)]
            self.keys[experiment] = short_hash([*what, hash_files(experiment.flags)])
        return self.keys[experiment]

    def average(self, experiment: Experiment) -> int:
        """Return the number of last epochs whose weights are averaged."""
        return experiment.average or self.recipe.average

    def probe(self) -> dict:
        """Write, and return, a job that fingerprints the arithmetic of a machine."""
        files = {name: self.scratch / f"probe.{name}" for name in ("job", "log", "result")}
        job = {name: str(x) for name, x in (files | {"source": self.source(BASELINE)}).items()}
        write_json(files["job"], job)
        return job

    def prepare_job(self, experiment: Experiment, seed: int, machine: dict[str, str]) -> dict:
        """Write, and return, all that a worker needs. The run of other code is deleted."""
        start, key = self.folder / experiment.name / f"seed-{seed}", self.key(experiment)
        path = start.with_name(f"{start.name}.job.json")
        about = {"experiment": experiment.name, "seed": seed, "final": self.final, "key": key}
        about |= {"baseline": self.key(BASELINE), "change": experiment.change, **machine}
        about |= {"recipe": self.recipe.identity, "commit": self.commit}
        before = read_json(path)["about"] if path.exists() else {}
        if start.exists() and any(before.get(x) != about[x] for x in ("key", "machine")):
            shutil.rmtree(start)
        effects = set().union(*map(can_change, filter(counts, experiment.files)))
        files = {"run": start, "log": start.with_name(f"{start.name}.log"), "job": path}
        files |= {"result": start.with_name(f"{start.name}.{key}-{machine['machine']}.json")}
        files |= {"source": self.source(experiment), "texts": self.texts, "cache": self.cache}
        seed += FINAL_SEEDS if self.final else 0
        job = {"flags": f"{self.recipe.flags} {experiment.flags} --seed={seed}".split()}
        job |= {"average": self.average(experiment), "resumable": "state" not in effects}
        job |= {"about": about, "packages": self.packages}
        job |= {name: str(file) for name, file in files.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, job)
        return job
