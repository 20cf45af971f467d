"""What a comparison takes: the effects that it detects, its runs, and their time."""

import math
import statistics

from experiments import stats
from experiments.comparison import Comparison
from experiments.patches import BASELINE
from experiments.store import Status, read_stored
from training.machine import cores
from training.records import read_json


def describe(comparison: Comparison) -> str:
    """Describe the changes, the effects that the stages detect, and the runs that are left."""
    recipe, results, runner = comparison.recipe, comparison.results, comparison.runner
    last, chosen = recipe.stages[-1], comparison.chosen
    lines = [f"the baseline is commit {runner.commit[:7]}; every stage needs all its {last} seeds"]
    lines += [f"{patch.name} changes {patch.summary}" for patch in chosen]
    stored = [patch for patch in chosen if results.status(patch) is not Status.ABSENT]
    lines += [results.describe(patch) for patch in (BASELINE, *stored)]
    runs = results.baseline()
    if not runs and (others := read_stored(recipe.name)):  # those of --final are not stored
        runs = others["rows"][BASELINE.name]["runs"]
    sigma = stats.pool(recipe.values(runs), prior=results.prior(chosen))
    if sigma.df:
        lines.append(f"standard deviation of a run: {sigma.value:.2f} {recipe.unit}")
        m = max(len(runs), last)
        sizes = stats.detectable(sigma, recipe.delta, recipe.stages, m, len(chosen))
        for stage, size in zip(recipe.stages, sizes, strict=True):
            if size < math.inf:
                effect = f"a difference of {size:.2f} {recipe.unit}"
                lines.append(f"{stage} seeds detect {effect} with 80 % power")
    paths = runner.folder.parent.glob(f"{recipe.name}*/*/seed-*.*.json")
    here = [run for run in map(read_json, paths) if "seconds" in run]
    times = [sum(run["seconds"].values()) / 60 for run in here or runs if "seconds" in run]
    for stage in sorted({recipe.stages[0], last}):
        lines.append(f"stage of {stage} seeds: {runs_left(comparison, stage, times)}")
        if Status.UNVERIFIED in map(results.status, (BASELINE, *chosen)):
            more = runs_left(comparison, stage, times, trust=False)
            lines.append(f"    if seed 0 differs from the stored result: {more}")
    return "\n".join(lines)


def runs_left(comparison: Comparison, stage: int, minutes: list[float], trust: bool = True) -> str:
    """Return the number of runs that a stage still needs, and their time. minutes: of other runs.

    trust: whether stored results that seed 0 has still to verify are assumed to count.
    """

    def count(patch, seeds):
        results, status = comparison.results, comparison.results.status(patch)
        verifying = trust and status is Status.UNVERIFIED
        return seeds - len(results.get(patch, seeds, trust)) + verifying

    changed = sum(count(patch, stage) for patch in comparison.chosen)
    baseline, workers = count(BASELINE, comparison.recipe.stages[-1]), len(cores())
    text = f"{changed + baseline} runs ({changed} with the change, {baseline} of the baseline)"
    if minutes:
        time = math.ceil((changed + baseline) / workers) * statistics.median(minutes)
        text += f", about {time:.0f} minutes on {workers} cores"
    return text
