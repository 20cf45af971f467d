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
    last, chosen, unit = recipe.stages[-1], comparison.chosen, recipe.unit
    lines = [f"baseline: commit {runner.commit[:7]}; every stage needs its {last} seeds"]
    changes = {patch.name: " ".join([*patch.files, *patch.flags.split()]) for patch in chosen}
    lines += [f"{name} changes {what}" for name, what in changes.items()]
    stored = [patch for patch in chosen if results.status(patch) is not Status.ABSENT]
    lines += [results.describe(patch) for patch in (BASELINE, *stored)]
    runs = results.baseline()
    if not runs and (others := read_stored(recipe.name)):  # with --final, or other code
        runs = others["rows"][BASELINE.name]["runs"]
    sigma = stats.pool(recipe.values(runs), prior=results.prior(chosen))
    if sigma.df:
        m = max(len(runs), last)
        effects = stats.detectable(sigma, recipe.delta, recipe.stages, m, len(chosen))
        pairs = [pair for pair in zip(recipe.stages, effects, strict=True) if pair[1] < math.inf]
        text = ", ".join(f"{effect:.2f} after {stage} seeds" for stage, effect in pairs)
        lines.append(f"standard deviation of a run: {sigma.value:.2f} {unit}")
        lines.append(f"differences in {unit} detected with 80 % power: {text or 'none'}")
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
    """Return the number of runs that are left of a stage, and their time. minutes: of other runs.

    trust: whether stored results count that seed 0 has still to verify.
    """
    jobs, workers = comparison.jobs(comparison.chosen, stage, trust), len(cores())
    baseline = sum(job.patch == BASELINE for job in jobs)
    text = f"{len(jobs)} runs ({len(jobs) - baseline} with the change, {baseline} of the baseline)"
    if minutes:
        time = math.ceil(len(jobs) / workers) * statistics.median(minutes)
        text += f", about {time:.0f} minutes on {workers} cores"
    return text
