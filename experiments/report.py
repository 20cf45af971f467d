"""Write the table and the plots of README.md, and report.html, from the stored results.

report.html shows the diff, the seeds and the learning curves of each experiment.
"""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which would choose a window system

from evaluation import page
from experiments import patches, stats
from experiments.comparison import Comparison, judge_by_stage
from experiments.patches import BASELINE, THEMES, ExperimentError, Patch
from experiments.recipes import RECIPES, Recipe
from experiments.store import COUNTS, changed, read_stored
from utils import errors_in_one_line, make_parser

COLOURS = {"better": "#0072B2", "worse": "#D55E00"}  # of Okabe & Ito 2008
COLOURS |= {"no difference": "#009E73", "undecided": "#8a8a8a"}
MARKS = "<!-- results -->", "<!-- end of results -->"


class Table:
    """The runs of a recipe's experiments and of the baseline, by name, and the verdicts on them."""

    def __init__(self, recipe: Recipe, runs: dict[str, list[dict]]):
        self.recipe, self.runs, self.score = recipe, runs, recipe.score.replace("_", " ")
        self.verdicts = judge_by_stage(recipe, runs)

    def cost(self, name: str) -> str:
        """Return training time and number of parameters as multiples of the baseline's."""
        runs = [[r for r in self.runs[n] if "seconds" in r] for n in (name, BASELINE.name)]
        if not all(runs):
            return ""
        time, base = (np.median([r["seconds"]["train"] for r in results]) for results in runs)
        return f"× {time / base:.2f}, × {runs[0][0]['parameters'] / runs[1][0]['parameters']:.2f}"

    def for_page(self, name: str) -> dict:
        """Return what report.html shows of an experiment, or of the baseline."""
        runs = [run for run in self.runs[name] if "curve" in run]
        shown = {"values": self.recipe.values(runs), "curves": [run["curve"] for run in runs]}
        if verdict := self.verdicts.get(name):
            shown |= {"outcome": verdict.outcome, "verdict": str(verdict), "cost": self.cost(name)}
            if np.isfinite(verdict.low):
                shown["interval"] = [verdict.difference, verdict.low, verdict.high]
                shown["numbers"] = verdict.numbers
        return shown

    def markdown(self, stored: dict) -> str:
        """Describe what was measured and how precisely, and format a table for each theme."""
        name, rows, gone = self.recipe.name, stored["rows"], sorted(changed(stored))
        scores = {name: self.recipe.values(runs) for name, runs in self.runs.items()}
        alike = [scores[name] for name, verdict in self.verdicts.items() if not verdict.note]
        baseline = scores[BASELINE.name]
        text = (
            f"**{name}**: {self.score} {np.mean(baseline):.1f}, mean of {len(baseline)} baseline "
            f"seeds; standard deviation {stats.pool(baseline, *alike).value:.2f}. "
            f"Processor: {stored['identity']['processor']}."
        )
        if any(rows[name]["baseline"] != rows[BASELINE.name]["key"] for name in self.runs):
            text += " Measured at several commits, all with identical weights for seed 0."
        if gone:
            text += f" Left out, as their patches have changed: {', '.join(gone)}."
        text += f"\n\n![differences from the baseline, {name}]({name}.png)\n"
        measured = [patches.read(name) for name in sorted(self.verdicts)]
        for theme in sorted({patch.theme for patch in measured}, key=THEMES.index):
            text += f"\n### {theme.capitalize()}\n\n"
            text += "| question | claim | verdict | time, parameters |\n|---|---|---|---|\n"
            for patch in (patch for patch in measured if patch.theme == theme):
                question = f"[{patch.name}]({patch.name}.patch): {patch.question}"
                verdict = self.verdicts[patch.name], self.cost(patch.name)
                text += f"| {question} | {patch.claim} | {verdict[0]} | {verdict[1]} |\n"
        others = [n for n in patches.names() if n not in self.verdicts and n not in gone]
        if others:
            links = ", ".join(f"[{name}]({name}.patch)" for name in others)
            text += f"\nNot measured yet: {links}.\n"
        return text


def forest(table: Table) -> Figure:
    """Draw the differences from the baseline with their intervals, sorted, and the zone ±delta.

    Beyond ±4 delta, an arrow replaces the rest: one large difference would squeeze all others.
    """
    recipe, limit = table.recipe, 4 * table.recipe.delta
    rows = [row for row in table.verdicts.items() if np.isfinite(row[1].low)]
    rows.sort(key=lambda row: row[1].difference)
    figure = Figure(figsize=(9, 1.8 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="0.3", lw=1)
    zone = axes.axvspan(-recipe.delta, recipe.delta, color="0.92", lw=0, zorder=0)
    handles = {f"±{recipe.delta:g} {recipe.unit}: too small to matter": zone}
    for y, (_, verdict) in enumerate(rows):
        x, low, high = verdict.difference, verdict.low, verdict.high
        colour = COLOURS[verdict.outcome]
        fill = "white" if verdict.outcome == "undecided" else colour
        axes.plot(np.clip([low, high], -limit, limit), [y, y], color=colour, lw=2)
        marks = (x, "o", abs(x) <= limit), (-limit, "<", low < -limit), (limit, ">", high > limit)
        for place, marker, drawn in marks:
            if drawn:
                axes.plot(place, y, marker, color=colour, mfc=fill)
        place = {"transform": axes.get_yaxis_transform(), "va": "center", "size": "small"}
        axes.text(1.02, y, verdict.numbers, **place)  # right of the plot
        handles[verdict.outcome] = axes.plot([], [], "o", color=colour, mfc=fill)[0]
    handles["continues beyond the plot"] = axes.plot([], [], "<", color="0.3")[0]
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set(xlim=(-1.05 * limit, 1.05 * limit), ylim=(-0.7, len(rows) - 0.3), title=recipe.name)
    axes.set_xlabel(f"experiment minus baseline in {recipe.unit}, with its interval")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write_page(path: Path, chosen: list[Patch], tables: dict[str, Table]) -> None:
    """Write report.html, which needs no other file and no network."""
    data = {"colours": COLOURS, "recipes": {}, "experiments": []}
    for name, table in tables.items():
        shown = {"delta": table.recipe.delta, "unit": table.recipe.unit, "score": table.score}
        data["recipes"][name] = shown | {"baseline": table.for_page(BASELINE.name)}
    for patch in sorted(chosen, key=lambda patch: ("this comparison", *THEMES).index(patch.theme)):
        shown = {n: t.for_page(patch.name) for n, t in tables.items() if patch.name in t.verdicts}
        data["experiments"].append(asdict(patch) | {"results": shown})
    path.write_text(page.fill(Path(__file__).with_name("template.html"), data), "utf-8")


def write_comparison(comparison: Comparison) -> Path:
    """Write a page of a comparison, followed by the stored experiments if their baseline counts."""
    recipe, results = comparison.recipe, comparison.results
    own = {patch.name: results.get(patch, recipe.stages[-1]) for patch in comparison.chosen}
    runs = {BASELINE.name: results.baseline()}
    if results.status(BASELINE) in COUNTS:
        gone = {BASELINE.name, *own, *changed(results.stored)}
        rows = results.stored["rows"].items()
        runs |= {name: row["runs"] for name, row in rows if name not in gone}
    table = Table(recipe, runs)
    table.runs, table.verdicts = runs | own, table.verdicts | comparison.verdicts()
    chosen = [replace(patch, theme="this comparison") for patch in comparison.chosen]
    chosen += [patches.read(name) for name in runs if name != BASELINE.name]
    path = comparison.runner.folder / "report.html"
    write_page(path, chosen, {recipe.name: table})
    return path


def write() -> None:
    """Write README.md, the plots and report.html. Raises ExperimentError and OSError."""
    readme = patches.HERE / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ExperimentError(f"{readme}: must contain {MARKS[0]} and then {MARKS[1]}")
    tables, parts = {}, []
    for name, recipe in RECIPES.items():
        if stored := read_stored(name):
            rows = {n: r["runs"] for n, r in stored["rows"].items() if n not in changed(stored)}
            tables[name] = Table(recipe, rows)
            parts.append(tables[name].markdown(stored))
            forest(tables[name]).savefig(patches.HERE / f"{name}.png", dpi=110)
    chosen = [patches.read(name) for name in patches.names()]
    text = "\n".join([MARKS[0], *parts, MARKS[1]])
    readme.write_text(before + text + after, "utf-8")
    write_page(patches.HERE / "report.html", chosen, tables)
    print(f"wrote {readme} and report.html, with results of {', '.join(tables) or 'no recipe'}")


if __name__ == "__main__":
    make_parser(__doc__, prog="python -m experiments.report").parse_args()
    with errors_in_one_line():
        write()
