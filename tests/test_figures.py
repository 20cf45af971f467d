"""Figures show each number at the right place, under the right name."""

from contextlib import contextmanager
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from data.tokenizer import train
from evaluation import attention, figures
from evaluation.metrics import bleu
from evaluation.predictor import Predictor

ODD = ["<s>", "▁a$b$", "&lt;", "▁что", "s", "▁" + "x" * 40]


@pytest.fixture
def drawn(monkeypatch):
    """A list of the figures drawn, which are not rendered."""
    canvases = []

    @contextmanager
    def figure(stem, width, height):
        canvases.append(Figure())
        yield canvases[-1]

    monkeypatch.setattr(attention, "figure", figure)
    monkeypatch.setattr(figures, "figure", figure)
    return canvases


def weights(*shape):
    values = np.random.default_rng(0).random(shape)
    return values / values.sum(-1, keepdims=True)


def plot_of(figure, title):
    return next(plot for plot in figure.axes if plot.get_title() == title)


def names(ticks):
    return [label.get_text() for label in ticks]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<s>", "▁vest", "idos", ",", "▁"], ["<s>", "vest", "·idos", ",", "␣"]),
        (["vest", "▁▁2", "3", ""], ["vest", "␣2", "·3", ""]),
        (["\n", "R", "o", "▁", "a", "</s>", "T"], ["⏎", "R", "·o", "␣", "a", "</s>", "T"]),
        (["▁" + "x" * 16, "▁" + "x" * 17], ["x" * 16, "x" * 15 + "…"]),
        (["\x00", "▁a\uffff"], ["\ufffd", "a\ufffd"]),  # not allowed in XML
    ],
)
def test_axis_labels_mark_tokens_within_a_word(pieces, expected):
    assert attention.axis_labels(pieces) == expected


def test_a_line_feed_that_is_a_byte_is_shown_as_a_line_feed():
    tokenizer = train(["The boy is here", "The boy"], 300, leading_space=False)
    ids = tokenizer.encode(["\nThe boy\n"])[0]
    assert "<0x0A>" in tokenizer.tokens(ids)
    maps = {"decoder": tf.zeros((1, 1, 1, len(ids), len(ids)))}
    model = SimpleNamespace(attention_weights=lambda source, target: maps)
    (kind,) = (
        Predictor(model, tokenizer, tokenizer, 9, start=ids[0]).weights_by_kind([], ids).values()
    )
    assert attention.axis_labels(kind.queries) == ["⏎", "The", "boy", "⏎"]
    assert attention.axis_labels(kind.keys) == ["⏎", "⏎", "The", "boy"]


def test_heat_maps_have_queries_in_rows_and_keys_in_columns(drawn):
    expected = weights(2, 4, 3, 5)
    attention.heat_maps("", expected, ["▁a", "▁b", "▁c"], list("vwxyz"), "title")
    for layer in range(2):
        for head in range(4):
            plot = plot_of(drawn[0], f"layer {layer + 1}, head {head + 1}")
            np.testing.assert_array_equal(plot.images[0].get_array(), expected[layer, head])
            assert plot.images[0].get_clim() == (0, 1)
    corner = plot_of(drawn[0], "layer 2, head 1")
    assert names(corner.get_yticklabels()) == ["a", "b", "c"]
    assert names(corner.get_xticklabels()) == ["v", "·w", "·x", "·y", "·z"]


def test_svg_has_tokens_as_plain_text_and_is_deterministic(tmp_path):
    """ "$" begins no formula, and entities stay text."""
    for stem in ("one", "two"):
        attention.heat_maps(tmp_path / stem, weights(1, 1, 6, 6), ODD, ODD, "$a$ & <b>\x1b")
    texts = [element.text for element in ElementTree.parse(tmp_path / "one.svg").iter()]
    for text in ["<s>", "a$b$", "&lt;", "что", "·s", "x" * 15 + "…"]:
        assert texts.count(text) == 2
    assert "$a$ & <b>\ufffd" in texts
    for kind in ("svg", "png"):
        one, two = (tmp_path / f"{stem}.{kind}" for stem in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_bleu_by_length_is_that_of_each_group(drawn):
    references = [f"one two three four {n}" for n in range(5)]
    outputs = [*references[:3], "one two three four five", "quite another"]
    table = {"source": ["w " * n for n in (3, 5, 6, 10, 45)], "reference": references}
    figures.bleu_by_length("", table | {"output": outputs}, "title")
    plot = drawn[0].axes[0]
    assert names(plot.get_xticklabels()) == ["1–5\n2", "6–10\n2", "41 and more\n1"]
    expected = [100, bleu(outputs[2:4], references[2:4]), 0]
    assert plot.lines[0].get_ydata() == pytest.approx(expected)
    assert plot.get_ylim()[0] == 0 and plot.get_ylim()[1] > 100
