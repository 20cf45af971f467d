"""The runs of a recipe: the source of each experiment, the key of its results, and its files.

comparisons/RECIPE/NAME/ has, for each seed, the run directory (seed-N), the output of its worker
(seed-N.log), what the worker was told (seed-N.job.json), and its result (seed-N.KEY.json).
"""

import json
import os
import re
import shlex
import shutil
from importlib import metadata
from pathlib import Path

from ablation.experiments import BASELINE, Experiment, ExperimentError, Recipe, settings, short_hash
from ablation.verdicts import STAGES
from config import Config
from same_code import ROOT, changed_files, code_hashes, file_hash, git, imported_files, syntax_error
from training.records import read_json
from utils import UserError, amount, flag, write_json

DEPENDENCIES = ("tensorflow", "numpy", "sentencepiece", "sacrebleu")  # results depend on them
# The present code scores both sides: it may use only what --against finds in old commits, too.
SHARED_CODE = ("ablation/*.py", "evaluation/metrics.py", "evaluation/scores.py")
FINAL_SEEDS = 100  # those of --final are higher


def hash_files(flags: str) -> list[str]:
    """Return hashes of the files and folders that flags name, such as a corpus or a run.

    Only absolute paths count: runs have other working directories.
    """
    paths = [Path(x) for x in settings(flags).values() if isinstance(x, str) and os.path.isabs(x)]
    files = [file for path in paths for file in sorted([path, *path.rglob("*")])]
    return [f"{file} {file_hash(file)}" for file in files if file.is_file()]


class Workspace:
    """The runs of a recipe on this machine. Copies of the source are written to `scratch`.

    commit: the source of the baseline. final: whether the runs are those of the final score.
    baseline, first_seed: --tune replaces the baseline by itself at another learning rate, and
    judges with seeds that have not chosen it.
    """

    def __init__(
        self, recipe: Recipe, scratch: str | Path, commit: str = "HEAD", final: bool = False
    ):
        self.recipe, self.scratch, self.final, self.keys = recipe, Path(scratch), final, {}
        self.baseline, self.first_seed = BASELINE, 0
        self.commit = git("rev-parse", f"{commit}^{{commit}}").strip()
        self.folder = ROOT / "comparisons" / (f"{recipe.name}-final" if final else recipe.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.texts = self.scratch / "texts.json"  # those that both sides are scored on
        self.running = self.scratch / "running"  # without it, runs save and end
        self.running.touch()
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

    def check(self, experiment: Experiment) -> None:
        """Raise ExperimentError if an experiment cannot be compared with the baseline."""
        name, recipe, source = experiment.name, self.recipe, self.source(experiment)
        python = (source / each for each in experiment.files if each.endswith(".py"))
        for error in filter(None, (syntax_error(x, source) for x in python if x.exists())):
            raise ExperimentError(f"{name} has a syntax error in {error}")
        own, base = settings(experiment.flags), settings(recipe.flags)
        model = base.get("model", Config.model)
        # As `worker.score` returns them.
        known = {"classifier": ["accuracy"], "language_model": ["nats_per_character"]}
        known = known.get(model, ["nats_per_character", "bleu", "exact_match"])
        if recipe.score not in known:
            text = f"recipe {recipe.name}: a {model} has no score {recipe.score}"
            raise ExperimentError(f"{text}: choose {' or '.join(known)}")
        changed = own.keys() | (experiment.changed_settings - base.keys())
        fixed = {"reverse", "lowercase"} if recipe.score != "accuracy" else set()
        fixed |= {"max_length", "tokenizer"} if recipe.lower_is_better else set()
        if not recipe.has_bleu and "word" not in (own.get("tokenizer"), base.get("tokenizer")):
            fixed.discard("tokenizer")  # a language model reads the same text in other pieces
        if flags := ", ".join(map(flag, sorted(changed & fixed))):
            raise ExperimentError(f"{name} changes {flags}: its scores could not be compared")
        kept = ((base | own).get(x, getattr(Config, x)) for x in ("epochs", "keep_checkpoints"))
        if (average := self.average(experiment)) > (most := min(kept)):
            text = f"{name} averages {amount(average, 'epoch')}, of which {most} are kept"
            raise ExperimentError(f"{text}: lower `average`")
        used = imported_files(["train.py", f"model/{model}.py"], source) | {"model/__init__.py"}
        changes = changed_files("", source, self.source(BASELINE))
        others = [x for x in changes if x in used or not re.fullmatch(r"model/.*\.py", x)]
        if not (others or experiment.flags or experiment.average):
            hint = "choose another --recipe" if changes else "it only changes comments"
            raise ExperimentError(f"{name} does not affect recipe {recipe.name}: {hint}")

    def seeds(self, experiment: Experiment, count: int) -> range:
        """Return the first seeds of an experiment. With --final, they depend on the change."""
        own = FINAL_SEEDS + STAGES[-1] * int(experiment.change[:4], 16)  # below the limit of --seed
        first = own if self.final else self.first_seed
        return range(first, first + count)

    def average(self, experiment: Experiment) -> int:
        """Return the number of last epochs whose weights are averaged."""
        return experiment.average or self.recipe.average

    def key(self, experiment: Experiment) -> str:
        """Return a hash of all that a result depends on, except the seed and the machine.

        The texts to score must exist: see `probe`.
        """
        if experiment not in self.keys:
            what = [self.recipe.flags, hash_files(self.recipe.flags), self.packages]
            what += [self.texts.read_text("utf-8"), code_hashes("", self.source(experiment))]
            what += [experiment.flags, self.average(experiment), hash_files(experiment.flags)]
            self.keys[experiment] = short_hash(json.dumps(what))
        return self.keys[experiment]

    # ---- Jobs ----

    def probe(self) -> dict:
        """Write, and return, a job that identifies the arithmetic of a machine.

        It also writes the texts to score, as the baseline's code reads them.
        """
        files = {name: self.scratch / f"probe.{name}" for name in ("job", "log", "result")}
        values = {"sentences": self.recipe.sentences, "final": self.final}
        return self.write_job(files, BASELINE, self.recipe.flags, values)

    def prepare_job(self, experiment: Experiment, seed: int, machine: dict[str, str]) -> dict:
        """Write, and return, all that a worker needs. The run of other code is deleted."""
        start, key = self.folder / experiment.name / f"seed-{seed}", self.key(experiment)
        about = {"experiment": experiment.name, "seed": seed, "final": self.final, "key": key}
        about |= {"baseline": self.key(self.baseline), "change": experiment.change, **machine}
        about |= {"recipe": self.recipe.identity, "commit": self.commit}
        files = {"run": start, "log": start.with_suffix(".log"), "cache": ROOT / ".cache"}
        files["result"] = start.with_suffix(f".{key}-{machine['machine']}.json")
        files["job"] = start.with_suffix(".job.json")
        before = read_json(files["job"])["about"] if files["job"].exists() else {}
        if start.exists() and any(before.get(x) != about[x] for x in ("key", "machine")):
            shutil.rmtree(start)
        start.parent.mkdir(parents=True, exist_ok=True)
        state = changed_files("state", self.source(experiment), self.source(BASELINE))
        values = {"about": about, "average": self.average(experiment), "resumable": not state}
        flags = f"{self.recipe.flags} {experiment.flags} --seed={seed}"
        return self.write_job(files, experiment, flags, values)

    def write_job(
        self, files: dict[str, Path], experiment: Experiment, flags: str, values: dict
    ) -> dict:
        """Write, and return, a job with the paths of its files."""
        files |= {"source": self.source(experiment), "texts": self.texts, "running": self.running}
        job = {name: str(path) for name, path in files.items()} | values
        job |= {"flags": shlex.split(f"--shards=1 {flags}"), "packages": self.packages}
        write_json(job["job"], job)
        return job
