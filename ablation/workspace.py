"""The runs of a recipe: the source of each experiment, the key of its results, and its files.

comparisons/RECIPE/NAME/ has, for each seed, the run directory (seed-N), the output of its worker
(seed-N.log), what the worker was told (seed-N.job.json), and its result (seed-N.KEY.json).
"""

import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

from ablation.experiments import BASELINE, Experiment, ExperimentError, Recipe, settings, short_hash
from ablation.verdicts import STAGES
from config import Config
from same_code import (
    NOT_CODE,
    ROOT,
    changed_files,
    code_hashes,
    file_hash,
    git,
    imported_files,
    syntax_error,
)
from training.records import read_json
from utils import UserError, flag, warn, write_json

DEPENDENCIES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")  # results depend on them
# The present code scores both sides.
SHARED_CODE = ("ablation/*.py", "evaluation/metrics.py", "evaluation/scores.py")
FINAL_SEEDS = 100  # those of --final are higher


def hash_files(flags: str) -> list[str]:
    """Return hashes of the files and folders that flags name, such as a corpus or a run.

    Only absolute paths count: runs have other working directories.
    """
    hashes, values = [], settings(flags).values()
    for path in (Path(value) for value in values if isinstance(value, str)):
        if path.is_absolute():
            files = (file for file in sorted([path, *path.rglob("*")]) if file.is_file())
            hashes += [f"{file.relative_to(path.parent)} {file_hash(file)}" for file in files]
    return hashes


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
        self.running = self.scratch / "running"  # without it, runs save and end
        self.running.touch()
        what = [code_hashes("", self.source(BASELINE)), recipe.flags, recipe.sentences, final]
        what.append(hash_files(recipe.flags))
        self.texts = self.cache / f"texts-{short_hash(what)}.json"
        self.packages = {name: metadata.version(name) for name in DEPENDENCIES}

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

        Warns if a part of it does not affect the recipe.
        """
        name, recipe, source = experiment.name, self.recipe, self.source(experiment)
        python = (source / each for each in experiment.files if each.endswith(".py"))
        if error := syntax_error(filter(Path.exists, python), source):
            raise ExperimentError(f"{name}: {error}")
        own = settings(experiment.flags)
        fixed = {"max_length", "tokenizer"} if recipe.lower_is_better else set()
        fixed |= {"reverse", "lowercase"} if recipe.score != "accuracy" else set()
        for each in sorted(own.keys() & fixed):
            raise ExperimentError(
                f"{name} changes {flag(each)}, so its scores could not be compared with those of "
                "the baseline: do not change this setting"
            )
        average = self.average(experiment)
        epochs = (settings(recipe.flags) | own).get("epochs", Config.epochs)
        if average > epochs:
            raise ExperimentError(
                f"{name} averages {average} of {epochs} epochs: lower `average` in "
                "experiments/recipes.toml, or of the experiment"
            )
        idle = self.unused_files(experiment)
        for each in idle:
            warn(f"{name}: {each} does not affect recipe {recipe.name}")
        changes = changed_files("", source, self.source(BASELINE))
        if {*changes} <= {*idle} and self.settings(experiment) == self.settings(BASELINE):
            raise ExperimentError(
                f"{name} does not affect recipe {recipe.name}: give --recipe, or edit code that "
                f"runs, and not only {', '.join([*NOT_CODE, *SHARED_CODE[1:]])}"
            )

    def unused_files(self, experiment: Experiment) -> list[str]:
        """Return the changed modules of model/ that the model of the recipe does not import.

        There are none if model/__init__.py, which chooses the model, has changed, or if the file of
        the model is not named like it.
        """
        source = self.source(experiment)
        values = settings(f"{self.recipe.flags} {experiment.flags}")
        model = f"model/{values.get('model', Config.model)}.py"
        if "model/__init__.py" in experiment.files or not (source / model).exists():
            return []
        used = imported_files(["train.py", model], source)
        changed = [x for x in experiment.files if x.startswith("model/") and x.endswith(".py")]
        return [name for name in changed if name not in used]

    # ---- Results ----

    def seeds(self, experiment: Experiment, count: int) -> range:
        """Return the first seeds of an experiment. With --final, no other change has them."""
        first = FINAL_SEEDS + STAGES[-1] * int(experiment.change[:6], 16) if self.final else 0
        return range(first, first + count)

    def settings(self, experiment: Experiment) -> list:
        """Return what a result depends on besides code and texts."""
        return [experiment.flags, self.average(experiment), hash_files(experiment.flags)]

    def key(self, experiment: Experiment) -> str:
        """Return a hash of all that a result depends on, except the seed and the machine.

        The texts to score must exist: see `probe`.
        """
        if experiment not in self.keys:
            what = [self.recipe.flags, hash_files(self.recipe.flags), self.packages]
            what += [self.texts.read_text("utf-8"), code_hashes("", self.source(experiment))]
            self.keys[experiment] = short_hash([*what, *self.settings(experiment)])
        return self.keys[experiment]

    def average(self, experiment: Experiment) -> int:
        """Return the number of last epochs whose weights are averaged."""
        return experiment.average or self.recipe.average

    def probe(self) -> dict:
        """Write, and return, a job that identifies the arithmetic of a machine.

        It also writes the texts that both sides are scored on, as the baseline's code reads them.
        """
        if not self.texts.exists():
            print("preparing the texts to score", file=sys.stderr, flush=True)
        files = {name: self.scratch / f"probe.{name}" for name in ("job", "log", "result")}
        files |= {"source": self.source(BASELINE)}
        about = {"sentences": self.recipe.sentences, "final": self.final}
        return self.write_job(files, self.recipe.flags, about)

    def prepare_job(self, experiment: Experiment, seed: int, machine: dict[str, str]) -> dict:
        """Write, and return, all that a worker needs. The run of other code is deleted."""
        start, key = self.folder / experiment.name / f"seed-{seed}", self.key(experiment)
        about = {"experiment": experiment.name, "seed": seed, "final": self.final, "key": key}
        about |= {"baseline": self.key(BASELINE), "change": experiment.change, **machine}
        about |= {"recipe": self.recipe.identity, "commit": self.commit}
        files = {"run": start, "source": self.source(experiment), "cache": self.cache}
        files |= {"log": start.with_suffix(".log"), "job": start.with_suffix(".job.json")}
        files["result"] = start.with_suffix(f".{key}-{machine['machine']}.json")
        before = read_json(files["job"])["about"] if files["job"].exists() else {}
        if start.exists() and any(before.get(x) != about[x] for x in ("key", "machine")):
            shutil.rmtree(start)
        start.parent.mkdir(parents=True, exist_ok=True)
        state = changed_files("state", self.source(experiment), self.source(BASELINE))
        job = {"about": about, "average": self.average(experiment), "resumable": not state}
        return self.write_job(files, f"{self.recipe.flags} {experiment.flags} --seed={seed}", job)

    def write_job(self, files: dict[str, Path], flags: str, values: dict) -> dict:
        """Write, and return, a job with the paths of its files."""
        files |= {"texts": self.texts, "running": self.running}
        job = {name: str(path) for name, path in files.items()} | values
        job |= {"flags": shlex.split(f"--shards=1 {flags}"), "packages": self.packages}
        write_json(job["job"], job)
        return job
