"""Draw figures of a run into RUN/figures, for each set of outputs that evaluate.py has written:
BLEU by the length of the source, or the confusion matrix.
"""

import argparse
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evaluation import command_line, metrics, report
from evaluation.scores import Table
from training.records import find_run, read_json
from utils import UserError, handle_signals, make_parser, quote, warn

# Matplotlib is imported when a figure is drawn.

STYLE = {
    "text.parse_math": False,  # "$" is a token like any other
    "svg.fonttype": "none",  # text remains text: it can be searched
    "svg.hashsalt": "figures",  # with the date left out, equal data give equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
}
# Used, if installed, for letters that DejaVu Sans lacks.
FONTS = (
    "Noto Sans CJK SC, Noto Sans CJK JP, WenQuanYi Zen Hei, Microsoft YaHei, PingFang SC, "
    "Hiragino Sans, Noto Sans Devanagari, Noto Sans Thai"
).split(", ")
LENGTHS = (5, 10, 15, 20, 30, 40)  # words of a source: the ends of groups; the last is open
MANY_LABELS = 100  # with more, there is no figure
GROUPS = ("1–5", "6–10", "11–15", "16–20", "21–30", "31–40", "41 and more")


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    paths = sorted(flags.run.glob("scores-*.json"))
    if not paths:
        raise UserError(f"there is nothing to draw: run python evaluate.py {quote(flags.run)}")
    for path in paths:
        name = path.stem.removeprefix("scores-")
        scores = read_json(path, "corpus", "split", "checkpoint", "search")
        title = f"{flags.run.name}, {report.describe(scores)}"
        if 0 < len(matrix := scores.get("confusion", {})) <= MANY_LABELS:
            confusion(stem := flags.run / "figures" / f"confusion-{name}", matrix, title)
        elif "bleu" in scores:
            stem = flags.run / "figures" / f"bleu-by-length-{name}"
            bleu_by_length(stem, report.read_outputs(flags.run, name), title)
        else:
            raise UserError(f"{path} has neither translations nor a few labels to draw")
        print(f"{stem}.png", f"{stem}.svg", sep="\n")


@contextmanager
def figure(stem: str | Path, width: float, height: float, layout: str = "constrained") -> Iterator:
    """Yield a Matplotlib figure, sizes in inches, and save it as stem.png and stem.svg."""
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure  # not pyplot, which would replace a notebook's backend

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    with (
        matplotlib.rc_context(STYLE | {"font.family": fonts}),
        warnings.catch_warnings(record=True) as raised,
    ):
        canvas = Figure(figsize=(width, height), layout=layout)
        yield canvas
        canvas.savefig(f"{stem}.png", dpi=110)
        canvas.savefig(f"{stem}.svg", metadata={"Date": None})
    if any("missing from font" in str(each.message) for each in raised):
        warn("no installed font has all characters of a picture: install more, as fonts-noto-cjk")


def bleu_by_length(stem: Path, outputs: Table, title: str) -> None:
    """Draw BLEU by the number of words of the source, as STEM.png and .svg."""
    group = np.searchsorted(LENGTHS, [len(text.split()) for text in outputs["source"]])
    values, ticks = [], []
    for i in np.unique(group):
        rows = np.flatnonzero(group == i)
        columns = ([outputs[name][row] for row in rows] for name in ("output", "reference"))
        values.append(metrics.bleu(*columns))
        ticks.append(f"{GROUPS[i]}\n{len(rows):,}")
    with figure(stem, max(6, 1.1 * len(ticks) + 2), 4) as canvas:
        plot = canvas.subplots()
        plot.plot(values, marker="o")
        plot.set_xticks(range(len(ticks)), ticks)
        plot.set(xlabel="words of the source; below, the number of sentences", ylabel="BLEU")
        plot.set_title(textwrap.fill(title, 70))
        plot.set_ylim(0, 1.05 * max(values) or 1)
        plot.grid(axis="y", color="0.92")


def confusion(stem: Path, matrix: dict[str, dict[str, int]], title: str) -> None:
    """Draw a confusion matrix as STEM.png and .svg: counts, and below them shares of the row.

    matrix: {true label: {predicted label: count}}. Rows are true labels.
    """
    counts = np.array([[row.get(label, 0) for label in matrix] for row in matrix.values()])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    rows = [f"{label} ({count:,})" for label, count in zip(matrix, counts.sum(axis=1), strict=True)]
    side, longest = max(3, 0.7 * len(rows)), 0.09 * max(map(len, rows))
    with figure(stem, side + longest + 1.8, side + longest + 0.8, layout="compressed") as canvas:
        plot = canvas.subplots()
        image = plot.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, j), count in np.ndenumerate(counts):
            text = f"{count:,}\n{100 * shares[i, j]:.1f} %" if count else "0"
            colour = "white" if shares[i, j] > 0.6 else "black"
            plot.text(j, i, text, color=colour, ha="center", va="center", fontsize=9)
        plot.tick_params(length=0)
        plot.set_xticks(range(len(rows)), [*matrix], rotation=90)
        plot.set_yticks(range(len(rows)), rows)
        plot.set(xlabel="predicted", ylabel="true (count)")
        plot.set_title(textwrap.fill(title, int(12 * side)))
        canvas.colorbar(image, ax=plot, label="share of the row")


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m evaluation.figures")
    PARSER.add_argument("run", type=find_run, metavar="RUN", help=command_line.RUN_HELP)
    handle_signals()
    command_line.run(main, PARSER.parse_args())
