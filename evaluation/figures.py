"""Draw figures of a run into RUN/figures: learning rate, positional encoding, training curves, and
from the outputs that evaluate.py has written, BLEU by length and the agreement of the metrics, or
the confusion matrix of labels.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from config import Config, UserError
from data.corpora import Split
from evaluation import command_line, metrics, report
from training.records import read_json_lines

# Matplotlib is imported when a figure is drawn.

# Okabe and Ito's colours, which colour-blind readers can tell apart, without those that are pale on
# white. Lines also differ in markers or dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
MARKERS = "osD^vP"
STYLE = {
    "text.parse_math": False,  # "$" is a token like any other
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",  # with the date left out, equal data give equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
}
# Tried in turn, if installed, for letters that DejaVu Sans lacks.
FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
)
# Minimum and maximum number of words of a source, in the plot of BLEU by length.
LENGTHS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, None))
# Heading, unit, scale, factor, names in the lines of training and of validation.
PANELS = (
    ("loss", "nats per token", "log", 1, "loss", "validation_loss"),
    ("accuracy", "% of tokens", "linear", 100, "accuracy", "validation_accuracy"),
    ("BLEU", "0 to 100", "linear", 1, None, "validation_bleu"),
    ("gradient", "Euclidean norm", "log", 1, "grad_norm", None),
    ("speed", "tokens per second", "linear", 1, "tokens_per_second", None),
    ("learning rate", "factor of an update", "linear", 1, "learning_rate", None),
)
MAX_POSITIONS = 128
MAX_STEPS = 5000  # points of the learning-rate curve


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


# ---- Figures of arrays --------------------------------------------------------------------------


def positions(stem: str | Path, encodings: np.ndarray) -> None:
    """Draw a positional encoding (length, d_model), and its dot products by distance."""
    encodings = np.asarray(encodings, np.float64)
    length = len(encodings)
    products = encodings @ encodings.T  # (length, length)
    by_distance = [np.diagonal(products, k) for k in range(length)]
    with figure(stem, 11, 4.2) as canvas:
        left, right = canvas.subplots(1, 2)
        limit = np.abs(encodings).max() or 1
        image = left.imshow(
            encodings,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            aspect="auto",
            interpolation="nearest",
        )
        left.set(xlabel="dimension", ylabel="position p, tokens", title="encoding E(p)")
        canvas.colorbar(image, ax=left, label="value")
        spread = max(float(np.ptp(values)) for values in by_distance)
        right.fill_between(
            range(length),
            [min(values) for values in by_distance],
            [max(values) for values in by_distance],
            color=COLOURS[0],
            alpha=0.25,
            lw=0,
            label=f"minimum to maximum, at most {spread:.2g} apart",
        )
        right.plot([values.mean() for values in by_distance], color=COLOURS[0], label="mean over p")
        right.set(xlabel="distance k, tokens", ylabel="dot product E(p) · E(p + k)", xlim=(0, None))
        right.set_title("similarity of two positions, over all p")
        right.legend()
        for axis in (left.xaxis, left.yaxis, right.xaxis):
            axis.get_major_locator().set_params(integer=True)


def schedule(stem: str | Path, steps: Sequence[int], rates: np.ndarray) -> None:
    """Draw the learning rate by step, both (count,), and mark its peak."""
    steps, rates = np.asarray(steps), np.asarray(rates, np.float64)
    peak = int(rates.argmax())
    with figure(stem, 7, 3.6) as canvas:
        plot = canvas.subplots()
        plot.plot(steps, rates, color=COLOURS[0])
        plot.plot(steps[peak], rates[peak], "o", color=COLOURS[1])
        plot.annotate(
            f"peak: {rates[peak]:.3g} at step {steps[peak]:,}",
            (steps[peak], rates[peak]),
            xytext=(8, 4),
            textcoords="offset points",
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )
        plot.set(xlabel="step", ylabel="learning rate", xlim=(0, None))
        plot.set_ylim(0, 1.12 * rates[peak] or 1)
        plot.xaxis.set_major_formatter("{x:,.0f}")


def curve(lines: Sequence[dict], name: str, factor: float) -> tuple[list[float], list[float]]:
    """Return the steps and the scaled values of the lines of metrics that have a value."""
    present = [line for line in lines if line.get(name) is not None]
    return [line["step"] for line in present], [factor * line[name] for line in present]


def training(
    stem: str | Path, lines: Sequence[dict], others: dict[str, Sequence[dict]] | None = None
) -> None:
    """Draw a panel for each measure of training and validation by step.

    lines: those of metrics.jsonl. others: {run: lines} of other runs, of which only validation is
    drawn, where there is any.
    """
    present, others = set().union(*lines), others or {}
    panels = [panel for panel in PANELS if present & set(panel[4:])]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with figure(stem, 4.2 * columns, 3 * rows + 0.3) as canvas:
        plots = canvas.subplots(rows, columns, squeeze=False).ravel()
        for unused in plots[len(panels) :]:
            unused.remove()
        for plot, panel in zip(plots, panels, strict=False):
            heading, unit, scale, factor, train, validation = panel
            if train in present:
                plot.plot(*curve(lines, train, factor), color=COLOURS[0], lw=1.2, label="training")
            if validation in present:
                points = curve(lines, validation, factor)
                plot.plot(*points, ".-", color=COLOURS[1], label="validation")
            for number, (run, its_lines) in enumerate(others.items()):
                points = curve(its_lines, validation or train, factor)
                colour = COLOURS[2 + number % (len(COLOURS) - 2)]
                plot.plot(*points, ".--" if validation else "--", label=run, lw=1, color=colour)
            plot.set(title=heading, ylabel=unit, xlabel="step", yscale=scale)
            plot.xaxis.set_major_formatter("{x:,.0f}")
            if scale == "log":
                format_log_axis(plot)
            else:
                plot.set_ylim(bottom=0)
                plot.yaxis.set_major_formatter("{x:,g}")
            plot.set_xlim(left=0)
            plot.grid(color="0.92")
            if (train and validation) or others:
                plot.legend()


def format_log_axis(plot) -> None:
    """Label a logarithmic y axis with plain numbers, also if its range is narrow."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = plot.get_ylim()
    plot.yaxis.set_major_locator(MaxNLocator(5) if high < 10 * low else LogLocator(subs=(1, 2, 5)))
    plot.yaxis.set_major_formatter("{x:g}")
    plot.yaxis.set_minor_locator(NullLocator())


def by_length(stem: str | Path, runs: dict[str, Sequence[tuple]]) -> None:
    """Draw BLEU by the number of words of the source, a line for each run.

    runs: {name: rows of `bleu_by_length`}. A BLEU of None is left out.
    """
    spans = sorted(
        {row[:2] for rows in runs.values() for row in rows},
        key=lambda span: (span[0], span[1] or math.inf),
    )
    counts = [[] for _ in spans]
    with figure(stem, max(6, 1.1 * len(spans) + 2), 4) as canvas:
        plot = canvas.subplots()
        for number, (run, rows) in enumerate(runs.items()):
            by_span = {(low, high): (count, value) for low, high, count, value in rows}
            for seen, span in zip(counts, spans, strict=True):
                if span in by_span and by_span[span][0] not in seen:
                    seen.append(by_span[span][0])
            values = [by_span.get(span, (0, None))[1] for span in spans]
            dash, style = divmod(number, len(COLOURS))
            plot.plot(
                [math.nan if value is None else value for value in values],
                label=run,
                color=COLOURS[style],
                marker=MARKERS[style],
                ls=("-", "--", ":", "-.")[dash % 4],
            )
        names = [f"{low}–{high}" if high else f"{low} and more" for low, high in spans]
        numbers = [" / ".join(f"{n:,}" for n in seen) for seen in counts]
        ticks = [f"{name}\n{count}" for name, count in zip(names, numbers, strict=True)]
        plot.set_xticks(range(len(spans)), ticks)
        plot.set_xlabel("length of the source, words; below, the number of sentences")
        plot.set_ylabel("BLEU, 0 to 100")
        plot.set_ylim(bottom=0)
        plot.margins(y=0.1)
        plot.grid(axis="y", color="0.92")
        canvas.legend(loc="outside upper center", ncols=min(len(runs), 4))


def ranks(values: Sequence[float]) -> np.ndarray:
    """Return the ranks of values in ascending order, from 1; equal values share their mean rank."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def spearman(columns: Sequence[Sequence[float]]) -> np.ndarray:
    """Return Spearman's rank correlation of columns (n, length) with each other: (n, n).

    NaN for a constant column.
    """
    centred = np.array([ranks(column) - (len(column) + 1) / 2 for column in columns])
    centred = centred.reshape(len(columns), -1)
    norms = np.linalg.norm(centred, axis=1)
    scale = np.outer(norms, norms)
    return np.divide(centred @ centred.T, scale, out=np.full_like(scale, np.nan), where=scale > 0)


def agreement(stem: str | Path, columns: dict[str, Sequence[float]]) -> None:
    """Draw Spearman's rank correlation of the scores of sentences: {metric: values}."""
    names, count = list(columns), len(next(iter(columns.values())))
    correlations = spearman(list(columns.values()))
    format_cell = np.vectorize(
        lambda value: "–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")
    )
    side = max(3, 0.75 * len(names))
    with figure(stem, side + 2.2, side + 1.2) as canvas:
        plot = canvas.subplots()
        texts = format_cell(correlations)
        image = cells(plot, correlations, texts, 10, cmap="RdBu_r", vmin=-1, vmax=1)
        plot.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        plot.set_yticks(range(len(names)), names)
        plot.set(xlabel="metric", ylabel="metric")
        plot.set_title(f"Spearman's rank correlation over {count:,} sentences")
        canvas.colorbar(image, ax=plot, label="rank correlation, −1 to 1")


def confusion(stem: str | Path, matrix: np.ndarray, labels: Sequence[str]) -> None:
    """Draw a confusion matrix (labels, labels): counts, and below them shares of the row.

    Rows are true labels, columns predicted ones. A label that was never true has no shares: "–".
    """
    matrix = np.asarray(matrix)
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.where(totals, matrix / np.maximum(totals, 1), np.nan)

    @np.vectorize
    def format_cell(count, share):
        return "–" if math.isnan(share) else f"{count:,}\n{100 * share:.1f} %" if count else "0"

    side = max(3, 0.5 * len(labels))
    longest = 0.09 * max(map(len, labels))
    with figure(stem, side + longest + 1.8, side + longest + 0.8, layout="compressed") as canvas:
        plot = canvas.subplots()
        font = 11 if len(labels) < 5 else 8.5 if len(labels) < 10 else 7
        texts = format_cell(matrix, shares)
        image = cells(plot, shares, texts, font, cmap="Blues", vmin=0, vmax=1)
        names = [f"{label} ({total:,})" for label, total in zip(labels, totals[:, 0], strict=True)]
        plot.set_xticks(range(len(labels)), labels)
        plot.tick_params("x", rotation=90 if longest > side / len(labels) else 0)
        plot.set_yticks(range(len(labels)), names)
        plot.set(xlabel="predicted", ylabel="true (count)")
        canvas.colorbar(image, ax=plot, label="share of the row")


def cells(plot, values: np.ndarray, texts: np.ndarray, font: float, **colours):
    """Draw a heat map with a text in each cell, dark or light for contrast. Returns the image."""
    plot.set_facecolor("0.92")  # behind NaN
    image = plot.imshow(values, **colours)
    plot.spines[:].set_visible(False)
    plot.tick_params(length=0)
    for (row, column), text in np.ndenumerate(texts):
        red, green, blue, opacity = image.to_rgba(values[row, column])
        dark = opacity and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        colour = "white" if dark else "0.6" if text == "0" else "black"
        plot.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)
    return image


# ---- Figures of a run ---------------------------------------------------------------------------


def read_metrics(run: Path) -> list[dict]:
    """Read metrics.jsonl of a run. Raises OSError, and UserError if it is empty or damaged."""
    path = run / "metrics.jsonl"
    lines = read_json_lines(path)
    if not lines:
        raise UserError(f"{path} is empty: wait for the first epoch")
    for number, line in enumerate(lines, 1):
        invalid = [name for name, value in line.items() if not finite(value)]
        if invalid or not 1 <= line.get("step", 0) < 2**31:
            raise UserError(f"{path}:{number} has an invalid value: {invalid or 'step'}")
    return lines


def finite(value: object) -> bool:
    """Return whether a JSON value is a number that can be drawn."""
    return isinstance(value, int | float) and abs(value) < 1e308


def bleu_by_length(split: Split, outputs: Sequence[str]) -> list[tuple]:
    """Return rows (minimum words, maximum words or None, sentences, BLEU) by length of the source.

    A group of fewer than one sentence in a hundred is merged with the shorter ones before it.
    """
    lengths = np.array([len(text.split()) for text in split.sources])
    groups = []
    for low, high in LENGTHS:
        indices = np.flatnonzero((lengths >= low) & (lengths <= (high or np.inf))).tolist()
        if groups and 0 < len(indices) < len(lengths) / 100:
            groups[-1] = (groups[-1][0], high, groups[-1][2] + indices)
        elif indices:
            groups.append((low, high, indices))
    rows = []
    for low, high, indices in groups:
        bleu = metrics.bleu([outputs[i] for i in indices], [split.targets[i] for i in indices])
        rows.append((low, high, len(indices), bleu))
    return rows


def learning_rates(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `MAX_STEPS` of the steps 1 … `steps`, the peak among them, and their rates."""
    from model.optimizer import learning_rate

    chosen = [*np.linspace(1, steps, min(steps, MAX_STEPS)), min(config.warmup_steps, steps)]
    chosen = np.unique(np.round(chosen)).astype(int)
    return chosen, learning_rate(chosen, config).numpy()


def read_outputs(run: Path, flags: argparse.Namespace) -> list[str]:
    """Read the outputs that evaluate.py wrote. Raises UserError if they are missing."""
    path, split = report.outputs_path(run, flags.outputs, flags.config.labelled), split_name(flags)
    if not path.exists():
        raise UserError(
            f"{path} is missing: run evaluate.py first, with the same flags for each run"
        )
    if report.recorded_hash(run, split) != report.recorded_hash(flags.run, split):
        raise UserError(f"{run} was trained with another {split} split than {flags.run}")
    return path.read_text("utf-8").split("\n")[:-1]


def split_name(flags: argparse.Namespace) -> str:
    """Return the split of --outputs: test for test-best-beam4."""
    return flags.outputs.partition("-")[0]


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    folder, config = flags.run / "figures", flags.config
    runs = [flags.run, *flags.others]
    names = [run.name for run in runs]
    names = [run.name if names.count(run.name) == 1 else str(run) for run in runs]
    lines = dict(zip(names, map(read_metrics, runs), strict=True))
    outputs = {name: read_outputs(run, flags) for name, run in zip(names, runs, strict=True)}
    translator = command_line.load(flags)
    split = report.load_split(flags.run, config, split_name(flags))
    for name, texts in outputs.items():
        if len(texts) != len(split.sources):
            raise UserError(f"the outputs of {name} are incomplete: run evaluate.py again")

    own_lines, own_outputs = lines.pop(names[0]), outputs[names[0]]
    last_step = max(line["step"] for line in own_lines)
    schedule(folder / "learning-rate", *learning_rates(config, int(last_step)))
    training(folder / "training", own_lines, lines)
    if config.positions != "none" and config.model != "recurrent":
        length = min(config.max_length + 1, MAX_POSITIONS)
        positions(folder / "positions", translator.model.encoder.positions(0, length))
    if config.labelled:
        labels = sorted({*split.targets, *own_outputs} - {""})
        matrix = report.confusion(own_outputs, split.targets, labels)
        confusion(folder / "confusion", matrix, labels)
    else:
        by_length(
            folder / "bleu-by-length",
            {name: bleu_by_length(split, texts) for name, texts in outputs.items()},
        )
        agreement(folder / "agreement", metrics.sentence_scores(own_outputs, split.targets))
    print(*sorted(p for p in folder.iterdir() if p.suffix in (".png", ".svg")), sep="\n")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument(
        "others",
        nargs="*",
        type=Path,
        metavar="OTHER",
        help="other runs, drawn in the same figures",
    )
    PARSER.add_argument(
        "--outputs",
        default="test",
        metavar="NAME",
        help="draw translations-NAME.txt or labels-NAME.txt, such as test-beam4 [test]",
    )
    command_line.run(main, command_line.parse(PARSER))
