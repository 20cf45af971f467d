"""Figures show each number at the right place, under the right name."""

import math
from contextlib import contextmanager
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from config import Config
from data.corpora import Split
from evaluation import attention, figures
from evaluation.metrics import bleu

ODD = ["<s>", "▁a$b$", "&lt;", "▁что", "s", "▁" + "x" * 40]


@pytest.fixture
def drawn(monkeypatch):
    """A list of the figures drawn, which are not rendered."""
    canvases = []

    @contextmanager
    def figure(stem, width, height, layout=None):
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
        (["▁" + "x" * 16, "▁" + "x" * 17], ["x" * 16, "x" * 15 + "…"]),
    ],
)
def test_axis_labels_mark_tokens_within_a_word(pieces, expected):
    assert attention.axis_labels(pieces) == expected


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


@pytest.mark.parametrize("shape", [(3, 5), (1, 2, 5, 3), (1, 2, 3, 0)])
def test_weights_that_do_not_fit_the_tokens_are_rejected(shape):
    with pytest.raises(ValueError, match="are not"):
        attention.heat_maps("", np.ones(shape), list("abc"), list("abcde")[: shape[-1]], "")


def test_svg_has_tokens_as_plain_text_and_is_deterministic(tmp_path):
    """ "$" begins no formula, and entities stay text."""
    for stem in ("one", "two"):
        attention.heat_maps(tmp_path / stem, weights(1, 1, 6, 6), ODD, ODD, "$a$ & <b>")
    texts = [element.text for element in ElementTree.parse(tmp_path / "one.svg").iter()]
    for text in ["<s>", "a$b$", "&lt;", "что", "·s", "x" * 15 + "…"]:
        assert texts.count(text) == 2
    assert "$a$ & <b>" in texts
    for kind in ("svg", "png"):
        one, two = (tmp_path / f"{stem}.{kind}" for stem in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_similarity_of_sinusoids_depends_only_on_distance(drawn):
    frequencies = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    angles = np.arange(30)[:, None] * frequencies
    encodings = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(30, 16)
    figures.positions("", encodings)
    left, right = drawn[0].axes[:2]
    np.testing.assert_array_equal(left.images[0].get_array(), encodings)
    expected = np.cos(np.arange(30)[:, None] * frequencies).sum(axis=1)
    np.testing.assert_allclose(right.lines[0].get_ydata(), expected)
    figures.positions("", np.array([[1.0], [2.0], [4.0]]))  # E(p) E(p + 1): 2 and 8
    band = drawn[1].axes[1].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} >= {(1, 2), (1, 8)}
    figures.positions("", np.zeros((4, 6)))
    assert drawn[2].axes[0].images[0].get_clim() == (-1, 1)  # zero is white, as elsewhere


def test_the_peak_of_the_learning_rate_is_marked(drawn):
    figures.schedule("", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.2])
    plot = drawn[0].axes[0]
    assert [text.get_text() for text in plot.texts] == ["peak: 0.3 at step 3"]
    assert list(plot.lines[1].get_xdata()) == [3]


def test_training_and_validation_have_their_own_steps(drawn):
    train = [{"step": s, "loss": 1 / s, "accuracy": s / 10, "grad_norm": s} for s in (1, 2, 3)]
    validation = {"step": 2, "validation_loss": 0.7, "validation_accuracy": 0.25}
    figures.training("", [*train[:2], validation, train[2]])
    titles = [plot.get_title() for plot in drawn[0].axes]
    assert titles == ["loss", "accuracy", "gradient"]  # no panels without data
    curves = [line.get_xydata().tolist() for line in drawn[0].axes[1].lines]
    assert curves == [[[1, 10], [2, 20], [3, 30]], [[2, 25]]]
    other = [{"step": 4, "validation_loss": 0.6, "loss": 9}, {"step": 5, "grad_norm": 7}]
    figures.training("", [*train, validation], {"other": other})
    loss, gradient = (plot_of(drawn[1], title) for title in ("loss", "gradient"))
    assert loss.lines[2].get_xydata().tolist() == [[4, 0.6]]
    assert gradient.lines[1].get_xydata().tolist() == [[5, 7]]
    figures.training("", [validation | {"validation_bleu": 31.0}])
    assert plot_of(drawn[2], "BLEU").lines[0].get_xydata().tolist() == [[2, 31]]


def test_runs_share_an_ordered_axis_of_lengths(drawn):
    figures.by_length(
        "",
        {
            "one": [(11, None, 5, 20.0), (1, 5, 30, 40.0)],
            "two": [(1, 5, 30, 50.0), (6, 10, 9, None), (11, None, 4, 10.0)],
        },
    )
    plot = drawn[0].axes[0]
    assert names(plot.get_xticklabels()) == ["1–5\n30", "6–10\n9", "11 and more\n5 / 4"]
    for line, expected in zip(plot.lines, ([40, math.nan, 20], [50, math.nan, 10]), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), expected)


@pytest.mark.filterwarnings("error")
def test_spearman_by_hand():
    """Of ranks; equal values share their mean rank; a constant has no correlation."""
    columns = [[1, 2, 3, 4], [1, 10, 100, 1000], [4, 3, 2, 1], [5, 7, 7, 9], [3, 3, 3, 3]]
    correlations = figures.spearman(columns)
    # The fourth column's ranks are 1, 2.5, 2.5, 4: 4.5 / √(5 · 4.5).
    tied = 4.5 / math.sqrt(22.5)
    np.testing.assert_allclose(correlations[0], [1, 1, -1, tied, math.nan])
    np.testing.assert_allclose(np.diag(correlations), [1, 1, 1, 1, math.nan])


def test_confusion_matrix_has_true_labels_in_rows(drawn):
    figures.confusion("", [[3, 1, 0], [0, 5, 0], [0, 0, 0]], ["a", "b", "c"])
    plot = drawn[0].axes[0]
    cells = {text.get_position()[::-1]: text.get_text() for text in plot.texts}  # (row, column)
    assert cells[0, 0] == "3\n75.0 %" and cells[0, 1] == "1\n25.0 %" and cells[1, 0] == "0"
    assert cells[1, 1] == "5\n100.0 %" and cells[2, 2] == "–"
    assert names(plot.get_yticklabels()) == ["a (4)", "b (5)", "c (0)"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("function", "data"),
    [
        ("heat_maps", (np.ones((1, 1, 1, 1)), ["▁a"], ["▁b"], "title")),
        ("positions", (np.zeros((4, 6)),)),
        ("schedule", (np.ones(1), np.zeros(1))),
        ("training", ([{"step": 1, "loss": 2.5, "accuracy": 0.0}],)),
        ("by_length", ({"one": [(1, 5, 0, None)]},)),
        ("agreement", ({"$bleu$": [1.0, 2.0], "exact_match": [0.0, 0.0]},)),
        ("confusion", (np.zeros((1, 1), int), ["the only one"])),
    ],
)
def test_the_smallest_data_are_drawn_without_warnings(tmp_path, function, data):
    getattr(attention if function == "heat_maps" else figures, function)(
        tmp_path / "new" / "run-1.5", *data
    )
    assert {path.name for path in tmp_path.glob("new/*")} == {"run-1.5.png", "run-1.5.svg"}


def test_bleu_by_length_is_that_of_each_group():
    sources = ["w " * n for n in (3, 5, 6, 10, 45)]
    targets = [f"one two three four {n}" for n in range(5)]
    outputs = [*targets[:3], "one two three four five", "quite another one it is"]
    rows = figures.bleu_by_length(Split(sources, targets), outputs)
    assert rows == [
        (1, 5, 2, pytest.approx(100)),
        (6, 10, 2, bleu(outputs[2:4], targets[2:4])),
        (41, None, 1, bleu(outputs[4:], targets[4:])),
    ]
    many = Split(["w " * 3] * 99 + sources[2:], ["one two three four five"] * 102)
    rows = figures.bleu_by_length(many, many.targets)  # less than one in a hundred is merged
    assert [row[:3] for row in rows] == [(1, 5, 99), (6, None, 3)]


def test_the_learning_rate_is_drawn_from_step_1_with_its_peak():
    config = Config(warmup_steps=7777)
    steps, rates = figures.learning_rates(config, 20_000)
    assert steps[0] == 1 and steps[-1] == 20_000 and len(steps) <= figures.MAX_STEPS + 1
    assert steps[rates.argmax()] == 7777
