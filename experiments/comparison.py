"""Compare experiments with the baseline: the runs that each stage needs, and the verdicts."""

import math
import statistics
import sys
import time

from tqdm import tqdm

from experiments import stats
from experiments.executor import LocalExecutor, interrupts
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import BLEU, Pairs, Recipe
from experiments.runs import Job, Runner, failure, progress
from experiments.store import EQUAL, Results, Status, equal, spread
from experiments.worker import EXCLUDED

MOVED = 20  # at most so many more texts to score may be in one side's training data
LINE = "{percentage:3.0f} % [{elapsed}<{remaining}] {desc}"  # with the time left


def judge_by_stage(
    recipe: Recipe, pairs: dict[str, Pairs], others: dict[str, Pairs], asked: int = 0
) -> dict[str, stats.Verdict]:
    """Judge experiments at each stage, with the pairs that belong to it. A decision is final.

    others: further pairs, which serve only to estimate the standard deviation. asked: as in
    `stats.judge`. Raises ExperimentError if a baseline has diverged, or if one side of a pair was
    trained on more of the texts that are scored.
    """
    for name, each in pairs.items():
        for seed, (own, baseline) in each.items():
            if why := baseline.get("diverged"):
                raise diverged_baseline(seed, why)
            counts = [run["in_train"] for run in (own, baseline) if "in_train" in run]
            if len(counts) == 2 and abs(counts[0] - counts[1]) > MOVED:
                raise ExperimentError(
                    f"{name} trains on {counts[0]:,} of the sources to score, and the baseline on "
                    f"{counts[1]:,}: a change of data/ must leave each pair in its split"
                )
    differences, verdicts = {}, {}
    for stage in recipe.stages:
        first = {
            name: {seed: pair for seed, pair in each.items() if seed < stage}
            for name, each in pairs.items()
        }
        sigma, outliers = spread(recipe, first | others)
        decided = {name: v for name, v in verdicts.items() if v.outcome != "undecided"}
        for name in (name for name in pairs if name not in decided):
            differences[name] = recipe.differences(first[name])
        rule = sigma, recipe.delta, recipe.stages, outliers, recipe.lower_is_better, asked
        verdicts = stats.judge(differences, *rule) | decided
    return {name: v._replace(decimals=recipe.decimals) for name, v in verdicts.items()}


def diverged_baseline(seed: int, why: str) -> ExperimentError:
    """Return the error that ends a comparison."""
    hint = "nothing can be compared with it; use a commit that trains"
    return ExperimentError(f"the baseline diverged with seed {seed} ({why}): {hint}")


def judge_by_score(
    recipe: Recipe, pairs: dict[str, Pairs], scores: dict[str, str], others: dict[str, Pairs]
) -> dict[str, stats.Verdict]:
    """Judge experiments by stage, each by its own score.

    scores: see `judged_score`. others: see `judge_by_stage`.
    """
    verdicts, recipes = {}, {name: recipe.with_score(scores[name]) for name in pairs}
    asked = sum(map(bool, pairs.values()))
    for judged in dict.fromkeys(recipes.values()):
        own = {name: pairs[name] for name in pairs if recipes[name] == judged}
        rest = {name: pairs[name] for name in pairs if name not in own}
        verdicts |= judge_by_stage(judged, own, rest | others, asked)
    return verdicts


def judged_score(recipe: Recipe, patch: Patch, pairs: Pairs) -> str:
    """Return the score that a verdict is about; "" for that of the recipe.

    It is the score that the patch specifies, or BLEU if all losses are equal but the outputs are
    not, such as those of an edit of decoding.
    """
    unseen = pairs and recipe.has_bleu and not any(recipe.differences(pairs))
    return patch.score or ("bleu" if unseen and not equal(pairs) else "")


def largest_changes(pairs: Pairs) -> str:
    """Describe how the two phenomena of `mini` that differ most have changed; "" without any."""
    own, base = ([run["scores"].get("by_tag", {}) for run in runs] for runs in transpose(pairs))
    changes = {
        tag: statistics.mean(run[tag] for run in own) - statistics.mean(run[tag] for run in base)
        for tag in own[0].keys() - EXCLUDED
    }
    tags = sorted(changes, key=lambda tag: abs(changes[tag]), reverse=True)[:2]
    return ", ".join(f"{tag} {changes[tag]:+.1f}" for tag in tags)


def transpose(pairs: Pairs) -> tuple[list[dict], list[dict]]:
    """Return the results of the experiment, and those of the baseline."""
    return [own for own, _ in pairs.values()], [base for _, base in pairs.values()]


def other_score(recipe: Recipe, pairs: Pairs, verdict: stats.Verdict) -> str:
    """Return the mean difference in BLEU, where the loss is judged and BLEU known.

    It disagrees with the verdict if it has the other sign and is not too small to matter.
    """
    own, base = ([run.get("scores", {}).get("bleu") for run in runs] for runs in transpose(pairs))
    if not recipe.has_bleu or verdict.outcome == stats.NONE or None in own + base:
        return ""
    difference = statistics.mean(own) - statistics.mean(base)
    delta = BLEU["delta"]
    disagrees = {"better": difference <= -delta, "worse": difference >= delta}.get(verdict.outcome)
    return f"; BLEU {difference:+z.1f}" + ", which disagrees" * bool(disagrees)


class Comparison:
    """Experiments, the baseline that they are compared with, and the verdicts."""

    def __init__(self, runner: Runner, chosen: list[Patch], stored: dict | None):
        self.runner, self.recipe, self.chosen = runner, runner.recipe, chosen
        self.results, self.executor = Results(runner, stored), LocalExecutor()
        self.shown = set()  # the pairs whose difference was printed

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
            if not waiting:
                break

    def jobs(self, waiting: list[Patch], stage: int, trust: bool = True) -> list[Job]:
        """Return the runs that are left of a stage, sorted by seed, the baseline's first.

        trust: whether stored results count that seed 0 has still to verify.
        """
        results, jobs = self.results, set()
        for patch in waiting:
            pairs = results.pairs(patch, stage, trust)
            for each in (BASELINE, patch):
                left = results.missing(each, stage, trust) - pairs.keys()
                jobs |= {Job(each, seed) for seed in left}
                if results.status(each) is Status.UNVERIFIED:
                    jobs.add(Job(each, 0))
        return sorted(jobs, key=lambda job: (job.seed, job.patch != BASELINE, job.patch.name))

    def execute(self, jobs: list[Job]) -> None:
        """Execute jobs and show what they do. Raises ExperimentError if one fails."""
        left = {self.runner.prepare(job): job for job in jobs}
        options = {"mininterval": 1 if sys.stderr.isatty() else 60, "dynamic_ncols": True}
        options |= {"total": len(jobs), "smoothing": 0, "disable": not jobs}
        with tqdm(bar_format=LINE, **options) as bar:
            try:
                self.executor.queue += left
                while left:
                    if interrupts:
                        raise KeyboardInterrupt
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
                self.executor.stop()

    def describe_run(self, job: Job) -> str:
        """Return the score of a run, and the baseline's. Raises ExperimentError if it has none."""
        result, log = self.runner.result(*job), self.runner.file(job, ".log")
        if not result:
            tqdm.write(failure(log))
            raise ExperimentError(f"{job} failed: see {log}; the other runs were stopped")
        if why := result.get("diverged"):
            if job.patch == BASELINE:
                raise diverged_baseline(job.seed, why)
            cause = "; look for the cause in the change before you lower the learning rate"
            return f"{job}: diverged: {why}{cause}"
        recipe = self.recipe.with_score(job.patch.score)
        text = f"{job}: {recipe.format(recipe.value(result))}"
        for patch in self.chosen if job.patch == BASELINE else [job.patch]:
            pairs = self.results.pairs(patch, job.seed + 1, trust=True)
            recipe = self.recipe.with_score(score := judged_score(self.recipe, patch, pairs))
            differences = [x for x in recipe.differences(pairs) if not math.isnan(x)]
            pair, digits = (patch, job.seed), f"+.{recipe.decimals}f"
            if job.seed in pairs and pair not in self.shown and differences:
                self.shown.add(pair)
                text += f"\n    {patch.name} minus baseline: {differences[-1]:{digits}}; mean of "
                text += f"{len(differences)}: {statistics.mean(differences):{digits}} (provisional)"
                if score != patch.score:
                    text += "\n    the losses are equal, so BLEU is judged"
                if equal(pairs) and len(pairs) == 1:
                    text += f"\n    {EQUAL}: stop the command if this is not expected"
        return text

    def verdicts(self, stage: int | None = None) -> dict[str, stats.Verdict]:
        """Judge the experiments, at a stage or at the last one. Raises ExperimentError."""
        seeds, results = stage or self.recipe.stages[-1], self.results
        pairs = {patch.name: results.pairs(patch, seeds) for patch in self.chosen}
        scores = {p.name: judged_score(self.recipe, p, pairs[p.name]) for p in self.chosen}
        verdicts = judge_by_score(self.recipe, pairs, scores, results.others(self.chosen))
        for patch in (patch for patch in self.chosen if equal(pairs[patch.name])):
            count = len(pairs[patch.name])
            verdicts[patch.name] = stats.Verdict(stats.NONE, 0, 0, 0, count, EQUAL)
        return verdicts

    def describe(self, patch: Patch, verdict: stats.Verdict) -> str:
        """Return a verdict, the means that it compares, and the phenomena that changed most."""
        text, pairs = f"{patch.name}: {verdict}", self.results.pairs(patch, verdict.seeds)
        if verdict.low < verdict.high:  # neither diverged nor without any effect
            recipe = self.recipe.with_score(judged_score(self.recipe, patch, pairs))
            own, base = (statistics.mean(map(recipe.value, runs)) for runs in transpose(pairs))
            text += f"\n    means: {recipe.format(own)}, baseline {recipe.format(base)}"
            if changes := largest_changes(pairs):
                text += f"; changed most: {changes}"
            text += other_score(recipe, pairs, verdict)
        return text
