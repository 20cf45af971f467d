"""Estimate the spread of the runs of each recipe: python -m ablation.spread

Prints the tables of experiments/recipes.toml. They are frozen there, so that a verdict does not
change when other experiments are stored: replace them only when many have been, with a log entry.
"""

import datetime
import math
from collections.abc import Hashable

import numpy as np
from scipy import stats

from ablation.experiments import BASELINE, Recipe, recipes, saved
from ablation.results import stored_pairs
from ablation.verdicts import PairedRuns, Sigma
from utils import errors_in_one_line, make_parser

MANY = 10  # rows, of which a median is taken
Scores = dict[Hashable, list[tuple[int, float]]]  # by row: seed and score of each run


def scores_by_row(recipe: Recipe, pairs: dict[str, PairedRuns]) -> Scores:
    """Return the scores of each experiment, and of each baseline.

    Experiments with a run that diverged, and those without any effect, say nothing about the
    spread.
    """
    scores: Scores = {}
    for name, each in pairs.items():
        gains = [recipe.gain(*pair) for pair in each.values()]
        if not any(gains) or any(map(math.isnan, gains)):
            continue
        for seed, (own, base) in each.items():
            scores.setdefault((name,), []).append((seed, recipe.value(own)))
            row, cell = (BASELINE.name, base["key"]), (seed, recipe.value(base))
            if cell not in scores.setdefault(row, []):  # the same run, paired with another row
                scores[row].append(cell)
    return {row: runs for row, runs in scores.items() if len(runs) > 1}


def pooled(scores: Scores, paired: bool = True) -> Sigma:
    """Return √2 times the standard deviation of a run within its seed, which is that of the
    difference of a pair; or, if not `paired`, the standard deviation of a run.

    A row is an experiment, or a baseline. Rows share the runs of the baseline, so the variances are
    those of the scores, after an effect of the seed is subtracted: a median over rows (Tukey 1977).
    Of many rows, the result is the median, too, because some vary much more than the others. A
    median is about half as precise as a mean.
    """
    if len(scores) < 1 + paired:
        return Sigma(0.0, 0)
    cells = [(row, *run) for row, runs in enumerate(scores.values()) for run in runs]
    rows, seeds, values = map(np.array, zip(*cells, strict=True))
    rest, counts = values, np.bincount(rows)
    for _ in range(10 if paired else 0):
        centred = values - (np.bincount(rows, rest) / counts)[rows]
        effects = {seed: float(np.median(centred[seeds == seed])) for seed in set(seeds)}
        rest = values - [effects[seed] for seed in seeds]
    dfs = counts - 1
    sums = np.array([np.var(rest[rows == i]) * count for i, count in enumerate(counts)])
    # The effects of seeds take their part of the degrees of freedom.
    share = 1 - 1 / len(scores) if paired else 1
    df, variance = dfs.sum() * share, sums.sum() / dfs.sum() / share
    if len(scores) >= MANY:
        df, variance = df / 2, np.median(sums / stats.chi2.median(dfs)) / share
    return Sigma(math.sqrt((1 + paired) * variance), float(df))


def table(recipe: Recipe) -> str:
    """Return the table of a recipe's spread. Only pairs that an edit leaves intact are paired."""
    experiments, (pairs, _) = saved(), stored_pairs(recipe)
    intact = {name: each for name, each in pairs.items() if experiments[name].keeps_pairs}
    lines = [f"[{recipe.name}.spread]", f'date = "{datetime.date.today()}"']
    for judged in dict.fromkeys((recipe, recipe.judged_by("bleu"))):
        pair = pooled(scores_by_row(judged, intact))
        run = pooled(scores_by_row(judged, pairs), paired=False)
        text = f"run = [{run.value:.3g}, {run.df:.0f}]"
        if pair.df:
            correlation = 1 - pair.value**2 / (2 * run.value**2)
            text += f", pair = [{pair.value:.3g}, {pair.df:.0f}], correlation = {correlation:.2f}"
        lines.append(f"{judged.score} = {{{text}}}")
    return "\n".join(lines)


if __name__ == "__main__":
    make_parser(__doc__, prog="python -m ablation.spread").parse_args()
    with errors_in_one_line():
        stored = [recipe for recipe in recipes().values() if stored_pairs(recipe)[0]]
        print("\n\n".join(map(table, stored)))
