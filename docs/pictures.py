"""The larger pictures of docs/walkthrough.md. Each function draws a figure of pyplot."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from matplotlib import pyplot
from matplotlib.colors import ListedColormap
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from evaluation.attention import axis_labels
from model.attention import MultiHeadAttention
from model.layers import FeedForward, LayerNorm, named_variables
from model.transformer import Stack, Transformer

# Okabe and Ito's colours, which colour-blind readers can tell apart, without pale ones.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
BLUE, ORANGE, GREEN = COLOURS[:3]
TITLES = {"attention": "self-attention", "cross_attention": "cross-attention"}
# Light fills for boxes with black text.
FILL = {
    "embedding": "#f6dcec",
    "attention": "#fbdcc4",
    "feed": "#d3e6f4",
    "norm": "#f4efc9",
    "output": "#d8ecd9",
    "layer": "#f4f4f4",
}


def label_cells(axes, matrix: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label the rows and columns of an image, and separate its cells with white lines."""
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(np.arange(matrix.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(matrix.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def draw_batches(batches: dict[str, np.ndarray]) -> None:
    """Draw batches of ids (batch, length) side by side: tokens in blue, padding in orange."""
    size = {"width_ratios": [max(8, ids.shape[1]) for ids in batches.values()]}
    figure, plots = pyplot.subplots(
        1, len(batches), figsize=(9, 3), layout="constrained", gridspec_kw=size
    )
    for axes, (title, ids) in zip(plots, batches.items(), strict=True):
        real = ids != 0
        axes.imshow(real, cmap=ListedColormap([ORANGE, "#bcd7ea"]), vmin=0, vmax=1, aspect="auto")
        label_cells(axes, ids, [""] * len(ids), [""] * ids.shape[1])
        axes.set_title(f"{title}: {100 * (1 - real.mean()):.0f} % padding", fontsize=11)
        axes.set(xlabel="position", ylabel="sentence")


def draw_positions(encodings: np.ndarray, pair: int, positions: Sequence[int]) -> None:
    """Draw encodings (length, d_model), and two of their columns as points of a circle.

    pair: which sine and cosine. positions: of the points.
    """
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 4), layout="constrained", gridspec_kw={"width_ratios": [1.6, 1]}
    )
    image = left.imshow(encodings, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    left.set(xlabel="column", ylabel="position", title="the encoding of each position")
    figure.colorbar(image, ax=left)

    angle = np.linspace(0, 2 * np.pi, 200)
    right.plot(np.cos(angle), np.sin(angle), color="0.85")
    points = encodings[positions, 2 * pair : 2 * pair + 2]  # sine, cosine
    for position, (sine, cosine) in zip(positions, points, strict=True):
        right.plot([0, cosine], [0, sine], color=BLUE, lw=1, alpha=0.5)
        right.plot(cosine, sine, "o", color=BLUE)
        right.text(1.15 * cosine, 1.15 * sine, str(position), ha="center", va="center")
    right.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xlabel="cosine")
    right.set(ylabel="sine", title=f"columns {2 * pair} and {2 * pair + 1}, by position")


def draw_masks(masks: dict[str, np.ndarray], rows: dict[str, list], keys: dict[str, list]) -> None:
    """Draw boolean masks (query_len, key_len), each with its query tokens and its key tokens."""
    figure, plots = pyplot.subplots(1, len(masks), figsize=(10, 4.1), layout="constrained")
    for axes, (title, mask) in zip(plots, masks.items(), strict=True):
        axes.imshow(mask, cmap=ListedColormap(["#dddddd", BLUE]), vmin=0, vmax=1)
        label_cells(axes, mask, axis_labels(rows[title]), axis_labels(keys[title]))
        axes.set(xlabel="key", ylabel="query")
        axes.set_title(title, fontsize=11)
    figure.suptitle("blue: the query may attend to the key", fontsize=11)


def count_parameters(model: tf.Module, prefix: str) -> int:
    """Return the number of parameters whose name begins with `prefix`."""
    variables = named_variables(model).items()
    return sum(v.shape.num_elements() for name, v in variables if name.startswith(prefix))


def part_sizes(model: Transformer) -> dict[str, int]:
    """Return the number of parameters of each part of a model. They add up to the whole."""
    parts = {"embedding": "output/embedding/"}
    for stack in ("encoder", "decoder"):
        layer = getattr(model, stack).layers[0]
        names = [name for name, part in vars(layer).items() if isinstance(part, tf.Module)]
        for name in names:
            parts[f"one {stack} layer: {name}"] = f"{stack}/layers/0/{name}/"
        parts[f"{stack}: final_norm"] = f"{stack}/final_norm/"
    return {part: count_parameters(model, prefix) for part, prefix in parts.items()}


class Column:
    """Boxes above one another, with arrows between them."""

    def __init__(self, axes, x: float, width: float):
        self.axes, self.x, self.width, self.y = axes, x, width, 0.0

    def box(self, text: str, size: str, kind: str, height: float = 0.62, gap: float = 0.3) -> float:
        """Add a box above the last one; returns the height of its middle."""
        if self.y:
            self.arrow(self.y, self.y + gap)
        self.y += gap if self.y else 0
        left = self.x - self.width / 2
        style = "round,pad=0,rounding_size=0.09"
        patch = FancyBboxPatch((left, self.y), self.width, height, boxstyle=style)
        patch.set(facecolor=FILL[kind], edgecolor="0.35", lw=0.9, zorder=2)
        self.axes.add_patch(patch)
        middle = self.y + height / 2
        self.axes.text(left + 0.12, middle, text, va="center", fontsize=9.5, zorder=3)
        end = left + self.width - 0.12
        self.axes.text(end, middle, size, va="center", ha="right", fontsize=8.5, color="0.3")
        self.axes.texts[-1].set_zorder(3)
        self.y += height
        return middle

    def arrow(self, bottom: float, top: float) -> None:
        """Draw an upward arrow."""
        ends = (self.x, bottom), (self.x, top)
        patch = FancyArrowPatch(*ends, arrowstyle="-|>", shrinkA=0, shrinkB=0)
        patch.set(mutation_scale=9, color="0.25", lw=1.1, zorder=4)
        self.axes.add_patch(patch)

    def shape(self, text: str) -> None:
        """Write a shape next to the arrow above the last box."""
        self.axes.text(self.x + 0.1, self.y + 0.15, text, va="center", fontsize=8, color=BLUE)

    def residual(self, bottom: float) -> None:
        """Add a plus sign above the last box, and a line to it from below its sublayer."""
        self.arrow(self.y, self.y + 0.2)
        top, side = self.y + 0.32, self.x - self.width / 2 - 0.22
        line = dict(color="0.25", lw=1.1, zorder=1)
        self.axes.plot([self.x, side, side, self.x - 0.12], [bottom, bottom, top, top], **line)
        self.axes.plot(self.x, top, "o", ms=12, mfc="white", mec="0.25", zorder=3)
        self.axes.text(self.x, top - 0.01, "+", ha="center", va="center", fontsize=11, zorder=4)
        self.y = top + 0.12


def draw_stack(column: Column, model: Transformer, name: str, shape: str) -> dict[str, float]:
    """Draw the encoder or the decoder; returns the height of each sublayer of its layer."""
    stack: Stack = getattr(model, name)
    vocab_size, d_model = stack.embedding.table.shape
    size = f"{vocab_size:,} × {d_model}"
    column.box("token embedding", size, "embedding")
    column.shape(shape)
    column.box(f"+ {type(stack.positions).__name__.lower()} positions", "", "embedding")
    column.shape(shape)
    column.arrow(column.y, column.y + 0.3)
    column.y += 0.3
    bottom, heights, layer = column.y, {}, stack.layers[0]
    for part_name, part in vars(layer).items():
        if isinstance(part, MultiHeadAttention):
            kind, shapes = "attention", f"{part.num_heads} heads of {part.head_dim}"
        elif isinstance(part, FeedForward):
            rows, columns = part.inner.kernel.shape
            kind, shapes = "feed", f"{rows} → {columns} → {part.outer.kernel.shape[1]}"
        else:
            continue  # not a sublayer
        start, prefix = column.y + 0.12, part_name.removesuffix("_attention")
        before, after = (getattr(layer, f"{prefix}_{place}_norm") for place in ("pre", "post"))
        if isinstance(before, LayerNorm):
            column.box("layer norm", f"{count_parameters(before, ''):,}", "norm", 0.4)
        count = f"{count_parameters(part, ''):,}"
        text = f"{TITLES.get(part_name, part_name.replace('_', ' '))}\n{shapes}"
        heights[part_name] = column.box(text, count, kind, 0.72)
        column.residual(start)
        if isinstance(after, LayerNorm):
            column.box("layer norm", f"{count_parameters(after, ''):,}", "norm", 0.4)
    left, width = column.x - column.width / 2 - 0.4, column.width + 0.65
    frame = FancyBboxPatch((left, bottom + 0.02), width, column.y - bottom + 0.12)
    frame.set(boxstyle="round,pad=0,rounding_size=0.15", facecolor=FILL["layer"], edgecolor="0.7")
    frame.set_zorder(0)
    column.axes.add_patch(frame)
    text = f"× {len(stack.layers)} layers of {count_parameters(layer, ''):,}"
    column.axes.text(left + width - 0.05, column.y + 0.3, text, ha="right", fontsize=9)
    if isinstance(stack.final_norm, LayerNorm):
        size = f"{count_parameters(stack.final_norm, ''):,}"
        column.box("final layer norm", size, "norm", 0.4, gap=0.5)
    else:  # a line in place of the box, next to the text above the frame
        column.axes.plot([column.x, column.x], [column.y, column.y + 0.5], color="0.25", lw=1.1)
        column.y += 0.5
    return heights


def draw_architecture(model: Transformer, source: tf.Tensor, target_in: tf.Tensor) -> None:
    """Draw a model from its attributes, with the shapes of a batch and the sizes of its parts.

    source (batch, source_len), target_in (batch, target_len): ids.
    """
    figure, axes = pyplot.subplots(figsize=(9.6, 9.2), layout="constrained")
    width, d_model = 3.4, model.encoder.embedding.table.shape[1]
    encoder, decoder = Column(axes, 2.2, width), Column(axes, 7.6, width)
    shapes = [f"{tuple(ids.shape) + (d_model,)}" for ids in (source, target_in)]
    draw_stack(encoder, model, "encoder", shapes[0])
    encoder.shape(f"memory {shapes[0]}")
    heights = draw_stack(decoder, model, "decoder", shapes[1])
    decoder.shape(shapes[1])
    vocab_size = model.decoder.embedding.table.shape[0]
    decoder.box("output projection", "the embedding, again", "output")
    logits = f"logits {(*target_in.shape, vocab_size)}"
    decoder.arrow(decoder.y, decoder.y + 0.35)
    decoder.shape(logits)

    height = heights["cross_attention"]
    between, left = 4.65, decoder.x - width / 2
    line = dict(color=ORANGE, lw=1.8, zorder=5)
    top = encoder.y + 0.3
    axes.plot([encoder.x, encoder.x, between, between], [encoder.y, top, top, height], **line)
    ends = (between, height), (left, height)
    arrow = FancyArrowPatch(*ends, arrowstyle="-|>", shrinkA=0, shrinkB=0)
    arrow.set(mutation_scale=12, **line)
    axes.add_patch(arrow)
    axes.text(between - 0.06, top - 0.12, "keys, values", ha="right", va="top")
    axes.texts[-1].set(fontsize=8.5, color=ORANGE)
    for column, ids, name in ((encoder, source, "source"), (decoder, target_in, "target_in")):
        axes.text(column.x, -0.45, f"{name} ids {tuple(ids.shape)}", ha="center", fontsize=9)
        axes.texts[-1].set_color(BLUE)
        column.arrow(-0.27, 0)
    total = f"{count_parameters(model, ''):,} parameters"
    axes.set_title(f"{total}; each box has the number of its own on the right", fontsize=11)
    axes.set(xlim=(0, 9.8), ylim=(-0.7, decoder.y + 0.6))
    axes.set_axis_off()


def draw_search(tree: dict[str, dict[str, float]], greedy: list[str], best: list[str]) -> None:
    """Draw a tree of outputs of two tokens: {first token: {second token: probability}}.

    The probability of a first token is under the key "". greedy, best: outputs to mark.
    """
    figure, axes = pyplot.subplots(figsize=(8, 3.8), layout="constrained")
    leaves = [(first, second) for first in tree for second in tree[first] if second]
    heights = {leaf: -i for i, leaf in enumerate(leaves)}

    def colour(path):
        marked = {tuple(greedy[: len(path)]): ORANGE, tuple(best[: len(path)]): BLUE}
        return marked.get(tuple(path), "0.6")

    def edge(start, end, path, probability):
        axes.plot(
            *zip(start, end, strict=True), color=colour(path), lw=1 + 5 * probability, zorder=1
        )
        x, y = (np.array(start) + end) / 2
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
        axes.text(x, y, f"{probability:g}", ha="center", va="center", fontsize=10, bbox=box)

    root = 0, -(len(leaves) - 1) / 2
    box = {"boxstyle": "round,pad=0.35", "fc": "white", "lw": 1.5}
    for first, seconds in tree.items():
        middle = 1, np.mean([heights[first, second] for second in seconds if second])
        edge(root, middle, [first], seconds[""])
        axes.text(*middle, first, ha="center", va="center", bbox=box | {"ec": colour([first])})
        for second, probability in seconds.items():
            if second:
                end, path = (2, heights[first, second]), [first, second]
                edge(middle, end, path, probability)
                ec = {"ec": colour(path)}
                axes.text(*end, second, ha="center", va="center", bbox=box | ec)
                text = f"{seconds['']:g} × {probability:g} = {seconds[''] * probability:.2f}"
                text += "   greedy search" * (path == greedy) + "   beam search" * (path == best)
                place = {"va": "center", "color": colour(path) if colour(path) != "0.6" else "0.3"}
                axes.text(2.2, end[1], text, **place)
    axes.text(*root, "start", ha="center", va="center", bbox=box | {"ec": "0.3"})
    axes.set(xlim=(-0.2, 3.6), ylim=(-len(leaves) + 0.5, 0.5))
    axes.set_axis_off()


def draw_attention(
    weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str
) -> None:
    """Draw attention weights (query_len, key_len) as lines between tokens, and as a matrix."""
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 4.4), layout="constrained", gridspec_kw={"width_ratios": [1, 1.15]}
    )
    rows, columns = axis_labels(queries), axis_labels(keys)
    place = {"va": "center", "fontsize": 11}
    scale = (len(columns) - 1) / max(1, len(rows) - 1)
    for j, token in enumerate(columns):
        left.text(-0.03, -j, token, ha="right", **place)
    for i, token in enumerate(rows):
        left.text(1.03, -i * scale, token, ha="left", **place)
        for j, weight in enumerate(weights[i]):
            line = {"color": COLOURS[i % 6], "alpha": float(weight) ** 0.7}
            left.plot([0, 1], [-j, -i * scale], lw=5 * weight, **line)
    left.set(xlim=(-0.5, 1.5), title="from each output token to the source")
    left.set_axis_off()
    image = right.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    label_cells(right, weights, rows, columns)
    right.set(xlabel="key: source", ylabel="query: output", title="the same weights as a matrix")
    figure.colorbar(image, ax=right)
    figure.suptitle(title, fontsize=12)


def draw_kinds(scores: dict[str, list[dict[str, float]]]) -> None:
    """Draw the exact match of two models by kind of sentence, a point for each run.

    scores: of each model, and each of its runs, {kind: exact match in per cent}.
    """
    runs = [run for each in scores.values() for run in each]
    kinds = sorted(runs[0], key=lambda kind: np.mean([run[kind] for run in runs]))
    _, axes = pyplot.subplots(figsize=(9, 5.6), layout="constrained")
    for place, (title, runs) in enumerate(scores.items()):
        y = np.arange(len(kinds)) + (place - 0.5) / 3
        values = np.transpose([[run[kind] for kind in kinds] for run in runs])  # (kinds, runs)
        axes.plot(values, y, "o", ms=5, alpha=0.7, color=COLOURS[place])
        axes.plot([], "o", color=COLOURS[place], label=title)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes.set(xlabel="exact match, %", xlim=(-2, 102))
    axes.grid(axis="y", color="0.92")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
