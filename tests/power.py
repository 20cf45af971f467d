"""Measure how small an effect experiments detect: python -m tests.power mini

Not part of the suite; takes minutes. Resamples the stored differences of a recipe, and prints how
often a difference is called where there is none, and how often a planted effect is detected.
"""

import math

import numpy as np

from experiments import stats
from experiments.recipes import RECIPES, Recipe
from experiments.stats import Differences, Sigma, Stages
from experiments.store import read_stored, stored_pairs
from utils import make_parser


def residuals(*groups: Differences) -> np.ndarray:
    """Return the deviations from the means of groups, scaled to the variance within them."""
    groups = [np.asarray(group) for group in groups if len(group) > 1]
    return np.concatenate([(x - x.mean()) * math.sqrt(x.size / (x.size - 1)) for x in groups])


def resample(
    deviations: Differences,
    prior: Sigma,
    delta: float,
    stages: Stages,
    effect: float = 0.0,
    tries: int = 10_000,
) -> dict[str, np.ndarray]:
    """Return the share of each outcome by stage, for differences drawn with replacement.

    effect: added to each difference; higher is better. prior: as in `judge`.
    """
    random = np.random.default_rng(0)
    shares = {outcome: np.zeros(len(stages)) for outcome in ("better", "worse", "no difference")}
    for _ in range(tries):
        differences = random.choice(deviations, stages[-1]) + effect
        for i, n in enumerate(stages):
            outcome = stats.judge({"": differences[:n]}, delta, stages, prior)[""].outcome
            if outcome != "undecided":
                shares[outcome][i:] += 1 / tries
                break
    return shares


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled differences of the stored runs, by stage."""
    differences = {name: recipe.differences(p) for name, p in stored_pairs(stored).items()}
    outliers = stats.outliers(differences)
    alike = [x for name, x in differences.items() if name not in outliers]
    deviations, prior = residuals(*alike), stats.pool(*alike)
    print(f"{recipe.name}: {tries:,} comparisons, shares by stage in per cent")
    rule = recipe.delta, recipe.stages
    effects = [size for size in stats.detectable(prior, *rule) if size < math.inf]
    for effect in [0.0, *effects]:
        outcomes = resample(deviations, prior, *rule, effect, tries)
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
