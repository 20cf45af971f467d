"""Recipes, and jobs: one run of an experiment with one seed."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from experiments import patches
from experiments.patches import ExperimentError
from training import records


@dataclass(frozen=True)
class Recipe:
    """Flags of train.py that all runs share, the splits that are scored, and the run directory."""

    flags: list[str]
    splits: list[str]
    folder: str


# Small enough for many runs. --shards 1: each run uses one core.
RECIPES = {
    "mini": Recipe(
        "--num-layers 2 --num-heads 4 --epochs 8 --shards 1".split(),
        ["test", "compositional"],
        "runs/experiments",
    ),
    "ted": Recipe(
        "--corpus ted_hrlr_translate/pt_to_en --batch-tokens 1536 --warmup-steps 2000 "
        "--num-heads 4 --epochs 5 --shards 1".split(),
        ["test"],
        "runs/experiments-ted",
    ),
    "imdb": Recipe(
        "--model classifier --corpus imdb_reviews --tokenizer word --lowercase --vocab-size 20000 "
        "--max-length 600 --batch-tokens 8192 --num-layers 1 --d-model 64 --num-heads 4 --dff 128 "
        "--positions none --dropout-rate 0.3 --word-dropout 0.5 --label-smoothing 0 "
        "--warmup-steps 600 --learning-rate-scale 0.5 --epochs 5 --shards 1".split(),
        ["test"],
        "runs/experiments-imdb",
    ),
}


def is_classifier(flags: list[str]) -> bool:
    """Return whether flags of train.py select the classifier."""
    words = " ".join(flags).replace("=", " ").split()
    models = [value for name, value in zip(words, words[1:], strict=False) if name == "--model"]
    return models[-1:] == ["classifier"]


def for_recipe(recipe: str) -> list[str]:
    """Return the experiments that `--all` runs: of translation, or of classification."""
    labels = is_classifier(RECIPES[recipe].flags)
    kinds = {name: patches.read(name).recipe or "mini" for name in patches.names()}
    return [name for name in kinds if is_classifier(recipe_of(kinds[name]).flags) == labels]


def recipe_of(name: str) -> Recipe:
    """Return a recipe by its name. Raises ExperimentError."""
    if name not in RECIPES:
        raise ExperimentError(f"recipe {name}: choose from {', '.join(RECIPES)}")
    return RECIPES[name]


def default_recipe(names: list[str]) -> str:
    """Return the recipe of the experiments that a command names. Raises ExperimentError."""
    recipes = {patches.read(name).recipe or "mini" for name in names if name != "baseline"}
    if len(recipes) > 1:
        raise ExperimentError("these experiments have different recipes: give --recipe")
    return recipes.pop() if recipes else "mini"


@dataclass
class Job:
    """One run: an experiment with one seed."""

    patch: patches.Patch
    seed: int
    common: list[str]  # flags of train.py that the baseline shares
    splits: list[str]
    folder: Path  # of all experiments
    base: str  # fingerprint of the unpatched source
    tree: Path | None = None  # the patched copy of the source
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.folder / self.patch.name / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        return self.run_dir.with_suffix(".log")

    @property
    def metadata(self) -> Path:
        """File with the `key` of the existing run."""
        return self.run_dir.with_suffix(".json")

    @property
    def key(self) -> dict:
        """Code and flags, which an existing run must share to be reused."""
        return {
            "common": self.common,
            "flags": self.patch.flags,
            "patch": self.patch.digest,
            "base": self.base,
        }

    def write_metadata(self) -> None:
        self.metadata.parent.mkdir(parents=True, exist_ok=True)
        records.write_json(self.metadata, self.key)

    def check(self) -> None:
        """Raise ExperimentError if the existing run has other code or flags."""
        if not self.metadata.exists():
            if self.run_dir.exists():
                raise ExperimentError(
                    f"{self.run_dir} was not created by experiments.run: move it elsewhere"
                )
            return
        old = records.read_json(self.metadata)
        texts = {"common": "flags", "flags": "flags", "patch": "patch", "base": "code"}
        differ = {text: None for key, text in texts.items() if old.get(key) != self.key[key]}
        if differ:
            raise ExperimentError(
                f"{self.run_dir} was trained with other {' and other '.join(differ)}: use --again "
                "to repeat it and keep the old run, --folder to write elsewhere, or --commit to "
                "run an older commit"
            )

    def unscored(self) -> list[str]:
        """Return the splits that have not been scored yet: none if the run is finished."""
        return [s for s in self.splits if not (self.run_dir / f"scores-{s}.json").exists()]

    def move_aside(self) -> None:
        """Rename the existing run and its files."""
        suffix = time.strftime(".until-%Y%m%d-%H%M%S")
        for path in (self.run_dir, self.metadata, self.log):
            if path.exists():
                path.rename(path.with_name(path.name + suffix))

    def result(self) -> str:
        """Summary of a finished run."""
        parts = []
        for split in self.splits:
            scores = records.read_json(self.run_dir / f"scores-{split}.json")
            if "bleu" in scores:
                exact = f"exact match {scores['exact_match']:.1f}"
                parts.append(f"{split} BLEU {scores['bleu']:.1f}, {exact}")
            else:
                parts.append(f"{split} accuracy {100 * scores['accuracy']:.1f}")
        return "; ".join(parts)


def last_line(log: Path) -> str:
    """Return the last line of a log file, or "" if there is none."""
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    return (text.strip().splitlines() or [""])[-1]
