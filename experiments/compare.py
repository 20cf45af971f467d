"""Compare experiments with the baseline of the same seeds.

Prints tables. Without names, every experiment that was run is compared; --all also writes the
tables and a plot into experiments/README.md.
"""

import argparse
import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from config import UserError, fail, make_parser
from experiments import jobs, patches
from experiments.jobs import RECIPES
from experiments.patches import BASELINE, ExperimentError
from training import records
from training.records import load_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; the last is used beyond 20.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
UNITS = {"bleu": "BLEU", "exact_match": "exact match, points", "accuracy": "accuracy, points"}


@dataclass
class Run:
    """A finished run, read from its directory."""

    path: Path
    seed: int
    base: tuple  # code and flags that it must share with a baseline
    scores: dict[str, dict]  # by split, as written by evaluate.py; accuracy in per cent
    tokens_per_second: float
    minutes: float
    commit: str

    @classmethod
    def read(cls, path: Path, metadata: dict, splits: list[str]) -> "Run":
        """Read a run directory. Raises OSError and UserError."""
        lines = records.read_json_lines(path / "metrics.jsonl")
        speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
        seconds = [line["seconds"] for line in lines if "seconds" in line]
        scores = {split: records.read_json(path / f"scores-{split}.json") for split in splits}
        for values in scores.values():
            if "bleu" not in values:
                values["accuracy"] *= 100
        return cls(
            path=path,
            seed=int(path.name.removeprefix("seed-")),
            base=(metadata["base"], *metadata["common"]),
            scores=scores,
            tokens_per_second=statistics.median(speeds or [math.nan]),
            minutes=sum(seconds) / 60,
            commit=(records.read_json(path / "provenance.json")["commit"] or "unknown")[:7],
        )


def read_runs(folder: Path, name: str, splits: list[str]) -> tuple[dict[int, Run], list[str]]:
    """Return the finished runs of an experiment by seed, and notes on the others."""
    runs, notes = {}, []
    patch = patches.read(name)
    for file in sorted((folder / name).glob("seed-*.json")):
        metadata, path = records.read_json(file), file.with_suffix("")
        scored = [split for split in splits if (path / f"scores-{split}.json").exists()]
        if (metadata.get("patch"), metadata.get("flags")) != (patch.digest, patch.flags):
            notes.append(f"{name} {path.name} was trained with an older patch: left out")
        elif scored == splits:
            run = Run.read(path, metadata, splits)
            runs[run.seed] = run
        else:
            last = jobs.last_line(file.with_suffix(".log"))
            notes.append(f"{name} {path.name} is not finished; last line of its log: {last}")
    return runs, notes


@dataclass
class Difference:
    """Experiment minus baseline, paired by seed: the mean and its 95 % t interval."""

    values: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def half(self) -> float | None:
        """Half the width of the interval; None for one seed."""
        n = len(self.values)
        if n < 2:
            return None
        return STUDENT[min(n - 1, len(STUDENT)) - 1] * statistics.stdev(self.values) / math.sqrt(n)

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Ends of the interval."""
        return (None, None) if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def verdict(self) -> str:
        if self.half is None:
            return "one seed"
        if abs(self.mean) <= self.half:
            return "inside the noise"
        return "better" if self.mean > 0 else "worse"

    def __str__(self):
        if self.half is None:
            return f"{self.mean:+.1f}"
        return "{:+.1f} [{:+.1f}, {:+.1f}]".format(self.mean, *self.ends)


def spread(values: list[float]) -> str:
    """Format mean ± standard deviation."""
    text = f"{statistics.fmean(values):.1f}"
    return text + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


@dataclass
class Row:
    """Runs of an experiment, and the runs of the baseline with the same seeds."""

    patch: patches.Patch
    runs: list[Run]
    baseline: list[Run]  # in the same order

    def column(self, split: str, score: str) -> list[float]:
        """Return a score of each run."""
        return [run.scores[split][score] for run in self.runs]

    def difference(self, split: str, score: str) -> Difference:
        pairs = zip(self.runs, self.baseline, strict=True)
        return Difference([a.scores[split][score] - b.scores[split][score] for a, b in pairs])

    def bootstrap(self, split: str) -> float:
        """Return the p-value of one seed's difference in BLEU: paired bootstrap, Koehn 2004."""
        from sacrebleu.metrics import BLEU
        from sacrebleu.significance import PairedTest

        from data import corpora

        config = load_config(self.runs[0].path)
        texts = corpora.load(config.corpus, split, config.reverse)
        outputs = [
            (run.path / f"translations-{split}.txt").read_text("utf-8").split("\n")[:-1]
            for run in (self.baseline[0], self.runs[0])
        ]
        systems = [("baseline", outputs[0]), (self.patch.name, outputs[1])]
        metrics = {"BLEU": BLEU(tokenize="13a", force=True)}
        _, scores = PairedTest(systems, metrics, [texts.targets], "bs", 1000)()
        baseline, own = scores["BLEU"]
        return own.p_value if own.score != baseline.score else 1.0


def make_rows(folder: Path, names: list[str], splits: list[str]) -> tuple[list[Row], list[str]]:
    """Return a Row per experiment, the baseline first, and notes. Raises ExperimentError."""
    baseline, notes = read_runs(folder, BASELINE.name, splits)
    if not baseline:
        message = f"{folder} has no finished baseline: start python -m experiments.run first"
        raise ExperimentError(message)
    # If there are several versions of the code, use that of most baselines.
    ((base, _),) = Counter(run.base for run in baseline.values()).most_common(1)
    for seed in [seed for seed, run in baseline.items() if run.base != base]:
        notes.append(f"baseline seed-{seed} has other code or flags than the rest: left out")
        del baseline[seed]
    rows = [Row(BASELINE, list(baseline.values()), list(baseline.values()))]
    for name in names:
        runs, more = read_runs(folder, name, splits)
        notes += more
        pairs = []
        for seed, run in runs.items():
            if seed in baseline and baseline[seed].base == run.base:
                pairs.append((run, baseline[seed]))
            else:
                reason = "no baseline of the same seed, code and flags"
                notes.append(f"{name} seed-{seed} has {reason}: left out")
        if pairs:
            rows.append(Row(patches.read(name), *map(list, zip(*pairs, strict=True))))
    return rows, notes


def measures(rows: list[Row], splits: list[str]) -> list[tuple[str, str]]:
    """Return the (split, score) columns of the table, the headline first.

    The headline is exact match on the last split, or BLEU if there is only one; for classifiers
    accuracy.
    """
    if "bleu" not in rows[0].runs[0].scores["test"]:
        return [(split, "accuracy") for split in reversed(splits)]
    last = [(splits[-1], "exact_match")] if len(splits) > 1 else []
    return [*last, ("test", "bleu"), ("test", "exact_match")]


def table(header: list, rows: list[list]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def main_table(rows: list[Row], columns: list[tuple[str, str]]) -> str:
    """Format the table of all experiments."""
    header = ["experiment", "n"]
    for split, score in columns:
        header += [f"{split} {score.replace('_', ' ')}", "difference"]
    header += ["verdict", "parameters", "tokens/s", "minutes", "commit"]
    lines = []
    for row in rows:
        is_baseline = row.patch == BASELINE
        name = row.patch.name if is_baseline else f"[{row.patch.name}]({row.patch.path.name})"
        cells = [f"{name}: {row.patch.question}", len(row.runs)]
        for column in columns:
            cells += [spread(row.column(*column)), "" if is_baseline else row.difference(*column)]
        verdict = "" if is_baseline else row.difference(*columns[0]).verdict
        if verdict == "one seed" and ("test", "bleu") in columns:
            verdict += f"; bootstrap over sentences: p = {row.bootstrap('test'):.3f}"
        cells += [
            verdict,
            f"{row.runs[0].scores['test']['parameters']:,}",
            # The median, because the machine may have been busy during some runs.
            f"{statistics.median(run.tokens_per_second for run in row.runs):,.0f}",
            f"{statistics.median(run.minutes for run in row.runs):.1f}",
            ", ".join(sorted({run.commit for run in row.runs})),
        ]
        lines.append(cells)
    return table(header, lines)


def tag_table(rows: list[Row], split: str) -> str:
    """Format mean exact match by phenomenon; "" if the corpus has no tags."""
    first = rows[0].runs[0].scores[split].get("exact_match_by_tag")
    if not first:
        return ""
    lines = []
    for row in rows:
        tags = [run.scores[split]["exact_match_by_tag"] for run in row.runs]
        means = [statistics.fmean(values[tag][1] for values in tags) for tag in first]
        lines.append([row.patch.name, *(f"{mean:.1f}" for mean in means)])
    return table([split, *first], lines)


def report(rows: list[Row], splits: list[str], notes: list[str]) -> str:
    """Format tables, findings and notes as Markdown."""
    findings = [f"- **{r.patch.name}**: {r.patch.finding}\n" for r in rows if r.patch.finding]
    parts = [
        main_table(rows, measures(rows, splits)),
        tag_table(rows, splits[-1]),
        "".join(findings),
        "".join(f"- {note}\n" for note in notes),
    ]
    return "\n".join(part for part in parts if part)


def forest(rows: list[tuple], title: str, xlabel: str) -> "Figure":
    """Draw a forest plot: differences from the baseline with their intervals, sorted.

    rows: (name, mean, low, high); low and high are None for one seed.
    """
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    rows = sorted(rows, key=lambda row: row[1])
    # Clip long intervals: a single one would squeeze all others.
    limit = 1.3 * max((abs(row[1]) for row in rows), default=0) + 1e-9
    ends = [min(max(end, -limit), limit) for row in rows for end in row[1:] if end is not None]
    left, right = min([0, *ends]), max([0, *ends])
    margin = (right - left) / 30 + 1e-9
    figure = Figure(figsize=(7.5, 1.5 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="0.3", lw=1)
    points = {}  # one of each verdict, for the legend
    for y, (_, mean, low, high) in enumerate(rows):
        noise = low is None or low <= 0 <= high
        colour = "0.55" if noise else "#0072B2" if mean > 0 else "#D55E00"
        verdict = "better" if mean > 0 else "worse"
        if noise:
            verdict = "one seed" if low is None else "inside the noise: interval contains 0"
        if low is not None:
            axes.plot([low, high], [y, y], color=colour, lw=2)
        points[verdict] = axes.plot(mean, y, "o", color=colour, mfc="white" if noise else colour)[0]
    figure.legend(points.values(), points, loc="outside lower center", ncols=3, frameon=False)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set(xlim=(left - margin, right + margin), ylim=(-0.7, len(rows) - 0.3))
    axes.set(xlabel=xlabel, title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    return figure


def draw(recipe: str, rows: list[Row], splits: list[str]) -> Path:
    """Write the forest plot of the headline score next to the patches."""
    split, score = measures(rows, splits)[0]
    points = []
    for row in rows[1:]:
        difference = row.difference(split, score)
        points.append((row.patch.name, difference.mean, *difference.ends))
    several = any(len(row.runs) > 1 for row in rows)
    interval = "mean and 95 % interval over paired seeds" if several else "one seed, no interval"
    title = f"{recipe}: difference from the baseline, {split}"
    path = patches.HERE / f"{recipe}.png"
    forest(points, title, f"{UNITS[score]}; {interval}").savefig(path, dpi=110)
    return path


def write(recipe: str, rows: list[Row], splits: list[str], text: str) -> None:
    """Write the report between the recipe's markers in README.md. Raises ExperimentError."""
    readme = patches.HERE / "README.md"
    before = readme.read_text("utf-8")
    marks = [f"<!-- {recipe} -->", f"<!-- end of {recipe} -->"]
    if any(before.count(mark) != 1 for mark in marks):
        raise ExperimentError(f"{readme}: must contain {marks[0]} and {marks[1]} once each")
    picture = draw(recipe, rows, splits)
    text = f"{marks[0]}\n![differences from the baseline]({picture.name})\n\n{text}{marks[1]}"
    after = re.sub(f"{marks[0]}.*{marks[1]}", lambda _: text, before, flags=re.DOTALL)
    readme.write_text(after, "utf-8")
    print(f"wrote {readme}, {picture.name}")


def compare(flags: argparse.Namespace) -> None:
    """Print the report; with --all also write it. Raises UserError and OSError."""
    name = flags.recipe or jobs.default_recipe(flags.names)
    recipe = RECIPES[name]
    folder, splits = flags.folder or Path(recipe.folder), flags.splits or recipe.splits
    names = flags.names or [name for name in patches.names() if (folder / name).exists()]
    rows, notes = make_rows(folder, [name for name in names if name != BASELINE.name], splits)
    text = report(rows, splits, notes)
    print(text)
    if flags.all:
        write(name, rows, splits, text)


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(
        __doc__,
        prog="python -m experiments.compare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments [all that were run]")
    parser.add_argument("--all", action="store_true", help="write the report of all experiments")
    parser.add_argument("--recipe", choices=RECIPES, help="as for experiments.run")
    parser.add_argument("--folder", type=Path, help="as for experiments.run")
    parser.add_argument("--splits", nargs="+", help="as for experiments.run")
    flags = parser.parse_args()
    if flags.all and flags.names:
        raise ExperimentError("name experiments, or use --all")
    return flags


if __name__ == "__main__":
    try:
        compare(parse_flags())
    except (UserError, OSError) as error:
        fail(error)
