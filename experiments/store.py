"""Stored results, experiments/results/RECIPE.json, and whether they count on this machine."""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from experiments import patches, stats
from experiments.patches import BASELINE, Patch
from experiments.recipes import Recipe
from experiments.runs import Runner
from training.records import read_json
from utils import write_json


class Status(Enum):
    """Whether the stored results of an experiment count here, and why."""

    ABSENT = "no stored results, so every seed runs here"
    CURRENT = "stored results of the same code, packages and processor are used"
    UNVERIFIED = "seed 0 runs here first, to verify them"
    REPRODUCED = "seed 0 still gives identical weights, so they are used"
    DIFFERENT = "seed 0 gives another result, so they are not used"


COUNTS = Status.CURRENT, Status.REPRODUCED


def read_stored(recipe: str) -> dict | None:
    """Return what `Results.store` has written for a recipe, or None."""
    path = patches.HERE / "results" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


def changed(stored: dict) -> set[str]:
    """Return the stored experiments whose patch has changed since, or was deleted."""
    current = {name: patches.read(name).change for name in (BASELINE.name, *patches.names())}
    return {name for name, row in stored["rows"].items() if row["change"] != current.get(name)}


def stored_scores(recipe: Recipe, stored: dict, chosen: Iterable[str] = ()) -> list[stats.Scores]:
    """Return the scores of the stored experiments except outliers and the chosen ones."""
    scores = {name: recipe.values(row["runs"]) for name, row in stored["rows"].items()}
    baseline = scores.pop(BASELINE.name)
    scores = {name: values for name, values in scores.items() if name not in chosen}
    outliers = stats.outliers(scores, baseline)
    return [values for name, values in scores.items() if name not in outliers]


class Results:
    """Results of experiments: stored ones that count, and those of runs here.

    stored: what `read_stored` returns.
    """

    def __init__(self, runner: Runner, stored: dict | None):
        self.runner, self.recipe = runner, runner.recipe
        self.stored = stored or {"identity": {}, "rows": {}}

    def stored_runs(self, patch: Patch) -> dict[int, dict]:
        """Return the stored results of an experiment by seed; none if its patch has changed."""
        row = self.stored["rows"].get(patch.name)
        same = row and row["change"] == patch.change
        return {run["seed"]: run for run in row["runs"]} if same else {}

    def status(self, patch: Patch) -> Status:
        """Return whether the stored results of an experiment count."""
        stored = self.stored_runs(patch)
        if not stored:
            return Status.ABSENT
        if self.stored["rows"][patch.name]["key"] == self.runner.key(patch):
            return Status.CURRENT
        if not (here := self.runner.result(patch, 0)):
            return Status.UNVERIFIED
        one, other = (
            (run.get("weights"), run.get("scores", {}).get(self.recipe.score), run.get("diverged"))
            for run in (here, stored.get(0, {}))
        )
        return Status.REPRODUCED if one == other else Status.DIFFERENT

    def get(self, patch: Patch, seeds: int, trust: bool = False) -> list[dict]:
        """Return the results of the first seeds. trust: whether unverified ones count, too."""
        counts = (*COUNTS, Status.UNVERIFIED) if trust else COUNTS
        stored = self.stored_runs(patch) if self.status(patch) in counts else {}
        runs = [stored.get(seed) or self.runner.result(patch, seed) for seed in range(seeds)]
        return [run for run in runs if run]

    def baseline(self) -> list[dict]:
        """Return the results of the baseline: all that are stored, if they count."""
        return self.get(BASELINE, max(self.recipe.stages[-1], len(self.stored_runs(BASELINE))))

    def prior(self, chosen: list[Patch]) -> stats.Sigma:
        """Return the standard deviation within the stored experiments except the chosen ones."""
        if self.status(BASELINE) in (Status.ABSENT, Status.DIFFERENT):
            return stats.NO_SCORES
        names = {patch.name for patch in chosen}
        return stats.pool(*stored_scores(self.recipe, self.stored, names))

    def describe(self, patch: Patch) -> str:
        """Say whether the stored results of an experiment count."""
        status, old = self.status(patch), self.stored["identity"]
        if status in (Status.ABSENT, Status.CURRENT):
            return f"{patch.name}: {status.value}"
        names = [name for name, new in self.runner.identity.items() if new != old.get(name)]
        what, count = ", ".join(names) or "code", len(self.stored_runs(patch))
        return f"{patch.name}: changed since {count} results were stored: {what}; {status.value}"

    def equal(self, patch: Patch, seeds: int) -> bool:
        """Return whether each score of an experiment is that of the baseline, in every digit."""
        own, baseline = (
            {run["seed"]: self.recipe.values([run])[0] for run in runs}
            for runs in (self.get(patch, seeds), self.baseline())
        )
        return own.items() <= baseline.items()

    def store(self, chosen: list[Patch]) -> Path:
        """Store the results of experiments, and of the baseline, next to other stored ones.

        Experiments without any effect are left out. Returns the path.
        """
        rows, before, last = {}, self.stored["rows"], self.recipe.stages[-1]
        if self.status(BASELINE) in COUNTS:
            gone = changed(self.stored) | {patch.name for patch in chosen}
            rows = {name: row for name, row in before.items() if name not in gone}
        for patch in (BASELINE, *(patch for patch in chosen if not self.equal(patch, last))):
            runs = self.baseline() if patch == BASELINE else self.get(patch, last)
            row = {"change": patch.change, "key": self.runner.key(patch), "runs": runs}
            rows[patch.name] = row | {"baseline": self.runner.key(BASELINE)}
        if lost := ", ".join(sorted(before.keys() - rows)):
            print(f"no longer stored, because the baseline or the patch has changed: {lost}")
        path = patches.HERE / "results" / f"{self.recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"identity": self.runner.identity, "rows": rows})
        return path
