"""Pictures of a model and its training. They know arrays and text, and nothing of models.

Every function writes stem.png and stem.svg. In the SVG text is text: it can be searched, and
letters that the PNG's fonts lack come from the reader's own. Matplotlib is imported when a picture
is drawn.
"""

import textwrap
from contextlib import contextmanager
from pathlib import Path

import numpy as np

# Okabe and Ito's colours, which colour-blind readers tell apart, those pale on white left out; a
# line has a marker or a dash of its own as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
MARKERS = "osD^vP"
STYLE = {
    "text.parse_math": False,  # "$" is a token like another
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pictures",  # with a date left out, the same data give the same bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
}
# Tried in turn, where they are installed, for letters that DejaVu Sans lacks.
FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei",
         "PingFang SC", "Hiragino Sans", "Noto Sans Devanagari", "Noto Sans Thai")  # fmt: skip


@contextmanager
def figure(stem, width, height, layout="constrained"):
    """A figure of so many inches, written to stem.png and stem.svg when the block ends."""
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure  # without pyplot: a notebook keeps its own backend

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE | {"font.family": fonts}):
        made = Figure(figsize=(width, height), layout=layout)
        yield made
        made.savefig(f"{stem}.png", dpi=110)
        made.savefig(f"{stem}.svg", metadata={"Date": None})


def labels(pieces, longest=16):
    """SentencePiece pieces as a reader expects them on an axis.

    "▁" is a space before the word: most pieces have it, so the others get a sign instead, "·", when
    they go on with a word. Long ones end in "…".
    """
    made = []
    for place, piece in enumerate(pieces):
        joined = place > 0 and piece[:1].isalnum()
        text = piece[1:] if len(piece) > 1 and piece[0] == "▁" else piece
        text = text.replace("▁", "␣")
        text = text if len(text) <= longest else text[: longest - 1] + "…"
        made.append("·" + text if joined else text)
    return made


def check(weights, queries, keys):
    """Attention weights as an array (layers, heads, queries, keys). Raises ValueError."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 4 or weights.shape[2:] != (len(queries), len(keys)) or not weights.size:
        raise ValueError(
            f"weights of shape {weights.shape} are not (layers, heads, {len(queries)} queries, "
            f"{len(keys)} keys)"
        )
    if not np.isfinite(weights).all():
        raise ValueError("the attention weights are not finite")
    return weights


def attention(stem, weights, queries, keys, title, panel="layer {layer}, head {head}"):
    """One kind of attention: a heat map for each head of each layer, on one scale of colour.

    weights: (layers, heads, query_len, key_len); queries, keys: the pieces; panel: what stands
    over each map. Raises ValueError.
    """
    weights = check(weights, queries, keys)
    layers, heads, height, width = weights.shape
    rows, columns = labels(queries), labels(keys)
    # A cell is as high as its label, unless the picture would become metres wide.
    cell = min(max(0.13, 2 / max(width, height)), 80 / max(heads * width, layers * height))
    font = min(9, 0.88 * 72 * cell)
    room = 0.6 * font / 72 * max(map(len, rows)), 0.6 * font / 72 * max(map(len, columns))
    across = heads * (width * cell + 0.15) + 2 * room[0] + 1.4
    larger = max(1, across / 28)  # a wide picture is looked at from further away
    title = textwrap.fill(title, max(20, int(8.5 * across / larger)))
    down = layers * (height * cell + 0.25) + room[1] + 0.7 + 0.2 * larger * len(title.splitlines())
    with figure(stem, across, down, layout="compressed") as made:
        plots = made.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
        plots[0, 0].set_xticks(range(width), columns)  # all share its ticks
        plots[0, 0].set_yticks(range(height), rows)
        for (layer, head), plot in np.ndenumerate(plots):
            image = plot.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1)
            plot.tick_params(length=0, labelsize=font)
            plot.tick_params("x", rotation=90)
            plot.tick_params("y", labelright=head == heads - 1 > 2)  # a long way from the left
            plot.spines[:].set(visible=True, color="0.7", linewidth=0.5)
            plot.set_title(panel.format(layer=layer + 1, head=head + 1), fontsize=9 * larger)
        bar = made.colorbar(image, ax=plots, aspect=40, fraction=0.03, pad=0.01)
        bar.set_label("attention weight", fontsize=10 * larger)
        joined = any(label[0] == "·" for label in (*rows, *columns) if label)
        note = ", · goes on with the word before" if joined else ""
        made.supxlabel(f"looked at (key tokens{note})", fontsize=10 * larger)
        made.supylabel("looking (query tokens)", fontsize=10 * larger)
        made.suptitle(title, fontsize=13 * larger)
