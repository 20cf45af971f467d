"""Questions: which runs they need, which stored results count, and the verdicts."""

import math
from collections.abc import Iterable
from pathlib import Path

from config import write_json
from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import Recipe
from experiments.runs import Job, Setup
from training.machine import cores
from training.records import read_json


def read_stored(recipe: str) -> dict | None:
    """Return what `Question.store` has written for a recipe, or None."""
    path = patches.HERE / "results" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


def changed(stored: dict) -> set[str]:
    """Return the stored experiments whose patches are other ones now, or are gone."""
    current = {name: patches.read(name).change for name in (BASELINE.name, *patches.names())}
    return {name for name, row in stored["rows"].items() if row["change"] != current.get(name)}


def baseline_scores(recipe: Recipe, results: list[dict]) -> list[float]:
    """Return the scores of the baseline. Raises ExperimentError if there are none, or a NaN."""
    if not results:
        raise ExperimentError("the baseline has no finished run, so nothing can be compared")
    scores = recipe.values(results)
    for score, result in zip(scores, results, strict=True):
        if not math.isfinite(score):
            reason = result.get("diverged", f"its score is {score}")
            raise ExperimentError(f"the baseline diverged with seed {result['seed']}: {reason}")
    return scores


def stored_rows(recipe: Recipe, stored: dict, chosen: Iterable[str] = ()) -> list[list[float]]:
    """Return the healthy rows of the stored experiments other than the chosen ones."""
    rows = {name: recipe.values(row["runs"]) for name, row in stored["rows"].items()}
    baseline = rows.pop(BASELINE.name)
    rows = {name: row for name, row in rows.items() if name not in chosen}
    unhealthy = stats.unhealthy(rows, baseline)
    return [row for name, row in rows.items() if name not in unhealthy]


def judge_by_look(
    recipe: Recipe, experiments: dict[str, list[dict]], baseline: list[dict], prior: stats.Sigma
) -> dict[str, stats.Verdict]:
    """Judge results look by look, with as many seeds each: what a look has decided stays."""
    verdicts, scores, runs = {}, baseline_scores(recipe, baseline), {}
    for look in recipe.looks:
        decided = {name for name, verdict in verdicts.items() if verdict.word != "undecided"}
        undecided = [name for name in experiments if name not in decided]
        runs |= {n: [run for run in experiments[n] if run["seed"] < look] for n in undecided}
        rows = {name: recipe.values(results) for name, results in runs.items()}
        latest = stats.judge(rows, scores, recipe.rule, prior)
        verdicts |= {name: latest[name] for name in undecided if name in latest}
    return verdicts


class Question:
    """Experiments, the baseline that they are compared with, and the verdicts.

    The stored results of an experiment count if they were measured with the same code, packages and
    processor, or if seed 0, run here, ends with the same weights and headline, in every bit.
    """

    def __init__(self, setup: Setup, chosen: list[Patch], stored: dict | None):
        self.setup, self.recipe, self.chosen, self.stored = setup, setup.recipe, chosen, stored
        self.rows, self.failed = stored["rows"] if stored else {}, {}

    def stored_runs(self, patch: Patch) -> dict[int, dict]:
        """Return the stored results of an experiment by seed; none if its patch has changed."""
        row = self.rows.get(patch.name)
        same = row and row["change"] == patch.change
        return {run["seed"]: run for run in row["runs"]} if same else {}

    def same_code(self, patch: Patch) -> bool:
        """Whether the stored results of an experiment were measured with the present code."""
        return self.rows[patch.name]["key"] == self.setup.key(patch)

    def stored_is_valid(self, patch: Patch) -> bool | None:
        """Whether the stored results of an experiment count; None until its seed 0 has run here."""
        stored = self.stored_runs(patch)
        if not stored or self.same_code(patch):
            return bool(stored)
        here = self.setup.result((patch, 0))
        return here and self.judged(here) == self.judged(stored.get(0, {}))

    def judged(self, result: dict) -> tuple:
        """Return the weights of a run and the score that is judged, or why it diverged."""
        score = result.get("scores", {}).get(self.recipe.headline)
        return result.get("weights"), score, result.get("diverged")

    def results(self, patch: Patch, seeds: int) -> list[dict]:
        """Return the results of the first seeds: stored ones that count, and those of here."""
        stored = self.stored_runs(patch) if self.stored_is_valid(patch) else {}
        runs = [stored.get(seed) or self.setup.result((patch, seed)) for seed in range(seeds)]
        return [run for run in runs if run]

    def baseline(self) -> list[dict]:
        """Return the results of the baseline: all that are stored, if they count."""
        return self.results(BASELINE, max(self.recipe.looks[-1], len(self.stored_runs(BASELINE))))

    def has_no_effect(self, runs: list[dict]) -> bool:
        """Whether all runs of an experiment have the scores of the baseline, to the last digit."""
        scores = {run["seed"]: run.get("scores") for run in self.baseline()}
        return all(run.get("scores", run) == scores.get(run["seed"]) for run in runs)

    def prior(self) -> stats.Sigma:
        """Return the standard deviation within the stored experiments that are not asked about."""
        if not self.stored or self.stored_is_valid(BASELINE) is False:
            return stats.NO_ROWS
        chosen = {patch.name for patch in self.chosen}
        return stats.pool(*stored_rows(self.recipe, self.stored, chosen))

    def jobs(self, waiting: list[Patch], look: int) -> list[Job]:
        """Return the runs of a look that are left, one seed of everything first.

        If seed 0 decides whether stored results count, the other seeds wait for it.
        """
        jobs = []
        for patch, seeds in (BASELINE, self.recipe.looks[-1]), *((p, look) for p in waiting):
            if self.stored_is_valid(patch) is None:
                jobs.append((patch, 0))
            else:
                finished = {result["seed"] for result in self.results(patch, seeds)}
                jobs += [(patch, seed) for seed in range(seeds) if seed not in finished]
        jobs = [(p, seed) for p, seed in jobs if f"{p.name} seed {seed}" not in self.failed]
        return sorted(jobs, key=lambda job: job[1])

    def plan(self) -> str:
        """Describe the smallest detectable effect, and the time it takes on this machine."""
        recipe, baseline, text = self.recipe, self.baseline(), ""
        if self.stored_is_valid(BASELINE) is None:
            baseline = [*self.stored_runs(BASELINE).values()]
        scores = baseline_scores(recipe, baseline) if baseline else []
        sigma = stats.pool(scores, prior=self.prior())
        if sigma.df:
            text = f"standard deviation of a run: {sigma.value:.2f} {recipe.unit}\n"
            m = max(len(scores), recipe.looks[-1])
            sizes = stats.detectable(sigma, recipe.rule, m, len(self.chosen))
            for n, size in zip(recipe.looks, sizes, strict=True):
                if size < math.inf:
                    text += f"{n} seeds detect a difference of {size:.2f} with 80 % power\n"
        finished = [read_json(path) for path in self.setup.folder.glob("*/seed-*.*.json")]
        seconds, workers = recipe.seconds(finished) or recipe.seconds(baseline), len(cores())
        for look in sorted({recipe.looks[0], recipe.looks[-1]}):
            runs = len(self.jobs(self.chosen, look))
            time = f", about {runs * seconds / 60 / workers:.0f} minutes" if seconds else ""
            text += f"{look} seeds: {runs} runs left{time} on {workers} cores\n"
        seeds = [(BASELINE, recipe.looks[-1]), *((patch, recipe.looks[0]) for patch in self.chosen)]
        if more := sum(n - 1 for patch, n in seeds if self.stored_is_valid(patch) is None):
            text += f"up to {more} more runs if seed 0 of stored results has other bits here\n"
        return text

    def run(self) -> None:
        """Add seeds, look by look, until each experiment is decided."""
        waiting, finished = list(self.chosen), {}
        self.failed |= self.setup.run(self.jobs(waiting, self.recipe.looks[0]))
        print(self.describe_stored(), end="", flush=True)
        for look in self.recipe.looks:
            while jobs := self.jobs(waiting, look):
                self.failed |= self.setup.run(jobs)
            verdicts = self.verdicts(look)
            for patch in list(waiting):
                runs = self.results(patch, look)
                if len(runs) == finished.get(patch.name, 0):  # every run of this look has failed
                    waiting.remove(patch)
                    continue
                finished[patch.name], verdict = len(runs), verdicts[patch.name]
                decided, answer = verdict.word != "undecided", str(verdict)
                if self.has_no_effect(runs):
                    decided, answer = True, "equal to the baseline in every digit: this change has "
                    answer += f"no effect on the scores of {self.recipe.name}"
                print(f"{patch.name}, {verdict.seeds} seeds: {answer}", flush=True)
                if decided:
                    waiting.remove(patch)

    def describe_stored(self) -> str:
        """Say which stored results are of other code, packages or processor, and if they count."""
        text, differences = "", []
        if self.stored:
            old, new = (x["identity"] | x["code"] for x in (self.stored, vars(self.setup)))
            differences = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        for patch in (BASELINE, *self.chosen):
            if self.stored_runs(patch) and not self.same_code(patch):
                names = ", ".join(differences[:3]) + ", …" * (len(differences) > 3)
                names = names if patch == BASELINE else "code, packages or processor"
                outcome = {
                    True: "has equal bits: they count",
                    False: "has other bits: they do not count",
                    None: "failed: they do not count",
                }[self.stored_is_valid(patch)]
                text += f"{patch.name}: stored results differ in {names}; seed 0 {outcome}\n"
        return text

    def verdicts(self, look: int) -> dict[str, stats.Verdict]:
        """Judge the experiments. Raises ExperimentError if there is nothing to compare with."""
        results = {patch.name: self.results(patch, look) for patch in self.chosen}
        return judge_by_look(self.recipe, results, self.baseline(), self.prior())

    def store(self) -> Path:
        """Write the results next to those that are stored already. Returns the path.

        An experiment without any effect is not stored. Raises ExperimentError.
        """
        recipe, setup, baseline = self.recipe, self.setup, self.baseline()
        if len(baseline_scores(recipe, baseline)) < recipe.looks[-1]:
            raise ExperimentError(f"the baseline has only {len(baseline)} results: none are stored")
        verdicts, runs = self.verdicts(recipe.looks[-1]), {BASELINE: baseline}
        for patch in (patch for patch in self.chosen if patch.name in verdicts):
            results = self.results(patch, recipe.looks[-1])[: verdicts[patch.name].seeds]
            if not self.has_no_effect(results):
                runs[patch] = results
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
