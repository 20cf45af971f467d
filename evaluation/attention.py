"""Draw attention weights of a text into RUN/attention: heat maps, and a page to explore them."""

import argparse
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data.splits import Split
from data.tokenizer import BOS, EOS, PAD
from evaluation import command_line, page
from evaluation.plots import figure
from utils import UserError

if TYPE_CHECKING:
    from evaluation.translator import Translator

# Name of each kind of attention in the models: its title, its query tokens, its key tokens.
KINDS = {
    "encoder": ("encoder self-attention", "source", "source"),
    "decoder": ("decoder self-attention", "target_out", "target_in"),
    "cross": ("cross-attention", "target_out", "source"),
}
MAX_TOKEN_LENGTH = 16  # characters of a label


def attention_weights(
    translator: "Translator", text: str, target: str | None = None
) -> tuple[dict[str, page.Attention], str]:
    """Return the attention weights of a text by kind of attention, and the output of the model.

    weights (num_layers, num_heads, query_len, key_len) come with their query and key tokens. A row
    of the decoder has the token that is predicted there, target_out. target: used in place of the
    model's own output. Raises UserError for an empty text.
    """
    source_tokenizer, target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
    source = source_tokenizer.encode([text])[0][: translator.max_length]
    if not source:
        raise UserError("the text is empty: give one with words")
    source = np.int32([[*source, EOS]])
    if target is None:
        target_out = translator.decode(source, 0)[0].numpy()[0, 0]
        target_out = target_out[target_out != PAD].tolist()
    else:
        target_out = [*target_tokenizer.encode([target])[0], *target_tokenizer.ending]
    target_in = [BOS, *target_out[:-1]]
    tokens = {
        "source": source_tokenizer.tokens(source[0]),
        "target_in": target_tokenizer.tokens(target_in),
        "target_out": target_tokenizer.tokens(target_out),
    }
    kinds = {}
    for kind, weights in translator.model.attention_weights(source, np.int32([target_in])).items():
        name, queries, keys = KINDS[kind]
        kinds[name] = weights[0].numpy(), tokens[queries], tokens[keys]
    return kinds, target_tokenizer.decode([target_out])[0]


def axis_labels(tokens: Sequence[str]) -> list[str]:
    """Return SentencePiece tokens as labels of an axis.

    Most tokens begin with "▁", a space: it is left out, and tokens that continue a word begin with
    "·" instead. Long ones are truncated.
    """
    labels = []
    for i, token in enumerate(tokens):
        joined = i > 0 and token[:1].isalnum()
        text = token[1:] if len(token) > 1 and token[0] == "▁" else token
        text = text.replace("▁", "␣")
        if len(text) > MAX_TOKEN_LENGTH:
            text = text[: MAX_TOKEN_LENGTH - 1] + "…"
        labels.append("·" + text if joined else text)
    return labels


def heat_maps(
    stem: str | Path, weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str
) -> None:
    """Draw a heat map for each head of each layer, with one scale of colour.

    weights (layers, heads, query_len, key_len); queries, keys: tokens.
    Raises ValueError if the weights do not fit the tokens.
    """
    weights = page.check_weights(weights, queries, keys)
    layers, heads, height, width = weights.shape
    rows, columns = axis_labels(queries), axis_labels(keys)
    # A cell is as high as its label, unless the figure would become metres wide.
    cell = min(max(0.13, 2 / max(width, height)), 80 / max(heads * width, layers * height))
    font = min(9, 0.88 * 72 * cell)
    row_space, column_space = (0.6 * font / 72 * max(map(len, x)) for x in (rows, columns))
    across = heads * (width * cell + 0.15) + 2 * row_space + 1.4
    scale = max(1, across / 28)  # larger titles for wide figures, which are seen from further away
    title = textwrap.fill(title, max(20, int(8.5 * across / scale)))
    down = layers * (height * cell + 0.25) + column_space
    down += 0.7 + 0.2 * scale * len(title.splitlines())
    with figure(stem, across, down, layout="compressed") as canvas:
        plots = canvas.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
        plots[0, 0].set_xticks(range(width), columns)  # shared by all
        plots[0, 0].set_yticks(range(height), rows)
        for (layer, head), plot in np.ndenumerate(plots):
            image = plot.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1)
            plot.tick_params(length=0, labelsize=font)
            plot.tick_params("x", rotation=90)
            # On the right, too, if the labels on the left are far away.
            plot.tick_params("y", labelright=heads > 3 and head == heads - 1)
            plot.spines[:].set(visible=True, color="0.7", linewidth=0.5)
            plot.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9 * scale)
        bar = canvas.colorbar(image, ax=plots, aspect=40, fraction=0.03, pad=0.01)
        bar.set_label("attention weight", fontsize=10 * scale)
        joined = any(label[0] == "·" for label in (*rows, *columns) if label)
        note = " (· continues the word before)" if joined else ""
        canvas.supxlabel(f"key tokens{note}", fontsize=10 * scale)
        canvas.supylabel("query tokens", fontsize=10 * scale)
        canvas.suptitle(title, fontsize=13 * scale)


def attention_image(translator: "Translator", split: Split) -> bytes | None:
    """Return a PNG of the attention in one text and its target, or None without attention.

    It shows the mean of the last layer's heads. The text is the first of those closest to six
    words.
    """
    i = min(range(len(split.sources)), key=lambda i: abs(len(split.sources[i].split()) - 6))
    kinds, _ = attention_weights(translator, split.sources[i], split.targets[i])
    if not kinds:
        return None
    name, (weights, queries, keys) = list(kinds.items())[-1]
    mean = weights[-1].mean(axis=0)  # (query_len, key_len)
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "attention")
        # The size of a card in TensorBoard, 374 × 215 pixels: scaling would blur the text.
        with figure(stem, 3.4, 1.95) as canvas:
            plot = canvas.subplots()
            plot.imshow(mean, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            plot.tick_params(length=0, labelsize=7)
            plot.set_xticks(range(len(keys)), axis_labels(keys), rotation=30, ha="right")
            plot.set_yticks(range(len(queries)), axis_labels(queries))
            plot.set_title(f"{name}, last layer, mean of heads", fontsize=8)
        return stem.with_suffix(".png").read_bytes()


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and the page, and print their paths. Raises UserError and OSError."""
    kinds, output = attention_weights(command_line.load(flags), flags.text)
    if not kinds:
        raise UserError("this model has no attention")
    folder, title = flags.run / "attention", f"{flags.text} → {output}"
    for name, (weights, queries, keys) in kinds.items():
        stem = folder / name.replace(" ", "-")
        heat_maps(stem, weights, queries, keys, f"{name}: {title}")
        print(f"{stem}.png", f"{stem}.svg", sep="\n")
    page.write(folder / "attention.html", kinds, title)
    print(folder / "attention.html")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("text", type=command_line.valid_text, metavar="TEXT")
    command_line.run(main, command_line.parse(PARSER))
