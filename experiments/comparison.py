"""Compare experiments with the baseline: the runs that each stage needs, and the verdicts."""

import statistics
import sys
import time

from tqdm import tqdm

from experiments import stats
from experiments.executor import LocalExecutor
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import Recipe
from experiments.runs import Job, Runner, failure, progress
from experiments.store import Results, Status
from experiments.worker import EXCLUDED

NO_EFFECT = "equal to the baseline in every digit: the change has no effect on the score"
LINE = "{percentage:3.0f} % [{elapsed}<{remaining}] {desc}"  # with the time left


def judge_by_stage(
    recipe: Recipe, results: dict[str, list[dict]], prior: stats.Sigma = stats.NO_SCORES
) -> dict[str, stats.Verdict]:
    """Judge the experiments at each stage, with the seeds that belong to it. A decision is final.

    results: those of the experiments and of the baseline. Raises ExperimentError if the baseline
    has diverged.
    """
    for run in results[BASELINE.name]:
        if why := run.get("diverged"):
            raise ExperimentError(f"the baseline diverged with seed {run['seed']}: {why}")
    scores, verdicts, baseline = {}, {}, recipe.values(results[BASELINE.name])
    for stage in recipe.stages:
        decided = {name: v for name, v in verdicts.items() if v.outcome != "undecided"}
        for name, runs in results.items():
            if name not in decided and name != BASELINE.name:
                scores[name] = recipe.values([run for run in runs if run["seed"] < stage])
        verdicts = stats.judge(scores, baseline, recipe.delta, recipe.stages, prior) | decided
    return verdicts


def largest_changes(results: list[dict], baseline: list[dict]) -> str:
    """Describe how the two phenomena of `mini` that differ most have changed; "" without any."""
    own, base = ([run["scores"].get("by_tag", {}) for run in runs] for runs in (results, baseline))
    changes = {
        tag: statistics.mean(run[tag] for run in own) - statistics.mean(run[tag] for run in base)
        for tag in own[0].keys() - EXCLUDED
    }
    tags = sorted(changes, key=lambda tag: abs(changes[tag]), reverse=True)[:2]
    return ", ".join(f"{tag} {changes[tag]:+.1f}" for tag in tags)


class Comparison:
    """Experiments, the baseline that they are compared with, and the verdicts."""

    def __init__(self, runner: Runner, chosen: list[Patch], stored: dict | None):
        self.runner, self.recipe, self.chosen = runner, runner.recipe, chosen
        self.results, self.executor = Results(runner, stored), LocalExecutor()

    def run(self) -> None:
        """Add seeds, stage by stage, until each experiment is decided. Raises ExperimentError."""
        waiting = self.chosen
        self.execute(self.jobs(waiting, self.recipe.stages[0]))
        for patch in (BASELINE, *waiting):
            if self.results.status(patch) in (Status.REPRODUCED, Status.DIFFERENT):
                print(self.results.describe(patch), flush=True)
        for stage in self.recipe.stages:
            self.execute(self.jobs(waiting, stage))
            verdicts = self.verdicts(stage)
            for patch in waiting:
                print(self.describe(patch, verdicts[patch.name]), flush=True)
            waiting = [p for p in waiting if verdicts[p.name].outcome == "undecided"]

    def jobs(self, waiting: list[Patch], stage: int, trust: bool = True) -> list[Job]:
        """Return the runs that are left of a stage, sorted by seed, and of the whole baseline.

        trust: whether stored results count that seed 0 has still to verify.
        """
        jobs = []
        for patch in (*waiting, BASELINE):
            seeds = self.recipe.stages[-1] if patch == BASELINE else stage
            finished = {result["seed"] for result in self.results.get(patch, seeds, trust)}
            finished -= {0} if self.results.status(patch) is Status.UNVERIFIED else set()
            jobs += [Job(patch, seed) for seed in range(seeds) if seed not in finished]
        return sorted(jobs, key=lambda job: job.seed)

    def execute(self, jobs: list[Job]) -> None:
        """Execute jobs and show what they do. Raises ExperimentError if one fails."""
        left = {self.runner.prepare(job): job for job in jobs}
        options = {"mininterval": 1 if sys.stderr.isatty() else 60, "dynamic_ncols": True}
        options |= {"total": len(jobs), "smoothing": 0, "disable": not jobs}
        with tqdm(bar_format=LINE, **options) as bar:
            try:
                for path in left:
                    self.executor.submit(path)
                while left:
                    for path in self.executor.poll():
                        tqdm.write(self.describe_run(left.pop(path)))
                    texts, done = [f"{len(jobs) - len(left)}/{len(jobs)} runs"], 0.0
                    for job in (left[path] for path in self.executor.running):
                        text, share = progress(self.runner.file(job, ".log"))
                        texts, done = [*texts, f"{job}: {text}"], done + share
                    bar.set_description_str("; ".join(texts), refresh=False)
                    bar.update(len(jobs) - len(left) + done - bar.n)
                    time.sleep(0.2)
            finally:
                self.executor.stop(left)

    def describe_run(self, job: Job) -> str:
        """Return the score of a run, and the baseline's. Raises ExperimentError if it has none."""
        result, log = self.runner.result(*job), self.runner.file(job, ".log")
        if not result:
            tqdm.write(failure(log))
            raise ExperimentError(f"{job} failed: see {log}; the other runs were stopped")
        if why := result.get("diverged"):
            cause = "; look for the cause in the change before you lower the learning rate"
            return f"{job}: diverged: {why}{cause * (job.patch != BASELINE)}"
        text = f"{job}: {self.recipe.values([result])[0]:.1f} {self.recipe.unit}"
        baseline = self.recipe.values(self.results.baseline())
        if baseline and job.patch != BASELINE:
            text += f" (baseline {statistics.mean(baseline):.1f})"
        return text

    def verdicts(self, stage: int | None = None) -> dict[str, stats.Verdict]:
        """Judge the experiments, at a stage or at the last one. Raises ExperimentError."""
        seeds = stage or self.recipe.stages[-1]
        results = {patch.name: self.results.get(patch, seeds) for patch in self.chosen}
        results[BASELINE.name] = self.results.baseline()
        verdicts = judge_by_stage(self.recipe, results, self.results.prior(self.chosen))
        for patch in (patch for patch in self.chosen if self.results.equal(patch, seeds)):
            count = len(results[patch.name])
            verdicts[patch.name] = stats.Verdict("no difference", 0, 0, 0, count, NO_EFFECT)
        return verdicts

    def describe(self, patch: Patch, verdict: stats.Verdict) -> str:
        """Return a verdict, the means that it compares, and the phenomena that changed most."""
        text, unit = f"{patch.name}: {verdict}", self.recipe.unit
        if verdict.low < verdict.high:  # neither diverged nor without any effect
            pair = self.results.get(patch, verdict.seeds), self.results.baseline()
            own, base = (statistics.mean(self.recipe.values(runs)) for runs in pair)
            text += f"\n    means: {own:.1f} {unit}, baseline {base:.1f} {unit}"
            if changes := largest_changes(*pair):
                text += f"; changed most: {changes}"
        return text
