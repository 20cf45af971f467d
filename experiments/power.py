"""How small an effect can be seen? Reads finished runs; trains nothing.

check: resample the stored scores of the baseline: how often is a difference called where there is
none, and how often is a planted effect found? compare: compare the measures of finished runs.
"""

import math

import numpy as np

from config import UserError, fail, make_parser
from experiments import patches, stats
from experiments.patches import ExperimentError
from experiments.recipes import RECIPES, Recipe
from experiments.run import read_stored
from training.records import read_json


def check(recipe: Recipe, tries: int = 10_000) -> list[str]:
    """Return the shares of verdicts on resampled scores of the stored baseline, by look."""
    stored = read_stored(recipe.name)
    if not stored:
        raise ExperimentError(f"there is no stored baseline of {recipe.name}: see README.md")
    scores, sigma = recipe.values(stored["baseline"]), stats.Sigma(stored["sigma"], stored["df"])
    lines = [f"{recipe.name}: {tries:,} comparisons, shares by look in per cent"]
    for effect in [0.0, *stats.detectable(sigma, recipe.rule)]:
        found = stats.resample(scores, sigma, recipe.rule, effect, tries)
        shares = "; ".join(f"{word} {np.round(100 * x, 1)}" for word, x in found.items())
        lines.append(f"effect {effect:.2f} {recipe.unit}: {shares}")
    return lines


def compare(recipe: Recipe) -> list[str]:
    """Return a line of a Markdown table for each measure of the recipe's finished runs.

    effect / SD is the root mean square over the experiments, less what chance contributes. Its
    square per minute of a run counts: the number of runs that an answer needs falls with it.
    """
    folder, results = patches.ROOT / "runs/experiments" / recipe.name, {}
    for path in sorted(folder.glob("*/seed-*.*.json")):
        if "scores" in (result := read_json(path)):
            results.setdefault(result["name"], []).append(result)
    if "baseline" not in results:
        raise ExperimentError(f"{folder} has no baseline: run python -m experiments.run first")
    minutes, lines = recipe.seconds(results["baseline"]) / 60, []
    for k, scores in results["baseline"][0]["scores"].items():
        for measure in (measure for measure in scores if measure != "by_tag"):
            rows = {name: [r["scores"][k][measure] for r in rs] for name, rs in results.items()}
            without = stats.unhealthy(rows)
            rows = {name: row for name, row in rows.items() if name not in without}
            sigma, base = stats.pool(*rows.values()), rows.pop("baseline")
            squares = [
                ((np.mean(row) - np.mean(base)) / sigma.value) ** 2 - 1 / len(row) - 1 / len(base)
                for row in rows.values()
            ]
            square = max(0.0, float(np.mean(squares))) if squares else math.nan
            cells = [recipe.name, measure.replace("_", " "), k, f"{sigma.value:.3f}"]
            cells += [f"{x:.2f}" for x in (square**0.5, minutes, square / minutes)]
            lines.append(f"| {' | '.join([*cells, ', '.join(without)])} |")
    return lines


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m experiments.power")
    PARSER.add_argument("command", choices=("check", "compare"))
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    FLAGS = PARSER.parse_args()
    HEADER = (
        "| recipe | measure | checkpoints | SD | effect / SD | minutes | (effect / SD)² per minute"
    )
    try:
        if FLAGS.command == "compare":
            print(HEADER, "| left out |\n|---|---|---|---|---|---|---|---|")
        for name in FLAGS.recipes:
            print("\n".join((compare if FLAGS.command == "compare" else check)(RECIPES[name])))
    except (UserError, OSError) as error:
        fail(error)
