"""Draw figures of a run into RUN/figures, for each set of outputs that evaluate.py has written:
BLEU by the length of the source, of all runs that are named, or the confusion matrix of the first.
"""

import argparse
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evaluation import command_line, metrics, report
from evaluation.scores import Table
from training.records import find_run
from utils import UserError, handle_signals, make_parser, quote, warn

# Matplotlib is imported when a figure is drawn.

# Okabe and Ito's colours, which colour-blind readers can tell apart, without pale ones.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
MARKERS = "osD^v"
STYLE = {
    "text.parse_math": False,  # "$" is a token like any other
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",  # with the date left out, equal data give equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.titlesize": 11,
    "grid.color": "0.92",
    "legend.frameon": False,
}
# Used, if installed, for letters that DejaVu Sans lacks.
FONTS = (
    "Noto Sans CJK SC, Noto Sans CJK JP, WenQuanYi Zen Hei, Microsoft YaHei, PingFang SC, "
    "Hiragino Sans, Noto Sans Devanagari, Noto Sans Thai"
).split(", ")
LENGTHS = (5, 10, 15, 20, 30, 40)  # words of a source: the ends of groups; the last is open


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    first, stems = flags.runs[0], []
    for path in sorted(first.glob("outputs-*.tsv")):
        name = path.stem.removeprefix("outputs-")
        scores = report.read_scores(first, name)
        title = f"{first.name}, {report.describe(scores)}"
        if matrix := scores.get("confusion"):
            stems.append(first / "figures" / f"confusion-{name}")
            confusion(stems[-1], matrix, title)
        elif "bleu" in scores:
            stems.append(first / "figures" / f"bleu-by-length-{name}")
            bleu_by_length(stems[-1], same_texts(flags.runs, name), title)
    if not stems:
        raise UserError(
            f"{first} has no translations or labels to draw: run python evaluate.py {quote(first)} "
            "first"
        )
    print(*(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")), sep="\n")


def same_texts(runs: list[Path], name: str) -> dict[str, Table]:
    """Return the outputs of each run for the texts of the first, with a warning for others."""
    tables, first = {}, report.read_outputs(runs[0], name)
    for run in dict.fromkeys(runs):
        table = report.read_outputs(run, name) if (run / f"outputs-{name}.tsv").exists() else {}
        if all(table.get(column) == first[column] for column in ("source", "reference")):
            tables[str(run)] = table
        else:
            warn(f"{run} has no outputs-{name}.tsv of the same texts, so it is not drawn")
    return tables


@contextmanager
def figure(stem: str | Path, width: float, height: float, layout: str = "constrained") -> Iterator:
    """Yield a Matplotlib figure, sizes in inches, and save it as stem.png and stem.svg.

    Text in the SVG remains text: it can be searched, and the reader's own fonts are used.
    """
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure  # not pyplot, which would replace a notebook's backend

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE | {"font.family": fonts}):
        canvas = Figure(figsize=(width, height), layout=layout)
        yield canvas
        canvas.savefig(f"{stem}.png", dpi=110)
        canvas.savefig(f"{stem}.svg", metadata={"Date": None})


def bleu_by_length(stem: Path, runs: dict[str, Table], title: str) -> None:
    """Draw BLEU by the number of words of the source, a line for each run, as STEM.png and .svg.

    runs: {name: outputs}, of the same sources and references.
    """
    table = next(iter(runs.values()))
    group = np.searchsorted(LENGTHS, [len(text.split()) for text in table["source"]])
    names = [f"{a + 1}–{b}" for a, b in zip((0, *LENGTHS), LENGTHS, strict=False)]
    names.append(f"{LENGTHS[-1] + 1} and more")
    groups = {i: np.flatnonzero(group == i) for i in np.unique(group)}
    with figure(stem, max(6, 1.1 * len(groups) + 2), 4) as canvas:
        plot = canvas.subplots()
        for number, (run, outputs) in enumerate(runs.items()):
            columns = outputs["output"], outputs["reference"]
            values = [
                metrics.bleu(*([column[i] for i in group] for column in columns))
                for group in groups.values()
            ]
            style = {"color": COLOURS[number % 6], "marker": MARKERS[number % 5]}  # 30 styles
            # Matplotlib leaves names that begin with "_" out of a legend.
            plot.plot(values, label=f" {run}" if run.startswith("_") else run, **style)
        ticks = [f"{names[i]}\n{len(group):,}" for i, group in groups.items()]
        plot.set_xticks(range(len(groups)), ticks)
        plot.set(xlabel="words of the source; below, the number of sentences", ylabel="BLEU")
        plot.set_title(textwrap.fill(title, 70))
        plot.set_ylim(0, 1.05 * plot.dataLim.y1 or 1)
        plot.yaxis.set_major_formatter("{x:,g}")
        plot.grid(axis="y")
        canvas.legend(loc="outside upper center", ncols=min(2, len(runs)))


def confusion(stem: Path, matrix: report.Confusion, title: str) -> None:
    """Draw a confusion matrix as STEM.png and .svg: counts, and below them shares of the row.

    Rows are true labels, columns predicted ones. Of many labels, those with most errors are shown.
    """
    errors = dict.fromkeys(label for error in report.confused(matrix) for label in error[:2])
    shown = [*errors, *(label for label in matrix if label not in errors)][: report.LABELS_SHOWN]
    labels = [label for label in matrix if label in shown]
    if len(labels) < len(matrix):
        title += f": {len(labels)} of {len(matrix):,} labels, those with most errors"
    rows = [f"{label} ({sum(matrix[label].values()):,})" for label in labels]
    side, longest = max(3, 0.7 * len(rows)), 0.09 * max(map(len, rows))
    with figure(stem, side + longest + 1.8, side + longest + 0.8, layout="compressed") as canvas:
        plot = canvas.subplots()
        shares = np.zeros((len(labels), len(labels)))
        for place in np.ndindex(shares.shape):
            row = matrix[labels[place[0]]]
            count = row.get(labels[place[1]], 0)
            shares[place] = count / max(1, sum(row.values()))
            text = f"{count:,}\n{100 * shares[place]:.1f} %" if count else "0"
            colour = "white" if shares[place] > 0.6 else "black"
            plot.text(*place[::-1], text, color=colour, ha="center", va="center", fontsize=9)
        image = plot.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        plot.spines[:].set_visible(False)
        plot.tick_params(length=0)
        plot.set_xticks(range(len(labels)), labels, rotation=30, ha="right", rotation_mode="anchor")
        plot.set_yticks(range(len(rows)), rows)
        plot.set(xlabel="predicted", ylabel="true (count)")
        plot.set_title(textwrap.fill(title, int(12 * side)))
        canvas.colorbar(image, ax=plot, label="share of the row")


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = make_parser(__doc__, prog="python -m evaluation.figures")
    text = "run directories, such as runs/NAME; all but the first are drawn for comparison"
    parser.add_argument("runs", nargs="+", type=find_run, metavar="RUN", help=text)
    handle_signals()
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, parse_flags())
