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

OUTCOMES = ("better", "worse", "no difference", "undecided")  # colours of Okabe & Ito 2008
COLOURS = dict(zip(OUTCOMES, ("#0072B2", "#D55E00", "#009E73", "#8a8a8a"), strict=True))
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
            numbers = {n: x for n, x in verdict._asdict().items() if x == x}  # JSON has no NaN
            numbers |= {"numbers": verdict.numbers} if "low" in numbers else {}
            shown |= numbers | {"verdict": str(verdict), "cost": self.cost(name)}
        return shown


def summary(table: Table, stored: dict) -> str:
    """Describe what was measured, and how precisely."""
    recipe, runs, verdicts = table.recipe, table.runs, table.verdicts
    scores = {name: recipe.values(results) for name, results in runs.items()}
    alike = [scores[name] for name, verdict in verdicts.items() if not verdict.note]
    sigma, m = stats.pool(scores[BASELINE.name], *alike), len(runs[BASELINE.name])
    size = stats.detectable(sigma, recipe.delta, recipe.stages, m, len(verdicts))[-1]
    notes = [f"{name} ({verdict.note})" for name, verdict in verdicts.items() if verdict.note]
    rows, gone = stored["rows"], sorted(changed(stored))
    earlier = any(rows[name]["baseline"] != rows[BASELINE.name]["key"] for name in runs)
    decided = sum(verdict.outcome != "undecided" for verdict in verdicts.values())
    sentences = {
        f"Decided: {decided} of {len(verdicts)}.": verdicts,
        f"Diverged, or with a variance unlike that of the others: {', '.join(notes)}.": notes,
        "The code has changed since; seed 0 still gives identical weights.": earlier,
        f"Left out, as their patches have changed: {', '.join(gone)}.": gone,
    }
    text = " ".join(sentence for sentence, holds in sentences.items() if holds)
    return (
        f"**{recipe.name}**: {table.score} {np.mean(scores[BASELINE.name]):.1f}, mean of {m} "
        f"baseline seeds; standard deviation {sigma.value:.2f}. In this table, a difference of "
        f"{size:.1f} is detected with 80 % power after {recipe.stages[-1]} seeds. {text} "
        f"Processor: {stored['identity']['processor']}.\n\n"
        f"![differences from the baseline, {recipe.name}]({recipe.name}.png)\n"
    )


def markdown(chosen: list[Patch], tables: dict[str, Table]) -> str:
    """Format the experiments as Markdown tables, one for each theme."""
    text = ""
    header = "| question | claim | verdict | time, parameters |\n|---|---|---|---|\n"
    for theme in THEMES:
        text += f"### {theme.capitalize()}\n\n{header}"
        for patch in (patch for patch in chosen if patch.theme == theme):
            measured = {n: table for n, table in tables.items() if patch.name in table.verdicts}
            shown = [f"{n}: {table.verdicts[patch.name]}" for n, table in measured.items()]
            costs = {n: table.cost(patch.name) for n, table in measured.items()}
            costs = [f"{n}: {cost}" for n, cost in costs.items() if cost]
            cells = [f"[{patch.name}]({patch.name}.patch): {patch.question}", patch.claim]
            cells += ["; ".join(shown) or "not measured yet", "; ".join(costs)]
            text += f"| {' | '.join(cells)} |\n"
        text += "\n"
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
        for place, marker, drawn in (
            (x, "o", abs(x) <= limit),
            (-limit, "<", low < -limit),
            (limit, ">", high > limit),
        ):
            if drawn:
                axes.plot(place, y, marker, color=colour, mfc=fill if marker == "o" else colour)
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
            parts.append(summary(tables[name], stored))
            forest(tables[name]).savefig(patches.HERE / f"{name}.png", dpi=110)
    chosen = [patches.read(name) for name in patches.names()]
    text = "\n".join([MARKS[0], *parts, markdown(chosen, tables), MARKS[1]])
    readme.write_text(before + text + after, "utf-8")
    write_page(patches.HERE / "report.html", chosen, tables)
    print(f"wrote {readme} and report.html, with results of {', '.join(tables) or 'no recipe'}")


if __name__ == "__main__":
    make_parser(__doc__, prog="python -m experiments.report").parse_args()
    with errors_in_one_line():
        write()
