"""How small an effect can be seen? Reads finished runs; trains nothing.

Resamples the stored scores: how often is a difference called where there is none, and how often
is a planted effect detected? Then compares the measures of finished runs.
"""

import math
from pathlib import Path

import numpy as np

from config import make_parser
from experiments import patches, stats
from experiments.recipes import RECIPES, Recipe
from experiments.run import read_stored, stored_rows
from training.records import read_json


def check(recipe: Recipe, stored: dict, tries: int = 10_000) -> None:
    """Print the shares of verdicts on resampled scores of the stored runs, by look."""
    baseline, rows = recipe.values(stored["baseline"]), stored_rows(recipe, stored)
    deviations, prior = stats.residuals(baseline, *rows), stats.pool(*rows)
    m, sigma = len(baseline), stats.pool(baseline, prior=prior)
    print(f"{recipe.name}: {tries:,} comparisons, shares by look in per cent")
    for effect in [0.0, *stats.detectable(sigma, recipe.rule, m)]:
        words = stats.resample(deviations, prior, recipe.rule, m, effect, tries)
        shares = "; ".join(f"{word} {np.round(100 * x, 1)}" for word, x in words.items())
        print(f"effect {effect:.2f} {recipe.unit}: {shares}", flush=True)


def read_runs(folder: Path) -> dict[str, list[dict]]:
    """Return the results of finished runs by experiment: those of the code that ran last."""
    paths = {}
    for path in sorted(folder.glob("*/seed-*.????????????.json"), key=lambda p: p.stat().st_mtime):
        paths.setdefault(path.parent.name, {}).setdefault(path.suffixes[0], []).append(path)
    latest = {name: map(read_json, [*keys.values()][-1]) for name, keys in paths.items()}
    return {name: [run for run in runs if "scores" in run] for name, runs in latest.items()}


def compare(recipe: Recipe, results: dict[str, list[dict]]) -> str:
    """Return a Markdown table. The runs that an answer needs fall with (effect / SD)².

    effect / SD is the root mean square over the experiments, less what chance contributes.
    """
    header = "recipe | measure | checkpoints | SD | effect / SD | minutes | (effect / SD)² / minute"
    lines = [f"| {header} | left out |", "|---" * 8 + "|"]
    minutes = (recipe.seconds(results.get("baseline", [])) or 0) / 60
    for k, scores in results["baseline"][0]["scores"].items() if minutes else ():
        for measure in (measure for measure in scores if measure != "by_tag"):
            rows = {name: [r["scores"][k][measure] for r in rs] for name, rs in results.items()}
            base = rows.pop("baseline")
            unhealthy = stats.unhealthy(rows, base)
            rows = {name: row for name, row in rows.items() if name not in unhealthy}
            sigma = stats.pool(base, *rows.values())
            squares = [
                ((np.mean(row) - np.mean(base)) / sigma.value) ** 2 - 1 / len(row) - 1 / len(base)
                for row in rows.values()
            ]
            square = max(0.0, float(np.mean(squares))) if squares else math.nan
            cells = [recipe.name, measure.replace("_", " "), k, f"{sigma.value:.3f}"]
            cells += [f"{x:.2f}" for x in (square**0.5, minutes, square / minutes)]
            lines.append(f"| {' | '.join([*cells, ', '.join(unhealthy)])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m experiments.power")
    PARSER.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE")
    for name in PARSER.parse_args().recipes:
        if STORED := read_stored(name):
            check(RECIPES[name], STORED)
        print(compare(RECIPES[name], read_runs(patches.ROOT / "runs/experiments" / name)))
