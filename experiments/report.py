"""Write the table and the plots of README.md, and report.html, from the stored results.

report.html shows the diff, the seeds and the learning curves of each experiment.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which would choose a window system

from evaluation import page
from experiments import patches, stats
from experiments.patches import THEMES, ExperimentError, Patch
from experiments.question import changed, judge_by_look, read_stored
from experiments.recipes import RECIPES, Recipe
from utils import errors_in_one_line, make_parser

WORDS = ("better", "worse", "no difference", "undecided")  # colours of Okabe & Ito 2008
COLOURS = dict(zip(WORDS, ("#0072B2", "#D55E00", "#009E73", "#8a8a8a"), strict=True))
MARKS = "<!-- results -->", "<!-- end of results -->"


class Results:
    """The stored results of a recipe, and the verdicts on its experiments."""

    def __init__(self, recipe: Recipe, stored: dict):
        self.recipe, self.stored, self.headline = recipe, stored, recipe.headline.replace("_", " ")
        self.changed = changed(stored)
        rows = {n: row for n, row in stored["rows"].items() if n not in self.changed}
        key = rows["baseline"]["key"]
        self.earlier = sum(row["baseline"] != key for row in rows.values())
        self.runs = {name: row["runs"] for name, row in rows.items()}
        self.verdicts = judge_by_look(recipe, self.runs, stats.NO_ROWS)
        healthy = [recipe.values(self.runs[n]) for n, v in self.verdicts.items() if not v.note]
        scores = recipe.values(self.runs["baseline"])
        self.mean, self.sigma = np.mean(scores), stats.pool(scores, *healthy)

    def cost(self, name: str) -> str:
        """Return training time and number of parameters as multiples of the baseline's."""
        runs = [[r for r in self.runs[n] if "seconds" in r] for n in (name, "baseline")]
        if not all(runs):
            return ""
        time, base = (np.median([r["seconds"]["train"] for r in results]) for results in runs)
        return f"× {time / base:.2f}, × {runs[0][0]['parameters'] / runs[1][0]['parameters']:.2f}"

    def for_page(self, name: str) -> dict:
        """Return what report.html shows of an experiment, or of the baseline."""
        runs = [run for run in self.runs[name] if "curve" in run]
        shown = {"values": self.recipe.values(runs), "curves": [run["curve"] for run in runs]}
        if verdict := self.verdicts.get(name):
            shown |= {"word": verdict.word, "verdict": str(verdict), "cost": self.cost(name)}
        return shown

    def summary(self) -> str:
        """Describe what was measured, and how precisely."""
        recipe, m, count = self.recipe, len(self.runs["baseline"]), len(self.verdicts)
        size = stats.detectable(self.sigma, recipe.delta, recipe.looks, m, count)[-1]
        own = [f"{name} ({v.note})" for name, v in self.verdicts.items() if v.note]
        earlier = [f"{self.earlier} of {count}"] if self.earlier else []
        decided = sum(verdict.word != "undecided" for verdict in self.verdicts.values())
        lists = {
            "Decided": [f"{decided} of {count}"],
            "Diverged, or with a variance unlike that of the others": own,
            "Measured with earlier code, with the same bits for seed 0 of the baseline": earlier,
            "Left out, as their patches have changed": sorted(self.changed),
        }
        text = " ".join(f"{title}: {', '.join(names)}." for title, names in lists.items() if names)
        return (
            f"**{recipe.name}**: {self.headline} {self.mean:.1f}, mean of {m} baseline seeds; "
            f"standard deviation {self.sigma.value:.2f}. In this table, a difference of "
            f"{size:.1f} is detected with 80 % power after {recipe.looks[-1]} seeds. {text} "
            f"Processor: {self.stored['identity']['processor']}.\n\n"
            f"![differences from the baseline, {recipe.name}]({recipe.name}.png)\n"
        )


def table(chosen: list[Patch], results: dict[str, Results]) -> str:
    """Format the experiments as Markdown tables, one for each theme."""
    text = ""
    header = "| question | claim | verdict | time, parameters |\n|---|---|---|---|\n"
    for theme in THEMES:
        text += f"### {theme.capitalize()}\n\n{header}"
        for patch in (patch for patch in chosen if patch.theme == theme):
            verdicts = {n: r.verdicts.get(patch.name) for n, r in results.items()}
            shown = [f"{n}: {verdict}" for n, verdict in verdicts.items() if verdict]
            costs = {n: results[n].cost(patch.name) for n, verdict in verdicts.items() if verdict}
            costs = [f"{n}: {cost}" for n, cost in costs.items() if cost]
            cells = [f"[{patch.name}]({patch.name}.patch): {patch.question}", patch.claim]
            cells += ["; ".join(shown) or "not measured yet", "; ".join(costs)]
            text += f"| {' | '.join(cells)} |\n"
        text += "\n"
    return text


def forest(results: Results) -> Figure:
    """Draw the differences from the baseline with their intervals, sorted, and the zone ±delta."""
    recipe = results.recipe
    rows = [row for row in results.verdicts.items() if np.isfinite(row[1].low)]
    rows.sort(key=lambda row: row[1].difference)
    # Clip what is far away: a single row would squeeze all others.
    limit = max(4 * recipe.delta, 6 * results.sigma.value)
    figure = Figure(figsize=(7.5, 1.6 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="0.3", lw=1)
    zone = axes.axvspan(-recipe.delta, recipe.delta, color="0.92", lw=0, zorder=0)
    handles = {f"±{recipe.delta:g} points: too small to matter": zone}
    for y, (_, verdict) in enumerate(rows):
        x, colour = verdict.difference, COLOURS[verdict.word]
        axes.plot([verdict.low, verdict.high], [y, y], color=colour, lw=2)
        fill, place = "white" if verdict.word == "undecided" else colour, np.clip(x, -limit, limit)
        marker = "o" if place == x else "<" if x < 0 else ">"
        axes.plot(place, y, marker, color=colour, mfc=fill)
        handles[verdict.word] = axes.plot([], [], "o", color=colour, mfc=fill)[0]
        if place != x:
            box = {"fc": "white", "lw": 0, "pad": 0.5}
            axes.annotate(f"{x:+.0f}", (place, y), (8, -3), textcoords="offset points", bbox=box)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set(xlim=(-1.05 * limit, 1.05 * limit), ylim=(-0.7, len(rows) - 0.3), title=recipe.name)
    axes.set_xlabel("experiment minus baseline in points, with its interval")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write_page(path: Path, chosen: list[Patch], results: dict[str, Results]) -> None:
    """Write report.html, which needs no other file and no network."""
    data = {"themes": THEMES, "colours": COLOURS, "recipes": {}, "experiments": []}
    for name, each in results.items():
        shown = {"delta": each.recipe.delta, "headline": each.headline}
        data["recipes"][name] = shown | {"baseline": each.for_page("baseline")}
    for patch in chosen:
        pages = {n: r.for_page(patch.name) for n, r in results.items() if patch.name in r.verdicts}
        data["experiments"].append(asdict(patch) | {"results": pages})
    path.write_text(page.fill(Path(__file__).with_name("template.html"), data), "utf-8")


def write() -> None:
    """Write README.md, the plots and report.html. Raises ExperimentError and OSError."""
    readme = patches.HERE / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ExperimentError(f"{readme}: must contain {MARKS[0]} and then {MARKS[1]}")
    results = {n: Results(RECIPES[n], stored) for n in RECIPES if (stored := read_stored(n))}
    chosen = [patches.read(name) for name in patches.names()]
    parts = [each.summary() for each in results.values()]
    text = "\n".join([MARKS[0], *parts, table(chosen, results), MARKS[1]])
    readme.write_text(before + text + after, "utf-8")
    for name, each in results.items():
        forest(each).savefig(patches.HERE / f"{name}.png", dpi=110)
    write_page(patches.HERE / "report.html", chosen, results)
    print(f"wrote {readme} and report.html, with results of {', '.join(results) or 'no recipe'}")


if __name__ == "__main__":
    make_parser(__doc__, prog="python -m experiments.report").parse_args()
    with errors_in_one_line():
        write()
