"""Measure how small an effect experiments detect: python -m tests.power mini

Not part of the suite; takes minutes. Resamples the stored scores of a recipe, and prints how often
a difference is called where there is none, and how often a planted effect is detected.
"""

import math

import numpy as np

from experiments import stats
from experiments.recipes import RECIPES, Recipe
from experiments.stats import Scores, Sigma, Stages
from experiments.store import read_stored, stored_scores
from utils import make_parser


def residuals(*groups: Scores) -> np.ndarray:
    """Return the deviations from the means of groups of scores, scaled to the variance of a run."""
    groups = [np.asarray(scores) for scores in groups if len(scores) > 1]
    return np.concatenate([(x - x.mean()) * math.sqrt(x.size / (x.size - 1)) for x in groups])


def resample(
    scores: Scores,
    prior: Sigma,
    delta: float,
    stages: Stages,
    m: int,
    effect: float = 0.0,
    tries: int = 10_000,
) -> dict[str, np.ndarray]:
    """Return the share of each outcome by stage, when both sides are drawn from the same scores.

    Both are drawn with replacement, m scores for the baseline, always the same draws; `effect` is
    added to the experiment. prior: as in `judge`.
    """
    random = np.random.default_rng(0)
    shares = {outcome: np.zeros(len(stages)) for outcome in ("better", "worse", "no difference")}
    for _ in range(tries):
        own = random.choice(scores, stages[-1]) + effect
        baseline = random.choice(scores, m)
        for i, n in enumerate(stages):
            outcome = stats.judge({"": own[:n]}, baseline, delta, stages, prior)[""].outcome
            if outcome != "undecided":
                shares[outcome][i:] += 1 / tries
                break
    return shares


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled scores of the stored runs, by stage."""
    others = stored_scores(recipe, stored)
    baseline = recipe.values(stored["rows"]["baseline"]["runs"])
    deviations, prior = residuals(baseline, *others), stats.pool(*others)
    m, sigma = len(baseline), stats.pool(baseline, prior=prior)
    print(f"{recipe.name}: {tries:,} comparisons, shares by stage in per cent")
    rule = recipe.delta, recipe.stages
    effects = [size for size in stats.detectable(sigma, *rule, m) if size < math.inf]
    for effect in [0.0, *effects]:
        outcomes = resample(deviations, prior, *rule, m, effect, tries)
        shares = "; ".join(f"{name} {np.round(100 * x, 1)}" for name, x in outcomes.items())
        print(f"effect {effect:.2f}: {shares}", flush=True)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m tests.power")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    for name in PARSER.parse_args().recipes:
        if STORED := read_stored(name):
            check(RECIPES[name], STORED)
        else:
            print(f"{name}: no stored results: run experiments.run --all --recipe {name} --store")
