"""Draw attention weights of a text into RUN/attention: heat maps, and a page to explore them."""

import argparse
import itertools
import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from config import TASKS
from data.splits import Split
from evaluation import command_line, page
from evaluation.figures import figure
from utils import UserError

if TYPE_CHECKING:
    from evaluation.predictor import Predictor

MAX_TOKEN_LENGTH = 16  # characters of a label
NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # forbidden in an SVG
TOKENS_SHOWN = 20  # in TensorBoard


def axis_labels(tokens: Sequence[str]) -> list[str]:
    """Return SentencePiece tokens as labels of an axis.

    Many tokens begin with "▁", a space: it is left out, and tokens that continue a word begin with
    "·" instead. A line feed is "⏎". Long ones are truncated. Control characters become U+FFFD.
    """
    labels = []
    for before, token in itertools.pairwise(["\n", *tokens]):
        starts = before.endswith(("▁", "\n")) or before in ("<s>", "</s>")
        joined = token[:1].isalnum() and not starts
        text = token[1:] if len(token) > 1 and token[0] == "▁" else token
        text = text.replace("▁", "␣").replace("\n", "⏎")
        if len(text) > MAX_TOKEN_LENGTH:
            text = text[: MAX_TOKEN_LENGTH - 1] + "…"
        labels.append(NOT_XML.sub("\ufffd", "·" + text if joined else text))
    return labels


def heat_maps(
    stem: str | Path, weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str
) -> None:
    """Draw a heat map for each head of each layer, with one scale of colour.

    weights (layers, heads, query_len, key_len); queries, keys: tokens.
    """
    layers, heads, height, width = weights.shape
    title = NOT_XML.sub("\ufffd", title)
    rows, columns = axis_labels(queries), axis_labels(keys)
    # The weights of an edited attention may be negative.
    colours, lowest = ("RdBu", -1) if weights.min() < 0 else ("Blues", 0)
    # A cell is as high as its label, unless the figure would become metres wide.
    cell = min(max(0.13, 2 / max(width, height)), 80 / max(heads * width, layers * height))
    font = min(9, 0.88 * 72 * cell)
    row_space, column_space = (0.6 * font / 72 * max(map(len, x)) for x in (rows, columns))
    across = heads * (width * cell + 0.15) + row_space + 1.4
    down = layers * (height * cell + 0.25) + column_space + 1.1
    with figure(stem, across, down) as canvas:
        plots = canvas.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
        plots[0, 0].set_xticks(range(width), columns)  # shared by all
        plots[0, 0].set_yticks(range(height), rows)
        for (layer, head), plot in np.ndenumerate(plots):
            image = plot.imshow(weights[layer, head], cmap=colours, vmin=lowest, vmax=1)
            plot.tick_params(length=0, labelsize=font)
            plot.tick_params("x", rotation=90)
            if layers * heads > 1:
                plot.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        canvas.colorbar(image, ax=plots, label="attention weight", fraction=0.03, pad=0.01)
        canvas.supxlabel("key tokens (· continues the word before)", fontsize=10)
        canvas.supylabel("query tokens", fontsize=10)
        canvas.suptitle(textwrap.fill(title, max(20, int(8.5 * across))), fontsize=13)


def attention_image(predictor: "Predictor", split: Split) -> bytes | None:
    """Return a PNG of the attention in one text and its target, or None if there is none.

    It shows the mean of the last layer's heads. The text is the first of those closest to six
    words, if possible not an empty line, and of both, the first TOKENS_SHOWN. For a language model,
    the target is the text.
    """
    texts = split.sources if any(split.sources) else split.targets
    words = [len(text.split()) for text in texts]
    i = min(range(len(texts)), key=lambda i: (not words[i], abs(words[i] - 6)))
    kinds = predictor.attention(split.sources[i], split.targets[i])
    if not kinds:
        return None
    name, (weights, queries, keys) = list(kinds.items())[-1]
    queries, keys = queries[:TOKENS_SHOWN], keys[:TOKENS_SHOWN]
    mean = weights[-1:, :, : len(queries), : len(keys)].mean(axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "attention")
        heat_maps(stem, mean, queries, keys, f"{name}, last layer, mean of heads")
        return stem.with_suffix(".png").read_bytes()


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and the page, and print their paths. Raises UserError and OSError."""
    predictor = command_line.load(flags)
    kinds, title = predictor.attention(flags.text), flags.text
    if not kinds:
        text = "the model has no attention, or the text has no known character"
        raise UserError(f"nothing to draw: {text}")
    if flags.config.task != "language modeling":
        title += f" → {predictor.translate([flags.text])[0]}"
    folder = flags.run / "attention"
    for name, (weights, queries, keys) in kinds.items():
        stem = folder / name.replace(" ", "-")
        heat_maps(stem, weights, queries, keys, f"{name}: {title}")
        print(f"{stem}.png", f"{stem}.svg", sep="\n")
    page.write(folder / "attention.html", kinds, title)
    print(folder / "attention.html")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("text", type=command_line.valid_text, metavar="TEXT")
    command_line.run(main, command_line.parse(PARSER, [*TASKS.values()]))
