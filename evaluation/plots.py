"""Plots of a model and its training. They know arrays and text, and nothing of models.

Every function writes stem.png and stem.svg.
"""

import math

import numpy as np

from evaluation.pictures import COLOURS, MARKERS, figure


def positions(stem, encodings):
    """Encodings of positions as a heat map, and how alike two of them are by their distance.

    encodings: (length, d_model), position 0 first.
    """
    encodings = np.asarray(encodings, np.float64)
    length = len(encodings)
    products = encodings @ encodings.T  # (length, length)
    by_distance = [np.diagonal(products, k) for k in range(length)]
    with figure(stem, 11, 4.2) as made:
        left, right = made.subplots(1, 2)
        most = np.abs(encodings).max() or 1
        image = left.imshow(encodings, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto",
                            interpolation="nearest")  # fmt: skip
        left.set(xlabel="dimension", ylabel="position p, tokens", title="encodings E(p)")
        made.colorbar(image, ax=left, label="value")
        spread = max(float(np.ptp(found)) for found in by_distance)
        right.fill_between(range(length), [min(found) for found in by_distance],
                           [max(found) for found in by_distance],
                           color=COLOURS[0], alpha=0.25, lw=0,
                           label=f"least to most, {spread:.2g} apart or less")  # fmt: skip
        right.plot([found.mean() for found in by_distance], color=COLOURS[0], label="mean over p")
        right.set(xlabel="distance k, tokens", ylabel="dot product E(p) · E(p + k)", xlim=(0, None),
                  title="likeness of two positions, over all p")  # fmt: skip
        right.legend()
        for axis in (left.xaxis, left.yaxis, right.xaxis):
            axis.get_major_locator().set_params(integer=True)


def schedule(stem, steps, rates):
    """The learning rate by step, with its peak; rates: those of the steps, both (count,)."""
    steps, rates = np.asarray(steps), np.asarray(rates, np.float64)
    peak = int(rates.argmax())
    with figure(stem, 7, 3.6) as made:
        plot = made.subplots()
        plot.plot(steps, rates, color=COLOURS[0])
        plot.plot(steps[peak], rates[peak], "o", color=COLOURS[1])
        plot.annotate(f"peak: {rates[peak]:.3g} at step {steps[peak]:,}",
                      (steps[peak], rates[peak]), xytext=(8, 4), textcoords="offset points",
                      bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
        plot.set(xlabel="step (updates)", ylabel="learning rate", xlim=(0, None))
        plot.set_ylim(0, 1.12 * rates[peak] or 1)
        plot.xaxis.set_major_formatter("{x:,.0f}")


# Heading, unit, scale, factor, field of the lines of training, field of those of validation.
PANELS = (
    ("loss", "nats a token", "log", 1, "loss", "validation_loss"),
    ("accuracy", "% of tokens", "linear", 100, "accuracy", "validation_accuracy"),
    ("BLEU", "0 to 100", "linear", 1, None, "validation_bleu"),
    ("gradient", "Euclidean norm", "log", 1, "grad_norm", None),
    ("speed", "tokens a second", "linear", 1, "tokens_per_second", None),
    ("learning rate", "factor of an update", "linear", 1, "learning_rate", None),
)


def training(stem, metrics, others=None):
    """How a run went: a plot for each measure that it has, training and validation in one.

    metrics: the lines of its metrics.jsonl, as dicts. others: {run: its lines}, drawn beside,
    validation alone where there is validation.
    """

    def curve(name, factor, metrics=metrics):
        lines = [line for line in metrics if line.get(name) is not None]
        return [line["step"] for line in lines], [factor * line[name] for line in lines]

    present = set().union(*metrics)
    panels = [panel for panel in PANELS if present & set(panel[4:])]
    if not panels:
        raise ValueError("there are no metrics to draw")
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with figure(stem, 4.2 * columns, 3 * rows + 0.3) as made:
        plots = made.subplots(rows, columns, squeeze=False).ravel()
        for plot, (heading, unit, scale, factor, train, validation) in zip(
            plots, panels, strict=False
        ):
            if train in present:
                plot.plot(*curve(train, factor), color=COLOURS[0], lw=1.2, label="training")
            if validation in present:
                plot.plot(*curve(validation, factor), ".-", color=COLOURS[1], label="validation")
            for number, (run, lines) in enumerate((others or {}).items()):
                points = curve(validation or train, factor, lines)
                plot.plot(*points, ".--" if validation else "--", label=run, lw=1,
                          color=COLOURS[2 + number % (len(COLOURS) - 2)])  # fmt: skip
            plot.set(title=heading, ylabel=unit, xlabel="step (updates)", yscale=scale)
            plot.xaxis.set_major_formatter("{x:,.0f}")
            if scale == "log":
                plain(plot)
            else:
                plot.set_ylim(bottom=0)
                plot.yaxis.set_major_formatter("{x:,g}")
            plot.set_xlim(left=0)
            plot.grid(color="0.92")
            if (train and validation) or others:
                plot.legend()
        for plot in plots[len(panels) :]:
            plot.remove()


def plain(plot):
    """Ticks of a logarithmic y axis as plain numbers; there are some in a narrow range, too."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = plot.get_ylim()
    plot.yaxis.set_major_locator(MaxNLocator(5) if high < 10 * low else LogLocator(subs=(1, 2, 5)))
    plot.yaxis.set_major_formatter("{x:g}")
    plot.yaxis.set_minor_locator(NullLocator())


def by_length(stem, rows):
    """BLEU by the length of the sentence in words, a line for each run.

    rows: {run: [(low, high, sentences, BLEU), …]}, both ends included; high None: no end. A BLEU of
    None is left out.
    """
    spans = sorted({row[:2] for found in rows.values() for row in found},
                   key=lambda span: (span[0], span[1] or math.inf))  # fmt: skip
    names = [f"{low}–{high}" if high else f"{low} and more" for low, high in spans]
    with figure(stem, max(6, 1.1 * len(spans) + 2), 4) as made:
        plot = made.subplots()
        counts = [[] for _ in spans]
        for number, (run, found) in enumerate(rows.items()):
            found = {(low, high): (count, value) for low, high, count, value in found}
            for place, span in enumerate(spans):
                if span in found and found[span][0] not in counts[place]:
                    counts[place].append(found[span][0])
            values = [found.get(span, (0, None))[1] for span in spans]
            again, place = divmod(number, len(COLOURS))
            plot.plot([math.nan if value is None else value for value in values], label=run,
                      color=COLOURS[place], marker=MARKERS[place],
                      ls=("-", "--", ":", "-.")[again % 4])  # fmt: skip
        ticks = [f"{name}\n{' / '.join(f'{n:,}' for n in count)}"
                 for name, count in zip(names, counts, strict=True)]  # fmt: skip
        plot.set_xticks(range(len(spans)), ticks)
        plot.set(xlabel="length of the sentence, words; below it the number of sentences",
                 ylabel="BLEU, 0 to 100")  # fmt: skip
        plot.set_ylim(bottom=0)
        plot.margins(y=0.1)
        plot.grid(axis="y", color="0.92")
        made.legend(loc="outside upper center", ncols=min(len(rows), 4))


def ranks(values):
    """Places in ascending order, from 1; equal values share the mean of theirs."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def spearman(columns):
    """Spearman's rank correlation of columns (n, length) with each other → (n, n).

    NaN where a column is constant: it has none.
    """
    centred = np.array([ranks(column) - (len(column) + 1) / 2 for column in columns])
    centred = centred.reshape(len(columns), -1)
    norms = np.linalg.norm(centred, axis=1)
    scale = np.outer(norms, norms)
    return np.divide(centred @ centred.T, scale, out=np.full_like(scale, np.nan), where=scale > 0)


def agreement(stem, columns):
    """Whether metrics agree on which sentences are good: Spearman's rank correlation.

    columns: {metric: a value for each sentence}. A constant one correlates with nothing: "–".
    """
    names, count = list(columns), len(next(iter(columns.values())))
    found = spearman(list(columns.values()))
    texts = np.array([["–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")
                       for value in row] for row in found])  # fmt: skip
    side = max(3, 0.75 * len(names))
    with figure(stem, side + 2.2, side + 1.2) as made:
        plot = made.subplots()
        image = cells(plot, found, texts, 10, cmap="RdBu_r", vmin=-1, vmax=1)
        plot.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        plot.set_yticks(range(len(names)), names)
        plot.set(xlabel="metric", ylabel="metric",
                 title=f"Spearman's rank correlation over {count:,} sentences")  # fmt: skip
        made.colorbar(image, ax=plot, label="rank correlation, −1 to 1")


def confusion(stem, matrix, labels):
    """What was taken for what: counts, and below each its share of the row.

    matrix: (n, n) counts, the truth in rows, what was predicted in columns; labels: n names. One
    that never was the truth has no shares: "–".
    """
    matrix = np.asarray(matrix)
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.where(totals, matrix / np.maximum(totals, 1), np.nan)
    texts = np.array([
        ["–" if math.isnan(share) else f"{count:,}\n{100 * share:.1f} %" if count else "0"
         for count, share in zip(*row, strict=True)]
        for row in zip(matrix, shares, strict=True)
    ])  # fmt: skip
    side = max(3, 0.5 * len(labels))
    longest = 0.09 * max(map(len, labels))
    with figure(stem, side + longest + 1.8, side + longest + 0.8, layout="compressed") as made:
        plot = made.subplots()
        font = 11 if len(labels) < 5 else 8.5 if len(labels) < 10 else 7
        image = cells(plot, shares, texts, font, cmap="Blues", vmin=0, vmax=1)
        names = [f"{label} ({total:,})" for label, total in zip(labels, totals[:, 0], strict=True)]
        plot.set_xticks(range(len(labels)), labels)
        plot.tick_params("x", rotation=90 if longest > side / len(labels) else 0)
        plot.set_yticks(range(len(labels)), names)
        plot.set(xlabel="predicted", ylabel="true (count)")
        made.colorbar(image, ax=plot, label="share of the row")


def cells(plot, values, texts, font, **colours):
    """A heat map with a text in each cell, in a colour that can be read there."""
    plot.set_facecolor("0.92")  # behind what is not a number
    image = plot.imshow(values, **colours)
    plot.spines[:].set_visible(False)
    plot.tick_params(length=0)
    for (row, column), text in np.ndenumerate(texts):
        red, green, blue, opaque = image.to_rgba(values[row, column])
        dark = opaque and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        colour = "white" if dark else "0.6" if text == "0" else "black"
        plot.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)
    return image


def forest(stem, rows, title, xlabel):
    """Differences from a baseline with their intervals, the largest first; what may be chance grey.

    rows: (name, mean, low, high); low and high None where there is no interval.
    """
    rows = sorted(rows, key=lambda row: row[1])
    # Intervals may end outside: one that knows nothing would squeeze the others together.
    furthest = 1.3 * max((abs(row[1]) for row in rows), default=0) + 1e-9
    ends = [
        min(max(end, -furthest), furthest) for row in rows for end in row[1:] if end is not None
    ]
    left, right = min([0, *ends]), max([0, *ends])
    margin = (right - left) / 30 + 1e-9
    with figure(stem, 7.5, 1.2 + 0.27 * len(rows)) as made:
        plot = made.subplots()
        plot.axvline(0, color="0.3", lw=1)
        for place, (_, mean, low, high) in enumerate(rows):
            chance = low is None or low <= 0 <= high
            colour = "0.55" if chance else COLOURS[0] if mean > 0 else COLOURS[1]
            if low is not None:
                plot.plot([low, high], [place, place], color=colour, lw=2)
            # Filled: the interval leaves zero out.
            plot.plot(mean, place, "o", color=colour, mfc="white" if chance else colour)
        plot.set_yticks(range(len(rows)), [row[0] for row in rows])
        plot.set(
            xlim=(left - margin, right + margin),
            ylim=(-0.7, len(rows) - 0.3),
            xlabel=xlabel,
            title=title,
        )
        plot.grid(axis="y", color="0.92")
        plot.set_axisbelow(True)
