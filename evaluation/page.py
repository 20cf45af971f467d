"""Attention weights as a self-contained, interactive HTML page."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Attention = tuple[np.ndarray, Sequence[str], Sequence[str]]  # weights, query tokens, key tokens
TEMPLATE = Path(__file__).with_name("page.html")


def check_weights(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> np.ndarray:
    """Return attention weights as an array (layers, heads, query_len, key_len).

    Raises ValueError if the shape does not fit the tokens, or a weight is not finite.
    """
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 4 or weights.shape[2:] != (len(queries), len(keys)) or not weights.size:
        raise ValueError(
            f"weights of shape {weights.shape} are not (layers, heads, {len(queries)} queries, "
            f"{len(keys)} keys)"
        )
    if not np.isfinite(weights).all():
        raise ValueError("the attention weights are not finite")
    return weights


def write(path: str | Path, kinds: dict[str, Attention], title: str) -> None:
    """Write a page that any browser can open from disk, without a network.

    kinds: {"encoder self-attention": (weights (layers, heads, query_len, key_len), query tokens,
    key tokens), …}. Raises ValueError if weights and tokens do not fit.

    The address selects what is shown: #kind=1&layer=2&head=3&word=4, all counted from 1; head=mean
    is the mean of all heads. Without it, the last kind, its last layer and the mean are shown.
    """
    if not kinds:
        raise ValueError("there is no attention to show")
    data = [
        {
            "name": name,
            "queries": list(queries),
            "keys": list(keys),
            "weights": thousandths(check_weights(weights, queries, keys)),
        }
        for name, (weights, queries, keys) in kinds.items()
    ]
    Path(path).write_text(fill(TEMPLATE, data, title), "utf-8")


def fill(template: Path, data: object, title: str = "") -> str:
    """Return a page: a template with its title, and with data that its script reads as JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":  # "<" could end the <script> that holds the data
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {"TITLE": html.escape(title), "DATA": text}
    # In one pass: a title or token that looks like a placeholder stays unchanged.
    return re.sub("@(TITLE|DATA)@", lambda match: parts[match[1]], template.read_text("utf-8"))


def thousandths(weights: np.ndarray) -> list:
    """Round weights to integer thousandths, with the mean of all heads in front, as head 0."""
    mean = weights.mean(axis=1, keepdims=True)
    return np.rint(1000 * np.concatenate([mean, weights], axis=1)).astype(int).tolist()
