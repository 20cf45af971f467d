"""Draw figures of a run into RUN/figures, for each set of outputs that evaluate.py has written:
BLEU by the length of the source, or the loss by the number of tokens of context, of all runs that
are named, or the confusion matrix of the first.
"""

import argparse
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evaluation import command_line, metrics, report
from training.records import find_run, load_config
from utils import UserError, handle_signals, make_parser, quote, warn

# Matplotlib is imported when a figure is drawn.

# Okabe and Ito's colours, which colour-blind readers can tell apart, without those that are pale on
# white.
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
# Minimum and maximum number of words of a source, in the plot of BLEU by length.
LENGTHS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, math.inf))


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    runs = dict(zip(run_labels(flags.runs), flags.runs, strict=True))
    first, folder = flags.runs[0], flags.runs[0] / "figures"
    paths = sorted(first.glob("outputs-*.tsv"))
    if not paths:
        raise UserError(
            f"{first} has no scored outputs: run python evaluate.py {quote(first)} first"
        )
    for path in paths:
        name = path.stem.removeprefix("outputs-")
        draw_outputs(folder, name, report.read_scores(first, name), runs)
    print(*sorted(p for p in folder.iterdir() if p.suffix in (".png", ".svg")), sep="\n")


def draw_outputs(folder: Path, name: str, scores: dict, runs: dict[str, Path]) -> None:
    """Draw the outputs called `name` of the first run, and of other runs with the same texts."""
    first, title = next(iter(runs)), report.describe(scores)
    if matrix := scores.get("confusion"):
        if isinstance(next(iter(matrix.values())), list):  # of older code
            rows = {a: zip(matrix, row, strict=True) for a, row in matrix.items()}
            matrix = {a: {b: n for b, n in row if n} for a, row in rows.items()}
        seen = {label for row in matrix.values() for label in row}  # predicted in these texts
        labels = [label for label, row in matrix.items() if row or label in seen]
        title = f"{first}, {title}"
        if len(labels) > report.LABELS_SHOWN:
            errors = dict.fromkeys(x for error in report.confused(matrix) for x in error[:2])
            title += f": {report.LABELS_SHOWN} of {len(labels):,} labels, frequent errors first"
            labels = [*errors, *(label for label in labels if label not in errors)]
            labels = labels[: report.LABELS_SHOWN]
        counts = np.array([[matrix[a].get(b, 0) for b in labels] for a in labels])
        confusion(folder / f"confusion-{name}", counts, labels, title)
        return
    known = {label: run for label, run in runs.items() if report.outputs_path(run, name).exists()}
    tables = {label: report.read_outputs(run, name) for label, run in known.items()}
    table = tables[first]
    tables = {label: each for label, each in tables.items() if report.same_texts(each, table)}
    for label in runs.keys() - tables.keys():
        warn(f"{runs[label]} has no outputs-{name}.tsv of the same texts, so it is not drawn")
    if "loss_by_context" in scores:
        all_scores = {label: report.read_scores(runs[label], name) for label in tables}
        loss_by_context(folder / f"loss-by-context-{name}", all_scores, title)
        return
    references = table["reference"]
    groups = group_by_length(table["source"])
    bleu = {
        label: bleu_by_length(each["output"], references, groups) for label, each in tables.items()
    }
    counts = {words: len(group) for words, group in groups.items()}
    by_length(folder / f"bleu-by-length-{name}", counts, bleu, title)


def run_labels(runs: Sequence[Path]) -> list[str]:
    """Return the names of runs for legends, and the kind of attention of recurrent models."""
    distinct, labels = len({run.name for run in runs}) == len(runs), []
    for run in runs:
        config, label = load_config(run), run.name if distinct else str(run)
        if config.model == "recurrent":
            label += f": GRU, {config.recurrent_attention.replace('none', 'no')} attention"
        # Matplotlib leaves names that begin with "_" out of a legend.
        labels.append(f" {label}" if label.startswith("_") else label)
    return labels


def group_by_length(sources: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of texts by number of words: {"1–5": […], …, "41 and more": […]}.

    A group of fewer than one text in a hundred is merged with the shorter ones before it.
    """
    lengths = np.array([len(text.split()) for text in sources])
    groups = []
    for low, high in LENGTHS:
        indices = np.flatnonzero((lengths >= low) & (lengths <= high)).tolist()
        if groups and 0 < len(indices) < len(lengths) / 100:
            low, _, shorter = groups.pop()
            indices = shorter + indices
        if indices:
            groups.append((low, high, indices))
    return {
        f"{low} and more" if high == math.inf else f"{low}–{high}": indices
        for low, high, indices in groups
    }


def bleu_by_length(outputs: Sequence[str], references: Sequence[str], groups: dict) -> list[float]:
    """Return the BLEU of each group of `group_by_length`."""
    return [
        metrics.bleu([outputs[i] for i in group], [references[i] for i in group])
        for group in groups.values()
    ]


# The functions below write STEM.png and STEM.svg.


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


def by_length(
    stem: str | Path, groups: dict[str, int], runs: dict[str, Sequence[float]], title: str = ""
) -> None:
    """Draw BLEU by the number of words of the source, a line for each run.

    groups: {range of lengths: number of sentences}; runs: {name: BLEU of each group}.
    """
    with figure(stem, max(6, 1.1 * len(groups) + 2), 4) as canvas:
        plot = canvas.subplots()
        for number, (run, values) in enumerate(runs.items()):
            style = {"color": COLOURS[number % 6], "marker": MARKERS[number % 5]}  # 30 styles
            plot.plot(values, label=run, **style)
        ticks = [f"{words}\n{count:,}" for words, count in groups.items()]
        plot.set_xticks(range(len(groups)), ticks)
        plot.set(xlabel="words of the source; below, the number of sentences", ylabel="BLEU")
        plot.set_title(textwrap.fill(title, 70))
        plot.set_ylim(0, 1.05 * plot.dataLim.y1 or 1)
        plot.yaxis.set_major_formatter("{x:,g}")
        plot.grid(axis="y")
        canvas.legend(loc="outside upper center", ncols=min(2, len(runs)))


def loss_by_context(stem: str | Path, runs: dict[str, dict], title: str = "") -> None:
    """Draw the loss by the number of tokens that a language model has read, a line for each run.

    runs: {name: scores of `scores.measure_text`}. In nats per token; of runs with different
    tokenizers, in nats per character.
    """
    same_tokens = len({scores["tokens"] for scores in runs.values()}) == 1
    with figure(stem, 8, 4) as canvas:
        plot = canvas.subplots()
        for number, (run, scores) in enumerate(runs.items()):
            low, high, loss = np.array(scores["loss_by_context"]).T
            loss = loss if same_tokens else loss * scores["tokens"] / scores["characters"]
            style = {"color": COLOURS[number % 6], "marker": MARKERS[number % 5]}
            plot.plot(np.sqrt(low * high), loss, label=run, **style)
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter("{x:,g}")
        unit = "token" if same_tokens else "character"
        plot.set(xlabel="tokens of context", ylabel=f"loss, nats per {unit}")
        plot.set_title(textwrap.fill(title, 70))
        plot.grid()
        canvas.legend(loc="outside upper center", ncols=min(2, len(runs)))


def confusion(stem: str | Path, counts: np.ndarray, labels: Sequence[str], title: str = "") -> None:
    """Draw a confusion matrix: counts (labels, labels), and below them shares of the row.

    Rows are true labels, columns predicted ones. A label that was never true has no shares: "–".
    """
    totals = np.sum(counts, axis=1, keepdims=True)
    shares = np.where(totals, counts / np.maximum(totals, 1), np.nan)

    @np.vectorize
    def cell(count, share):
        return "–" if math.isnan(share) else f"{count:,}\n{100 * share:.1f} %" if count else "0"

    rows = [f"{label} ({total:,})" for label, total in zip(labels, totals[:, 0], strict=True)]
    side, longest = min(max(3, 0.7 * len(rows)), 25), 0.09 * max(map(len, rows))
    with figure(stem, side + longest + 1.8, side + longest + 0.8, layout="compressed") as canvas:
        plot = canvas.subplots()
        plot.set_facecolor("0.92")  # behind NaN
        image = plot.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        plot.spines[:].set_visible(False)
        plot.tick_params(length=0)
        font = {"ha": "center", "va": "center", "fontsize": min(11, 13 * side / len(rows))}
        for (row, column), text in np.ndenumerate(cell(counts, shares)):
            colour = "white" if shares[row, column] > 0.6 else "black"
            plot.text(column, row, text, color=colour, **font)
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
