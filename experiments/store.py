"""Stored results, experiments/results/RECIPE.json, and whether they count on this machine."""

from enum import Enum
from pathlib import Path

from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import Pairs, Recipe
from experiments.runs import Runner
from training.records import read_json
from utils import warn, write_json


class Status(Enum):
    """Whether the stored results of an experiment count here, and why."""

    ABSENT = "no stored results, so every seed runs here"
    CURRENT = "stored results of the same code and packages are used"
    UNVERIFIED = "seed 0 runs here first, to verify them"
    REPRODUCED = "seed 0 still gives identical scores, so they are used"
    DIFFERENT = "seed 0 gives another result, so they are not used"
    UNVERIFIABLE = "none of them is of this processor, so they are not used"


COUNTS = Status.CURRENT, Status.REPRODUCED
EQUAL = "equal to the baseline in every digit"
PROCESSOR = "vector instructions"  # what identifies the processor of a run


def read_stored(recipe: Recipe) -> dict | None:
    """Return what `Results.store` has written for a recipe; None if its flags were others."""
    path = patches.HERE / "results" / f"{recipe.name}.json"
    stored = read_json(path) | {"recipe": recipe.name} if path.exists() else None
    if stored and stored["identity"]["flags"] != recipe.flags:
        warn(f"{path} is not used: it has other flags than the recipe; --store replaces it")
        return None
    return stored


def changed(stored: dict) -> set[str]:
    """Return the stored experiments whose patch has changed since, or was deleted."""
    present = [BASELINE, *map(patches.read, patches.names())]
    current = {patch.name: patch.for_recipe(stored["recipe"]).change for patch in present}
    return {name for name, row in stored["rows"].items() if row["change"] != current.get(name)}


def pair(own: list[dict], baseline: list[dict], processor: str | None = None) -> Pairs:
    """Pair the runs of an experiment with those of the baseline: equal seed, equal processor.

    If a seed has several pairs, that of `processor` is taken.
    """
    partners = {(run["seed"], run[PROCESSOR]): run for run in baseline}
    pairs = {}
    for run in sorted(own, key=lambda run: run[PROCESSOR] != processor):
        if partner := partners.get((run["seed"], run[PROCESSOR])):
            pairs.setdefault(run["seed"], (run, partner))
    return pairs


def stored_pairs(stored: dict) -> dict[str, Pairs]:
    """Return the pairs of each stored experiment whose patch is unchanged."""
    gone, rows = changed(stored), stored["rows"]
    baseline = rows[BASELINE.name]["runs"]
    names = [name for name in rows if name not in gone and name != BASELINE.name]
    return {name: pair(rows[name]["runs"], baseline) for name in names}


def equal(pairs: Pairs) -> bool:
    """Return whether there are pairs, and all scores are the baseline's, in every digit."""
    same = [own.get("scores", {}) == base.get("scores") for own, base in pairs.values()]
    return bool(same) and all(same)


def scores_by_row(recipe: Recipe, pairs: dict[str, Pairs]) -> tuple[stats.Scores, set]:
    """Return the scores of pairs for `stats.spread`, and which rows are baselines.

    A block is a run of the baseline. Baselines of other code are rows of their own. Experiments
    whose scores are all equal to the baseline's say nothing about seeds, and are left out.
    """
    scores, baselines = {}, set()
    for name, each in ((n, p) for n, p in pairs.items() if any(recipe.differences(p))):
        for seed, (own, base) in each.items():
            block, row = (seed, base[PROCESSOR], base["key"]), (BASELINE.name, base["key"])
            scores.setdefault(row, {})[block] = recipe.value(base)
            scores.setdefault(name, {})[block] = recipe.value(own)
            baselines.add(row)
    return scores, baselines


def spread(recipe: Recipe, pairs: dict[str, Pairs]) -> tuple[stats.Sigma, set[str]]:
    """Return the standard deviation of a difference, and the experiments that vary more."""
    return stats.spread(*scores_by_row(recipe, pairs))


class Results:
    """Results of experiments: stored ones that count, and those of runs here.

    stored: what `read_stored` returns.
    """

    def __init__(self, runner: Runner, stored: dict | None):
        self.runner, self.recipe = runner, runner.recipe
        self.stored = stored or {"identity": {}, "rows": {}, "recipe": runner.recipe.name}
        self.here = runner.processor[PROCESSOR]

    def stored_runs(self, patch: Patch) -> list[dict]:
        """Return the stored results of an experiment; none if its patch has changed."""
        row = self.stored["rows"].get(patch.name)
        return row["runs"] if row and row["change"] == patch.change else []

    def status(self, patch: Patch) -> Status:
        """Return whether the stored results of an experiment count."""
        stored = self.stored_runs(patch)
        if not stored:
            return Status.ABSENT
        if self.stored["rows"][patch.name]["key"] == self.runner.key(patch):
            return Status.CURRENT
        first = [run for run in stored if run["seed"] == 0 and run[PROCESSOR] == self.here]
        if not first:
            return Status.UNVERIFIABLE
        if not (run := self.runner.result(patch, 0)):
            return Status.UNVERIFIED
        one, other = (each.get("diverged", each.get("scores")) for each in (run, first[0]))
        return Status.REPRODUCED if one == other else Status.DIFFERENT

    def runs(self, patch: Patch, trust: bool = False) -> list[dict]:
        """Return the results of an experiment. trust: whether unverified ones count, too."""
        counts = (*COUNTS, Status.UNVERIFIED) if trust else COUNTS
        stored = self.stored_runs(patch) if self.status(patch) in counts else []
        seeds = range(self.recipe.stages[-1])
        runs = [run for seed in seeds if (run := self.runner.result(patch, seed))]
        known = {(run["seed"], run[PROCESSOR]) for run in stored}
        return stored + [run for run in runs if (run["seed"], run[PROCESSOR]) not in known]

    def pairs(self, patch: Patch, seeds: int, trust: bool = False) -> Pairs:
        """Return the pairs of the first seeds, on this processor where there are several."""
        pairs = pair(self.runs(patch, trust), self.runs(BASELINE, trust), self.here)
        return {seed: pairs[seed] for seed in sorted(pairs) if seed < seeds}

    def missing(self, patch: Patch, seeds: int, trust: bool = False) -> set[int]:
        """Return the first seeds that have no result on this processor."""
        runs = self.runs(patch, trust)
        return {*range(seeds)} - {run["seed"] for run in runs if run[PROCESSOR] == self.here}

    def others(self, chosen: list[Patch]) -> dict[str, Pairs]:
        """Return the stored pairs of all experiments but the chosen ones.

        Their standard deviation is used even if their scores do not count here: seeds vary alike on
        other processors, and an experiment that varies more is an outlier.
        """
        stored = self.stored if self.stored["rows"] else read_stored(self.recipe)
        pairs, names = stored_pairs(stored) if stored else {}, {patch.name for patch in chosen}
        return {name: each for name, each in pairs.items() if name not in names}

    def describe(self, patch: Patch) -> str:
        """Say whether the stored results of an experiment count."""
        status, old = self.status(patch), self.stored["identity"]
        if status in (Status.ABSENT, Status.CURRENT):
            return f"{patch.name}: {status.value}"
        names = [name for name, new in self.runner.identity.items() if new != old.get(name)]
        what, count = ", ".join(names) or "code or packages", len(self.stored_runs(patch))
        return f"{patch.name}: changed since {count} results were stored: {what}; {status.value}"

    def check_store(self, chosen: list[Patch]) -> None:
        """Raise ExperimentError if `store` would lose rows whose baseline does not count here."""
        kept = {BASELINE.name} | changed(self.stored) | {patch.name for patch in chosen}
        lost, status = self.stored["rows"].keys() - kept, self.status(BASELINE)
        if lost and status not in (*COUNTS, Status.UNVERIFIED):
            raise ExperimentError(
                f"the stored baseline does not count here ({status.value}), so --store would "
                f"remove the experiments measured with it: leave out --store, or name these, too: "
                f"{', '.join(sorted(lost))}"
            )

    def store(self, chosen: list[Patch]) -> Path:
        """Store the results of experiments, and of the baseline, next to other stored ones.

        Experiments without any effect are left out. Returns the path. Raises ExperimentError.
        """
        self.stored = read_stored(self.recipe) or self.stored  # another command may have written
        self.check_store(chosen)
        before, last = self.stored["rows"], self.recipe.stages[-1]
        gone = changed(self.stored) | {patch.name for patch in chosen}
        rows = {name: row for name, row in before.items() if name not in gone}
        for patch in (BASELINE, *chosen):
            if patch != BASELINE and equal(self.pairs(patch, last)):
                print(f"{patch.name} is not stored: it is {EQUAL}")
                continue
            row = {"change": patch.change, "key": self.runner.key(patch), "runs": self.runs(patch)}
            rows[patch.name] = row
            replaced = [run for run in self.stored_runs(patch) if run not in row["runs"]]
            if replaced:
                print(f"{patch.name}: {len(replaced)} stored results do not count: replaced")
        if lost := ", ".join(sorted(before.keys() - rows - {patch.name for patch in chosen})):
            print(f"no longer stored, because the patch has changed or was deleted: {lost}")
        path = patches.HERE / "results" / f"{self.recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"identity": self.runner.identity, "rows": rows})
        return path
