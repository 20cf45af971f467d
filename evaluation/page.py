"""Attention as a page: point at a word and see what it looks at. One file, no network."""

import html
import json
import re
from pathlib import Path

import numpy as np

from evaluation.pictures import check

TEMPLATE = Path(__file__).with_name("page.html")


def write(path, kinds, title):
    """Write a page that any browser opens from the disk.

    kinds: {"encoder self-attention": (weights (layers, heads, query_len, key_len), query pieces,
    key pieces), …}. Raises ValueError where weights and pieces do not fit together.

    A state of the page can be linked: #kind=1&layer=2&head=3&word=4, all counted from 1; head=mean
    is the mean of all heads.
    """
    if not kinds:
        raise ValueError("there is no attention to show")
    data = [
        {"name": name, "queries": list(queries), "keys": list(keys),
         "weights": thousandths(check(weights, queries, keys))}
        for name, (weights, queries, keys) in kinds.items()
    ]  # fmt: skip
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # Inside <script> only "<" could end the data; "&" and ">" go with it, for whatever reads it.
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {"TITLE": html.escape(title), "DATA": text}
    # In one pass, so that a title or a piece that looks like a place to fill stays as it is.
    page = re.sub("@(TITLE|DATA)@", lambda place: parts[place[1]], TEMPLATE.read_text("utf-8"))
    Path(path).write_text(page, "utf-8")


def thousandths(weights):
    """Weights as whole thousandths, in lists; the mean of all heads comes first, as head 0."""
    mean = weights.mean(axis=1, keepdims=True)
    return np.rint(1000 * np.concatenate([mean, weights], axis=1)).astype(int).tolist()
