"""Draw BLEU by the length of the source into RUN/figures, for each set of translations that
evaluate.py has written.
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
from training.records import find_run, load_config, read_json
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
GROUPS = ("1–5", "6–10", "11–15", "16–20", "21–30", "31–40", "41 and more")


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    if (task := load_config(flags.run).task) != "translation":
        raise UserError(f"{flags.run} is for {task}: only translations are drawn")
    paths = sorted(flags.run.glob("scores-*.json"))
    if not paths:
        raise UserError(f"there is nothing to draw: run python evaluate.py {quote(flags.run)}")
    for path in paths:
        name = path.stem.removeprefix("scores-")
        scores = read_json(path, "corpus", "split", "checkpoint", "search")
        stem = flags.run / "figures" / f"bleu-by-length-{name}"
        title = f"{flags.run.name}, {report.describe(scores)}"
        bleu_by_length(stem, report.read_outputs(flags.run, name), title)
        print(f"{stem}.png", f"{stem}.svg", sep="\n")


@contextmanager
def figure(stem: str | Path, width: float, height: float) -> Iterator:
    """Yield a Matplotlib figure, sizes in inches, and save it as stem.png and stem.svg."""
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure  # not pyplot, which would replace a notebook's backend

    installed = set(font_manager.get_font_names())
    style = STYLE | {"font.family": ["DejaVu Sans", *(x for x in FONTS if x in installed)]}
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(style), warnings.catch_warnings(record=True) as raised:
        canvas = Figure(figsize=(width, height), layout="compressed")
        yield canvas
        canvas.savefig(f"{stem}.png", dpi=110)
        canvas.savefig(f"{stem}.svg", metadata={"Date": None})
    for each in raised:
        if "missing from font" in str(each.message):  # once for all glyphs, by `warn`
            warn("a picture has characters that no font has: install more, as fonts-noto-cjk")
        else:
            warnings.warn(each.message, stacklevel=3)


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


if __name__ == "__main__":
    PARSER = make_parser(__doc__, prog="python -m evaluation.figures")
    PARSER.add_argument("run", type=find_run, metavar="RUN", help=command_line.RUN_HELP)
    handle_signals()
    command_line.run(main, PARSER.parse_args())
