"""Attention weights as a self-contained, interactive HTML page."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

TEMPLATE = Path(__file__).with_name("page.html")


class Attention(NamedTuple):
    """Attention weights (layers, heads, query_len, key_len) and their tokens."""

    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]


def write(path: str | Path, kinds: dict[str, Attention], title: str) -> None:
    """Write a page that any browser can open from disk, without a network.

    kinds: for example {"cross-attention": Attention(…)}. The address selects what is shown:
    #kind=1&layer=2&head=3&word=4, all counted from 1; head=mean is the mean of all heads. Without
    it, the last kind, its last layer and the mean are shown.
    """
    data = []
    for name, (weights, queries, keys) in kinds.items():
        mean = weights.mean(axis=1, keepdims=True)  # as head 0
        thousandths = np.rint(1000 * np.concatenate([mean, weights], axis=1)).astype(int)
        kind = {"name": name, "queries": queries, "keys": keys}
        data.append(kind | {"weights": thousandths.tolist()})
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":  # "<" could end the <script> that holds the data
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {"TITLE": html.escape(title), "DATA": text}
    # In one pass: a title or token that looks like a placeholder stays unchanged.
    page = re.sub("@(TITLE|DATA)@", lambda match: parts[match[1]], TEMPLATE.read_text("utf-8"))
    Path(path).write_text(page, "utf-8")
