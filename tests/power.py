"""Measure how small an effect experiments detect: python -m tests.power mini

Not part of the suite; takes minutes. Resamples the stored scores of a recipe, and prints how often
a difference is called where there is none, and how often a planted effect is detected.
"""

import math

import numpy as np

from experiments import stats
from experiments.question import read_stored, stored_rows
from experiments.recipes import RECIPES, Recipe
from experiments.stats import Looks, Row, Sigma
from utils import make_parser


def residuals(*rows: Row) -> np.ndarray:
    """Return the deviations from the means of rows, scaled to the variance of a run."""
    rows = [np.asarray(row) for row in rows if len(row) > 1]
    return np.concatenate([(r - r.mean()) * math.sqrt(r.size / (r.size - 1)) for r in rows])


def resample(
    scores: Row,
    prior: Sigma,
    delta: float,
    looks: Looks,
    m: int,
    effect: float = 0.0,
    tries: int = 10_000,
) -> dict[str, np.ndarray]:
    """Return the share of each verdict by look, when both sides are drawn from the same scores.

    Both are drawn with replacement, m scores for the baseline, always the same draws; `effect` is
    added to the experiment. prior: as in `judge`.
    """
    random = np.random.default_rng(0)
    shares = {word: np.zeros(len(looks)) for word in ("better", "worse", "no difference")}
    for _ in range(tries):
        row = random.choice(scores, looks[-1]) + effect
        baseline = random.choice(scores, m)
        for i, n in enumerate(looks):
            word = stats.judge({"": row[:n]}, baseline, delta, looks, prior)[""].word
            if word != "undecided":
                shares[word][i:] += 1 / tries
                break
    return shares


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled scores of the stored runs, by look."""
    baseline, rows = recipe.values(stored["rows"]["baseline"]["runs"]), stored_rows(recipe, stored)
    deviations, prior = residuals(baseline, *rows), stats.pool(*rows)
    m, sigma = len(baseline), stats.pool(baseline, prior=prior)
    print(f"{recipe.name}: {tries:,} comparisons, shares by look in per cent")
    rule = recipe.delta, recipe.looks
    effects = [size for size in stats.detectable(sigma, *rule, m) if size < math.inf]
    for effect in [0.0, *effects]:
        words = resample(deviations, prior, *rule, m, effect, tries)
        shares = "; ".join(f"{word} {np.round(100 * x, 1)}" for word, x in words.items())
        print(f"effect {effect:.2f}: {shares}", flush=True)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m tests.power")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    for name in PARSER.parse_args().recipes:
        if STORED := read_stored(name):
            check(RECIPES[name], STORED)
        else:
            print(f"{name}: no stored results: run experiments.run --all --recipe {name} --store")
