"""The plan of a comparison: the effects that it detects, its runs, and their time."""

import math
import statistics
from collections.abc import Iterable

from experiments import stats
from experiments.comparison import Comparison
from experiments.patches import BASELINE
from experiments.store import Status, read_stored, spread
from training.machine import cores
from training.records import read_json


def describe(comparison: Comparison) -> str:
    """Describe the changes, the effects that the stages detect, and the runs that are left."""
    recipe, results, runner = comparison.recipe, comparison.results, comparison.runner
    last, chosen, others = recipe.stages[-1], comparison.chosen, read_stored(recipe)
    lines = [f"baseline: commit {runner.commit[:7]}; runs of equal seeds are compared in pairs"]
    for patch in chosen:
        average = f"average: {patch.average}" if patch.average else ""
        what = " ".join([*patch.files, *patch.flags.split(), average]).strip()
        lines.append(f"{patch.name} changes {what}")
    stored = [patch for patch in chosen if results.status(patch) is not Status.ABSENT]
    lines += [results.describe(patch) for patch in (BASELINE, *stored)]
    for judged in dict.fromkeys(recipe.with_score(patch.score) for patch in chosen):
        sigma, _ = spread(judged, results.others(chosen))
        if sigma.df:
            digits = f".{judged.decimals + 1}f"
            effects = stats.detectable(sigma, judged.delta, judged.stages, len(chosen))
            known = [x for x in zip(judged.stages, effects, strict=True) if x[1] < math.inf]
            text = ", ".join(f"{effect:{digits}} after {stage} seeds" for stage, effect in known)
            deviation = f"{sigma.value:{digits}} {judged.unit} ({sigma.df} degrees of freedom)"
            lines.append(f"standard deviation of a difference: {deviation}")
            lines.append(f"differences that are detected with 80 % power: {text or 'none'}")
        else:
            lines.append("standard deviation of a difference: unknown, as no two pairs are stored")
    folders = (runner.folder.parent / name for name in (recipe.name, f"{recipe.name}-final"))
    paths = (path for folder in folders for path in folder.glob("*/seed-*.*-*.json"))
    times = minutes(map(read_json, paths))
    if others and not times:
        times = minutes(others["rows"][BASELINE.name]["runs"])
    for stage in sorted({recipe.stages[0], last}):
        lines.append(f"stage of {stage} seeds: {runs_left(comparison, stage, times)}")
        if Status.UNVERIFIED in map(results.status, (BASELINE, *chosen)):
            more = runs_left(comparison, stage, times, trust=False)
            lines.append(f"    if seed 0 differs from the stored result: {more}")
    return "\n".join(lines)


def minutes(runs: Iterable[dict]) -> list[float]:
    """Return the minutes that runs have taken, where this is known."""
    return [sum(run["seconds"].values()) / 60 for run in runs if "seconds" in run]


def runs_left(comparison: Comparison, stage: int, times: list[float], trust: bool = True) -> str:
    """Return the number of runs that are left of a stage, and their time. times: of other runs.

    trust: whether stored results count that seed 0 has still to verify.
    """
    jobs, workers = comparison.jobs(comparison.chosen, stage, trust), len(cores())
    baseline = sum(job.patch == BASELINE for job in jobs)
    text = f"{len(jobs)} runs ({len(jobs) - baseline} with the change, {baseline} of the baseline)"
    if times:
        time = math.ceil(len(jobs) / workers) * statistics.median(times)
        text += f", about {time:.0f} minutes on {workers} cores"
    return text
