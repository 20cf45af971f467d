"""How small an effect can be detected? Resamples the stored scores; trains nothing.

Prints how often a difference is called where there is none, and how often a planted effect is
detected.
"""

import math

import numpy as np

from config import make_parser
from experiments import stats
from experiments.question import read_stored, stored_rows
from experiments.recipes import RECIPES, Recipe


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled scores of the stored runs, by look."""
    baseline, rows = recipe.values(stored["rows"]["baseline"]["runs"]), stored_rows(recipe, stored)
    deviations, prior = stats.residuals(baseline, *rows), stats.pool(*rows)
    m, sigma = len(baseline), stats.pool(baseline, prior=prior)
    print(f"{recipe.name}: {tries:,} comparisons, shares by look in per cent")
    effects = [size for size in stats.detectable(sigma, recipe.rule, m) if size < math.inf]
    for effect in [0.0, *effects]:
        words = stats.resample(deviations, prior, recipe.rule, m, effect, tries)
        shares = "; ".join(f"{word} {np.round(100 * x, 1)}" for word, x in words.items())
        print(f"effect {effect:.2f} {recipe.unit}: {shares}", flush=True)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m experiments.power")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    for name in PARSER.parse_args().recipes:
        if STORED := read_stored(name):
            check(RECIPES[name], STORED)
        else:
            print(f"{name}: no stored results: run experiments.run --all --recipe {name} --store")
