"""Write the table and the plots of README.md from the stored results."""

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which would choose a window system

from experiments import patches, stats
from experiments.comparison import judge_by_score, judged_score, other_score
from experiments.patches import BASELINE, THEMES, ExperimentError, Patch
from experiments.recipes import RECIPES, Pairs, Recipe
from experiments.store import PROCESSOR, changed, read_stored, spread, stored_pairs
from utils import errors_in_one_line, make_parser

COLOURS = {"better": "#0072B2", "worse": "#D55E00"}  # of Okabe & Ito 2008
COLOURS |= {stats.SMALL: "#009E73", "undecided": "#8a8a8a", stats.NONE: "#56B4E9"}
MARKS = "<!-- results -->", "<!-- end of results -->"


class Table:
    """The runs of a recipe's baseline, the pairs of its experiments, and the verdicts on them.

    chosen: the experiments.
    """

    def __init__(
        self, recipe: Recipe, baseline: list[dict], pairs: dict[str, Pairs], chosen: list[Patch]
    ):
        self.recipe, self.baseline, self.pairs = recipe, baseline, pairs
        self.scores = {p.name: judged_score(recipe, p, pairs[p.name]) for p in chosen}
        self.verdicts = judge_by_score(recipe, pairs, self.scores, others=pairs)
        self.spread = spread(recipe, pairs)

    @classmethod
    def of_stored(cls, recipe: Recipe, stored: dict) -> "Table":
        """Return the table of the stored results of a recipe, as `store.read_stored` returns."""
        pairs = stored_pairs(stored)
        known = [patches.read(name).for_recipe(recipe.name) for name in pairs]
        return cls(recipe, stored["rows"][BASELINE.name]["runs"], pairs, known)

    @property
    def with_intervals(self) -> dict[str, stats.Verdict]:
        """Return the verdicts of a stage that have an interval in the recipe's own unit."""
        return {
            name: verdict
            for name, verdict in self.verdicts.items()
            if self.recipe_of(name) == self.recipe
            and self.reached_stage(name)
            and -np.inf < verdict.low < verdict.high < np.inf  # no run diverged, scores changed
        }

    def reached_stage(self, name: str) -> bool:
        """Return whether an experiment has enough pairs for a verdict."""
        return self.verdicts[name].seeds >= self.recipe.stages[0]

    def recipe_of(self, name: str) -> Recipe:
        """Return the recipe with the score by which an experiment is judged."""
        return self.recipe.with_score(self.scores[name])

    def cell(self, name: str) -> str:
        """Return the verdict on an experiment; only the difference if no stage is reached."""
        if name not in self.verdicts:
            return ""
        recipe, verdict = self.recipe_of(name), self.verdicts[name]
        text, last = str(verdict), recipe.stages[-1]
        if not verdict.note and not self.reached_stage(name):
            seeds = f"{verdict.seeds} seed{'s' * (verdict.seeds > 1)}"
            text = f"{verdict.difference:+.{recipe.decimals}f} ({seeds})"
        elif verdict.outcome == "undecided" and verdict.seeds < last:  # more could decide it
            text = text.replace(" seeds", f" of {last} seeds")
        text = "BLEU: " * (recipe != self.recipe) + text
        # The pairs that were judged.
        first = {seed: p for seed, p in self.pairs[name].items() if seed < verdict.seeds}
        return text + other_score(recipe, first or self.pairs[name], verdict)

    def cost(self, name: str) -> str:
        """Return training time and number of parameters as multiples of the baseline's.

        Of each side the shortest time: other processes can only make a run longer.
        """
        timed = [p for p in self.pairs[name].values() if all("seconds" in run for run in p)]
        if not timed:
            return ""
        timed = [p for p in timed if p[0][PROCESSOR] == timed[0][0][PROCESSOR]]
        own, base = (min(p[i]["seconds"]["train"] for p in timed) for i in (0, 1))
        parameters = timed[0][0]["parameters"] / timed[0][1]["parameters"]
        return f"× {own / base:.1f}, × {parameters:.2f}"

    def summary(self, gone: set[str]) -> str:
        """Describe what was measured and how precisely, and link the plot.

        gone: names of the experiments that are left out, because their patches have changed.
        """
        recipe, parts, groups = self.recipe, [], []
        kinds = {run[PROCESSOR]: run["processor"] for run in self.baseline}
        for kind, processor in kinds.items():
            runs = [recipe.value(run) for run in self.baseline if run[PROCESSOR] == kind]
            groups.append(runs)
            text, digits = recipe.format(np.mean(runs)), recipe.decimals + 1
            if len(runs) > 1:
                noise = f", standard deviation {np.std(runs, ddof=1):.{digits}f}"
                text += f" (mean of {len(runs)} runs{noise})"
            same_name = [*kinds.values()].count(processor) > 1
            parts.append(f"{text} on {processor}" + f" ({kind})" * same_name)
        text, (sigma, _) = f"**{recipe.name}**: baseline {', '.join(parts)}.", self.spread
        if agree := stats.agree(groups):
            text += f" {agree}"
        if sigma.df:
            value = f"{sigma.value:.{recipe.decimals + 1}f} {recipe.unit}"
            freedom = f"{sigma.df} degrees of freedom"
            text += f" Standard deviation of a difference: {value} ({freedom})."
        if gone:
            names = ", ".join(sorted(gone))
            text += f" Left out, as their patches have changed: {names}."
        return f"{text}{f' [Plot]({recipe.name}.png).' * bool(self.with_intervals)}\n"


def markdown(tables: list[Table]) -> str:
    """Format a table for each theme, with the verdicts of each recipe."""
    known = {name for table in tables for name in table.verdicts}
    measured, text = [patches.read(name) for name in sorted(known)], ""
    for theme in sorted({patch.theme for patch in measured}, key=THEMES.index):
        chosen = [patch for patch in measured if patch.theme == theme]
        shown = [t for t in tables if any(patch.name in t.verdicts for patch in chosen)]
        names = " | ".join(table.recipe.name for table in shown)
        text += f"\n### {theme.capitalize()}\n\n| question | claim | {names} | time, parameters |\n"
        text += "|---" * (len(shown) + 3) + "|\n"
        for patch in chosen:
            cells = [f"[{patch.name}]({patch.name}.patch): {patch.question}", patch.claim]
            cells += [table.cell(patch.name) for table in shown]
            costs = (t.cost(patch.name) for t in shown if patch.name in t.pairs)
            text += f"| {' | '.join(cells)} | {next(filter(None, costs), '')} |\n"
    others = [f"[{name}]({name}.patch)" for name in patches.names() if name not in known]
    return text + f"\nNot measured yet: {', '.join(others)}.\n" * bool(others)


def forest(table: Table) -> Figure:
    """Draw the differences from the baseline with their intervals, best first, and the zone ±delta.

    The scale is nearly linear within the zone and logarithmic beyond it, because some changes have
    a hundred times the effect of others.
    """
    recipe = table.recipe
    rows = sorted(table.with_intervals.items(), key=lambda row: row[1].difference)
    rows = rows[::-1] if recipe.lower_is_better else rows  # from the bottom to the top
    figure = Figure(figsize=(9, 1.8 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("asinh", linear_width=recipe.delta, base=0)
    axes.axvline(0, color="0.3", lw=1)
    zone = axes.axvspan(-recipe.delta, recipe.delta, color="0.92", lw=0, zorder=0)
    handles = {f"±{recipe.delta:g} {recipe.unit}: too small to matter": zone}
    for y, (_, verdict) in enumerate(rows):
        colour = COLOURS[verdict.outcome]
        fill = "white" if verdict.outcome == "undecided" else colour
        axes.plot([verdict.low, verdict.high], [y, y], color=colour, lw=2)
        handles[verdict.outcome] = axes.plot(verdict.difference, y, "o", color=colour, mfc=fill)[0]
        place = {"transform": axes.get_yaxis_transform(), "va": "center", "size": "small"}
        axes.text(1.02, y, verdict.numbers, **place)  # right of the plot
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set(ylim=(-0.7, len(rows) - 0.3), title=recipe.name)
    better = "; lower is better" * recipe.lower_is_better
    interval = f"95 % interval ({stats.SMALL}: 90 %)"
    scale = "logarithmic scale outside the grey zone"
    axes.set_xlabel(f"experiment minus baseline in {recipe.unit}{better}, with {interval}\n{scale}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write() -> None:
    """Write README.md and the plots. Raises ExperimentError and OSError."""
    readme = patches.HERE / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ExperimentError(f"{readme}: must contain {MARKS[0]} and then {MARKS[1]}")
    tables, parts = {}, []
    for name, recipe in RECIPES.items():
        if stored := read_stored(recipe):
            tables[name] = Table.of_stored(recipe, stored)
            parts.append(tables[name].summary(changed(stored)))
            if tables[name].with_intervals:
                forest(tables[name]).savefig(patches.HERE / f"{name}.png", dpi=110)
    text = "\n".join([MARKS[0], *parts, markdown([*tables.values()]), MARKS[1]])
    readme.write_text(before + text + after, "utf-8")
    print(f"wrote {readme} with results of {', '.join(tables) or 'no recipe'}")


if __name__ == "__main__":
    make_parser(__doc__, prog="python -m experiments.report").parse_args()
    with errors_in_one_line():
        write()
