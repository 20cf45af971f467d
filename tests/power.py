"""Measure how small an effect experiments detect: python -m tests.power mini

Not part of the suite; takes minutes. Resamples the residuals of a recipe's stored scores, and
prints how often a difference is called where there is none, and how often a planted effect is
detected.
"""

import math
from collections.abc import Sequence

import numpy as np

from experiments import stats
from experiments.recipes import RECIPES, Recipe
from experiments.stats import Sigma, Stages
from experiments.store import read_stored, scores_by_row, stored_pairs
from utils import make_parser


def resample(
    residuals: Sequence[float],
    sigma: Sigma,
    delta: float,
    stages: Stages,
    effect: float = 0.0,
    tries: int = 10_000,
) -> dict[str, np.ndarray]:
    """Return the share of each outcome by stage, for runs drawn with replacement.

    effect: added to each difference; higher is better. sigma: that of a difference; in each try the
    estimate differs from it, according to its degrees of freedom.
    """
    random = np.random.default_rng(0)
    scale = sigma.value / math.sqrt(2) / np.std(residuals)
    shares = {outcome: np.zeros(len(stages)) for outcome in ("better", "worse", stats.SMALL)}
    for _ in range(tries):
        own, baseline = scale * random.choice(residuals, (2, stages[-1]))
        differences = own - baseline + effect
        estimate = sigma.value * math.sqrt(random.chisquare(sigma.df) / sigma.df)
        for i, n in enumerate(stages):
            rule = sigma._replace(value=estimate), delta, stages
            outcome = stats.judge({"": differences[:n]}, *rule)[""].outcome
            if outcome != "undecided":
                shares[outcome][i:] += 1 / tries
                break
    return shares


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled scores of the stored runs, by stage."""
    scores, baselines = scores_by_row(recipe, stored_pairs(stored))
    kept, _ = stats.without_outliers(scores, baselines)
    sigma, (residuals, _) = stats.deviation(kept), stats.residuals(kept)
    print(f"{recipe.name}: {tries:,} comparisons, shares by stage in per cent")
    rule = recipe.delta, recipe.stages
    effects = [size for size in stats.detectable(sigma, *rule) if size < math.inf]
    for effect in [0.0, *effects]:
        outcomes = resample(residuals, sigma, *rule, effect, tries)
        shares = "; ".join(f"{name} {np.round(100 * x, 1)}" for name, x in outcomes.items())
        print(f"effect {effect:.4g}: {shares}", flush=True)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m tests.power")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    for name in PARSER.parse_args().recipes:
        if STORED := read_stored(RECIPES[name]):
            check(RECIPES[name], STORED)
        else:
            print(f"{name}: no stored results: run experiments.run --all --recipe {name} --store")
