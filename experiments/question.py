"""Questions: which runs they need, which stored results count, and the verdicts."""

import math
import statistics
from collections.abc import Iterable
from pathlib import Path

from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import Recipe
from experiments.runs import Job, Setup
from training.machine import cores
from training.records import read_json
from utils import write_json

NO_EFFECT = "equal to the baseline in every digit: this change has no effect on the headline"


def read_stored(recipe: str) -> dict | None:
    """Return what `Question.store` has written for a recipe, or None."""
    path = patches.HERE / "results" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


def changed(stored: dict) -> set[str]:
    """Return the stored experiments whose patch has changed since, or was deleted."""
    current = {name: patches.read(name).change for name in (BASELINE.name, *patches.names())}
    return {name for name, row in stored["rows"].items() if row["change"] != current.get(name)}


def baseline_scores(recipe: Recipe, results: list[dict]) -> list[float]:
    """Return the scores of the baseline. Raises ExperimentError without any, or if one diverged."""
    if not results:
        raise ExperimentError("the baseline has no finished run, so nothing can be compared")
    for run in results:
        if why := run.get("diverged"):
            raise ExperimentError(f"the baseline diverged with seed {run['seed']}: {why}")
    return recipe.values(results)


def stored_rows(recipe: Recipe, stored: dict, chosen: Iterable[str] = ()) -> list[list[float]]:
    """Return the healthy rows of the stored experiments other than the chosen ones."""
    rows = {name: recipe.values(row["runs"]) for name, row in stored["rows"].items()}
    baseline = rows.pop(BASELINE.name)
    rows = {name: row for name, row in rows.items() if name not in chosen}
    unhealthy = stats.unhealthy(rows, baseline)
    return [row for name, row in rows.items() if name not in unhealthy]


def judge_by_look(
    recipe: Recipe, results: dict[str, list[dict]], prior: stats.Sigma
) -> dict[str, stats.Verdict]:
    """Judge the experiments at each look, with the seeds that belong to it. A decision is final.

    results: those of the experiments and of the baseline. Raises ExperimentError.
    """
    rows, verdicts, baseline = {}, {}, baseline_scores(recipe, results[BASELINE.name])
    for look in recipe.looks:
        decided = {name: v for name, v in verdicts.items() if v.word != "undecided"}
        for name in results:
            if name not in decided and name != BASELINE.name:
                rows[name] = recipe.values([run for run in results[name] if run["seed"] < look])
        verdicts = stats.judge(rows, baseline, recipe.delta, recipe.looks, prior) | decided
    return verdicts


class Question:
    """Experiments, the baseline that they are compared with, and the verdicts.

    The stored results of an experiment count if they were measured with the same code, packages and
    processor, or if seed 0, run here, ends with the same weights and headline, in every bit.
    """

    def __init__(self, setup: Setup, chosen: list[Patch], stored: dict | None):
        self.setup, self.recipe, self.chosen = setup, setup.recipe, chosen
        self.stored = stored or {"identity": {}, "code": {}, "rows": {}}
        self.rows, self.failed = self.stored["rows"], {}

    def stored_runs(self, patch: Patch) -> dict[int, dict]:
        """Return the stored results of an experiment by seed; none if its patch has changed."""
        row = self.rows.get(patch.name)
        same = row and row["change"] == patch.change
        return {run["seed"]: run for run in row["runs"]} if same else {}

    def stored_is_valid(self, patch: Patch) -> bool | None:
        """Return whether the stored results count, or None until seed 0 has run here."""
        stored = self.stored_runs(patch)
        if not stored or self.rows[patch.name]["key"] == self.setup.key(patch):
            return bool(stored)
        here = self.setup.result(patch, 0)
        return here and self.judged(here) == self.judged(stored.get(0, {}))

    def judged(self, result: dict) -> tuple:
        """Return the weights of a run and the score that is judged, or why it diverged."""
        score = result.get("scores", {}).get(self.recipe.headline)
        return result.get("weights"), score, result.get("diverged")

    def results(self, patch: Patch, seeds: int) -> list[dict]:
        """Return the results of the first seeds: stored ones that count, and those of here."""
        stored = self.stored_runs(patch) if self.stored_is_valid(patch) else {}
        runs = [stored.get(seed) or self.setup.result(patch, seed) for seed in range(seeds)]
        return [run for run in runs if run]

    def baseline(self) -> list[dict]:
        """Return the results of the baseline: all that are stored, if they count."""
        return self.results(BASELINE, max(self.recipe.looks[-1], len(self.stored_runs(BASELINE))))

    def prior(self) -> stats.Sigma:
        """Return the standard deviation within the stored experiments that are not asked about."""
        if self.stored_is_valid(BASELINE) is False:
            return stats.NO_ROWS
        chosen = {patch.name for patch in self.chosen}
        return stats.pool(*stored_rows(self.recipe, self.stored, chosen))

    def seeds(self, waiting: list[Patch], look: int) -> list[tuple[Patch, int]]:
        """Return the numbers of seeds that a look needs: all looks need the whole baseline."""
        return [(BASELINE, self.recipe.looks[-1]), *((patch, look) for patch in waiting)]

    def jobs(self, waiting: list[Patch], look: int) -> list[Job]:
        """Return the runs of a look that are left, sorted by seed.

        If seed 0 decides whether stored results count, the other seeds wait for it.
        """
        jobs = []
        for patch, seeds in self.seeds(waiting, look):
            seeds = 1 if self.stored_is_valid(patch) is None else seeds
            finished = {result["seed"] for result in self.results(patch, seeds)}
            jobs += [Job(patch, seed) for seed in range(seeds) if seed not in finished]
        jobs = [job for job in jobs if job not in self.failed]
        return sorted(jobs, key=lambda job: job.seed)

    def plan(self) -> str:
        """Describe the smallest detectable effect, and the time it takes on this machine."""
        recipe, text = self.recipe, ""
        baseline = self.baseline() or [*self.stored_runs(BASELINE).values()]
        scores = baseline_scores(recipe, baseline) if baseline else []
        sigma = stats.pool(scores, prior=self.prior())
        if sigma.df:
            text = f"standard deviation of a run: {sigma.value:.2f} points\n"
            m = max(len(scores), recipe.looks[-1])
            sizes = stats.detectable(sigma, recipe.delta, recipe.looks, m, len(self.chosen))
            for n, size in zip(recipe.looks, sizes, strict=True):
                if size < math.inf:
                    text += f"{n} seeds detect a difference of {size:.2f} with 80 % power\n"
        finished = [read_json(path) for path in self.setup.folder.glob("*/seed-*.*.json")]
        here = [run for run in finished if "seconds" in run]
        times = [run["seconds"] for run in here or baseline if "seconds" in run]
        minutes = statistics.median(sum(each.values()) / 60 for each in times) if times else 0
        for look in sorted({recipe.looks[0], recipe.looks[-1]}):
            seeds = self.seeds(self.chosen, look)
            unknown = [(p, n) for p, n in seeds if self.stored_is_valid(p) is None]
            stored = [seed in self.stored_runs(p) for p, n in unknown for seed in range(1, n)]
            runs, workers = len(self.jobs(self.chosen, look)) + stored.count(False), len(cores())
            time = f", about {math.ceil(runs / workers) * minutes:.0f} minutes" if times else ""
            text += f"{look} seeds: {runs} runs left{time} on {workers} cores"
            more = f"; {runs + sum(stored)} runs if seed 0 does not reproduce the stored results"
            text += (more if any(stored) else "") + "\n"
        return text

    def run(self) -> None:
        """Add seeds, look by look, until each experiment is decided."""
        waiting = list(self.chosen)
        self.failed |= self.setup.run(self.jobs(waiting, self.recipe.looks[0]))
        print(self.describe_stored(), end="", flush=True)
        for look in self.recipe.looks:
            self.failed |= self.setup.run(self.jobs(waiting, look))
            verdicts = self.verdicts(look)
            for patch in list(waiting):
                verdict = verdicts.get(patch.name)  # None if every run has failed
                if verdict:
                    print(f"{patch.name}: {verdict}", flush=True)
                if not verdict or verdict.word != "undecided" or verdict.seeds < look:
                    waiting.remove(patch)  # decided, or a run has failed

    def describe_stored(self) -> str:
        """Describe the stored results of other code or machines, and whether they count."""
        text, new = "", self.setup.identity | self.setup.code
        old = self.stored["identity"] | self.stored["code"]
        differences = [name for name in new | old if old.get(name) != new.get(name)]
        for patch in (BASELINE, *self.chosen):
            if self.stored_runs(patch) and self.rows[patch.name]["key"] != self.setup.key(patch):
                names = ", ".join(differences[:3]) + ", …" * (len(differences) > 3)
                names = names if patch == BASELINE else "code, packages or processor"
                outcomes = {True: "reproduces them", False: "does not reproduce them"}
                outcome = outcomes.get(self.stored_is_valid(patch), "failed: they are not used")
                text += f"{patch.name}: stored results are of other {names}; seed 0 {outcome}\n"
        return text

    def verdicts(self, look: int) -> dict[str, stats.Verdict]:
        """Judge the experiments. Raises ExperimentError if there is nothing to compare with."""
        results = {patch.name: self.results(patch, look) for patch in self.chosen}
        results[BASELINE.name] = self.baseline()
        verdicts, values = judge_by_look(self.recipe, results, self.prior()), self.recipe.values
        scores = {run["seed"]: values([run]) for run in results[BASELINE.name]}
        for name in verdicts:
            if all(values([run]) == scores.get(run["seed"]) for run in results[name]):
                verdicts[name] = stats.Verdict(NO_EFFECT, 0.0, 0.0, 0.0, len(results[name]))
        return verdicts

    def store(self) -> Path:
        """Write the results next to those that are stored already. Returns the path.

        An experiment without any effect is not stored. Raises ExperimentError.
        """
        recipe, setup, baseline = self.recipe, self.setup, self.baseline()
        if len(baseline) < recipe.looks[-1]:
            raise ExperimentError(f"the baseline has only {len(baseline)} results: none are stored")
        verdicts, runs = self.verdicts(recipe.looks[-1]), {BASELINE: baseline}
        for patch in (patch for patch in self.chosen if patch.name in verdicts):
            if verdicts[patch.name].word != NO_EFFECT:
                runs[patch] = self.results(patch, recipe.looks[-1])
        rows = {}
        if self.stored_is_valid(BASELINE):
            gone = changed(self.stored) | verdicts.keys()
            rows = {name: row for name, row in self.rows.items() if name not in gone}
        for patch, results in runs.items():
            row = {"change": patch.change, "key": setup.key(patch), "baseline": setup.key(BASELINE)}
            rows[patch.name] = row | {"runs": results}
        if lost := ", ".join(sorted(self.rows.keys() - rows)):
            print(f"no longer stored, because the baseline or the patch has changed: {lost}")
        path = patches.HERE / "results" / f"{recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"identity": setup.identity, "code": setup.code, "rows": rows})
        return path
