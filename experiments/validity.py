"""How far do short runs predict long ones? python -m experiments.validity SHORT … LONG

Compares the stored results of recipes; the last one is LONG. For each SHORT, prints how often and
how closely its differences from the baseline agree with those of LONG, and how precise they are for
their time. Writes experiments/validity-SHORT.png.
"""

import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which would choose a window system
from scipy import stats

from experiments import patches, store
from experiments.patches import ExperimentError
from experiments.plan import minutes
from experiments.recipes import RECIPES, Recipe
from experiments.report import Table
from utils import errors_in_one_line, make_parser


class Gains:
    """Gains of each experiment of a recipe over the baseline, by seed; positive is better."""

    def __init__(self, recipe: Recipe):
        if not (stored := store.read_stored(recipe)):
            raise ExperimentError(
                f"no stored results of {recipe.name}: use experiments.run --store"
            )
        self.recipe, sign = recipe, -1 if recipe.lower_is_better else 1
        self.table = Table.of_stored(recipe, stored)
        gains = {
            name: [sign * x for x in recipe.differences(each)]
            for name, each in self.table.pairs.items()
            if self.table.recipe_of(name) == recipe
        }
        self.by_name = {name: x for name, x in gains.items() if x and np.isfinite(x).all()}
        self.sigma, self.outliers = self.table.spread

    def decided(self, name: str) -> bool:
        """Return whether the verdict on an experiment is "better" or "worse"."""
        decided = self.table.verdicts[name].outcome in ("better", "worse")
        return decided and self.table.reached_stage(name)

    def mean(self, name: str) -> float:
        """Return the mean gain of an experiment."""
        return float(np.mean(self.by_name[name]))

    def half_width(self, name: str) -> float:
        """Return half the width of an ordinary 95 % interval; 0 if the deviation is unknown."""
        (value, df), gains = self.sigma, self.by_name[name]
        if name in self.outliers:
            value, df = np.std(gains, ddof=1), len(gains) - 1
        return float(stats.t.isf(0.025, df) * value / len(gains) ** 0.5) if df else 0.0

    def describe(self) -> str:
        """Return the precision of the recipe and the time of a run."""
        times = minutes(self.table.baseline)
        runs = [self.recipe.value(result) for result in self.table.baseline]
        text = f"{len(self.by_name)} experiments"
        if self.sigma.df and len(runs) > 1:
            run = np.std(runs, ddof=1)
            spread = np.std([self.mean(name) for name in self.by_name])
            text += f", standard deviation of the baseline's runs {run:.4g}"
            text += f", of the difference of a pair {self.sigma.value:.4g}"
            text += f" (of unrelated runs {run * 2**0.5:.4g}), of the gains {spread:.4g}"
        return text + (f", {np.median(times):.1f} minutes a run" if times else "")


def agreement(short: Gains, long: Gains) -> tuple[list[str], str]:
    """Return the experiments that both have, and how well their gains agree."""
    names = sorted(short.by_name.keys() & long.by_name.keys())
    x, y = ([gains.mean(name) for name in names] for gains in (short, long))
    if len(names) < 3:
        return names, f"only {len(names)} experiments in common"
    same = np.sign(x) == np.sign(y)
    low, high = stats.binomtest(same.sum(), len(names)).proportion_ci(method="wilson")
    text = f"the same sign in {same.sum()} of {len(names)} [{low:.0%}, {high:.0%}]"
    matter = np.abs(y) > long.recipe.delta
    text += f" (of those that matter in long training, {same[matter].sum()} of {matter.sum()}"
    decided = np.array([short.decided(name) for name in names])
    text += f"; of those that are better or worse, {same[decided].sum()} of {decided.sum()})"

    def rank_correlation(a, b):
        return stats.spearmanr(a, b).statistic

    options = {"paired": True, "vectorized": False, "rng": np.random.default_rng(0)}
    with warnings.catch_warnings(action="ignore"):  # a resample may have one experiment only
        drawn = stats.bootstrap(
            (x, y), rank_correlation, method="percentile", n_resamples=2000, **options
        ).bootstrap_distribution
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return names, f"{text}, rank correlation {rank_correlation(x, y):.2f} [{low:.2f}, {high:.2f}]"


def scatter(short: Gains, long: Gains, names: list[str]) -> Figure:
    """Draw the gain of each experiment in long runs against that in short ones."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    axes.axhspan(-long.recipe.delta, long.recipe.delta, color="0.92", lw=0)
    axes.axhline(0, color="0.6", lw=1)
    axes.axvline(0, color="0.6", lw=1)
    points = {name: (short.mean(name), long.mean(name)) for name in names}
    size, named_above = np.ptp([*points.values()] or [(0, 0)], axis=0), []
    for name, (x, y) in points.items():
        agree = np.sign(x) == np.sign(y)
        errors = {"xerr": short.half_width(name), "yerr": long.half_width(name)}
        colour = "#0072B2" if agree else "#D55E00"
        axes.errorbar(x, y, fmt="o" if agree else "s", color=colour, elinewidth=0.8, **errors)
        # Of points that are close to each other, the name of the first is above, the others' below.
        below = any(
            (np.abs(np.subtract(p, (x, y))) < size * (0.2, 0.015)).all() for p in named_above
        )
        named_above += [] if below else [(x, y)]
        place = {"xytext": (4, -11 if below else 4), "textcoords": "offset points"}
        axes.annotate(name, (x, y), fontsize="small", **place)
    for side, gains in (("x", short), ("y", long)):
        recipe = gains.recipe
        axes.set(**{f"{side}label": f"gain in {recipe.unit}, recipe {recipe.name}"})
    small = "grey: too small to matter in long training"
    if not short.sigma.df:
        small += "; one seed each, so without intervals"
    axes.set_title(f"positive: better than the baseline; squares: the signs differ;\n{small}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(names: list[str]) -> None:
    *shorts, long = (Gains(RECIPES[name]) for name in names)
    print(f"{long.recipe.name}: {long.describe()}")
    for short in shorts:
        common, text = agreement(short, long)
        print(f"{short.recipe.name}: {text}; {short.describe()}")
        path = Path(patches.HERE, f"validity-{short.recipe.name}.png")
        scatter(short, long, common).savefig(path, dpi=110)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m experiments.validity")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    with errors_in_one_line():
        main(PARSER.parse_args().recipes)
