"""The pictures show the numbers that they were given, each at its place and under its name."""

import math
from contextlib import contextmanager
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from evaluation import pictures, plots

ODD = ["<s>", "▁a$b$", "&lt;", "▁что", "s", "▁" + "x" * 40]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, which need not be rendered to be looked at."""
    made = []

    @contextmanager
    def figure(stem, width, height, layout=None):
        made.append(Figure())
        yield made[-1]

    monkeypatch.setattr(pictures, "figure", figure)
    monkeypatch.setattr(plots, "figure", figure)
    return made


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
def test_labels_show_where_words_begin(pieces, expected):
    assert pictures.labels(pieces) == expected


def test_attention_is_queries_down_and_keys_across(drawn):
    given = weights(2, 4, 3, 5)
    pictures.attention("", given, ["▁a", "▁b", "▁c"], list("vwxyz"), "title")
    for layer in range(2):
        for head in range(4):
            plot = plot_of(drawn[0], f"layer {layer + 1}, head {head + 1}")
            np.testing.assert_array_equal(plot.images[0].get_array(), given[layer, head])
            assert plot.images[0].get_clim() == (0, 1)
    corner = plot_of(drawn[0], "layer 2, head 1")
    assert names(corner.get_yticklabels()) == ["a", "b", "c"]
    assert names(corner.get_xticklabels()) == ["v", "·w", "·x", "·y", "·z"]


@pytest.mark.parametrize("shape", [(3, 5), (1, 2, 5, 3), (1, 2, 3, 0)])
def test_weights_that_do_not_fit_the_tokens_are_refused(shape):
    with pytest.raises(ValueError, match="are not"):
        pictures.attention("", np.ones(shape), list("abc"), list("abcde")[: shape[-1]], "")


def test_tokens_are_text_in_the_svg_just_as_they_are(tmp_path):
    """No mathematics between dollars, no entities; the same data give the same bytes."""
    for stem in ("one", "two"):
        pictures.attention(tmp_path / stem, weights(1, 1, 6, 6), ODD, ODD, "$a$ & <b>")
    found = [element.text for element in ElementTree.parse(tmp_path / "one.svg").iter()]
    for text in ["<s>", "a$b$", "&lt;", "что", "·s", "x" * 15 + "…"]:
        assert found.count(text) == 2
    assert "$a$ & <b>" in found
    for kind in ("svg", "png"):
        one, two = (tmp_path / f"{stem}.{kind}" for stem in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_sinusoids_are_alike_by_distance_alone(drawn):
    frequencies = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    angles = np.arange(30)[:, None] * frequencies
    encodings = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(30, 16)
    plots.positions("", encodings)
    left, right = drawn[0].axes[:2]
    np.testing.assert_array_equal(left.images[0].get_array(), encodings)
    expected = np.cos(np.arange(30)[:, None] * frequencies).sum(axis=1)
    np.testing.assert_allclose(right.lines[0].get_ydata(), expected)
    plots.positions("", np.array([[1.0], [2.0], [4.0]]))  # E(p) E(p + 1): 2 and 8
    band = drawn[1].axes[1].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} >= {(1, 2), (1, 8)}
    plots.positions("", np.zeros((4, 6)))
    assert drawn[2].axes[0].images[0].get_clim() == (-1, 1)  # nothing is white, as it is elsewhere


def test_the_first_rate_is_that_of_step_1(drawn):
    plots.schedule("", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.2])
    plot = drawn[0].axes[0]
    assert [text.get_text() for text in plot.texts] == ["peak: 0.3 at step 3"]
    assert list(plot.lines[1].get_xdata()) == [3]


def test_training_and_validation_are_drawn_over_their_own_steps(drawn):
    train = [{"step": s, "loss": 1 / s, "accuracy": s / 10, "grad_norm": s} for s in (1, 2, 3)]
    validation = {"step": 2, "validation_loss": 0.7, "validation_accuracy": 0.25}
    plots.training("", [*train[:2], validation, train[2]])
    titles = [plot.get_title() for plot in drawn[0].axes]
    assert titles == ["loss", "accuracy", "gradient"]  # and no plots of what there is not
    curves = [line.get_xydata().tolist() for line in drawn[0].axes[1].lines]
    assert curves == [[[1, 10], [2, 20], [3, 30]], [[2, 25]]]
    other = [{"step": 4, "validation_loss": 0.6, "loss": 9}, {"step": 5, "grad_norm": 7}]
    plots.training("", [*train, validation], {"other": other})
    loss, gradient = (plot_of(drawn[1], title) for title in ("loss", "gradient"))
    assert loss.lines[2].get_xydata().tolist() == [[4, 0.6]]
    assert gradient.lines[1].get_xydata().tolist() == [[5, 7]]
    plots.training("", [validation | {"validation_bleu": 31.0}])
    assert plot_of(drawn[2], "BLEU").lines[0].get_xydata().tolist() == [[2, 31]]


def test_lengths_are_in_order_and_runs_meet_at_equal_ones(drawn):
    plots.by_length("", {
        "one": [(11, None, 5, 20.0), (1, 5, 30, 40.0)],
        "two": [(1, 5, 30, 50.0), (6, 10, 9, None), (11, None, 4, 10.0)],
    })  # fmt: skip
    plot = drawn[0].axes[0]
    assert names(plot.get_xticklabels()) == ["1–5\n30", "6–10\n9", "11 and more\n5 / 4"]
    for line, expected in zip(plot.lines, ([40, math.nan, 20], [50, math.nan, 10]), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), expected)


@pytest.mark.filterwarnings("error")
def test_spearman_by_hand():
    """Ranks, not values; equal values share the mean rank; a constant has no correlation."""
    columns = [[1, 2, 3, 4], [1, 10, 100, 1000], [4, 3, 2, 1], [5, 7, 7, 9], [3, 3, 3, 3]]
    found = plots.spearman(columns)
    # The fourth column's ranks are 1, 2.5, 2.5, 4: 4.5 / √(5 · 4.5).
    tied = 4.5 / math.sqrt(22.5)
    np.testing.assert_allclose(found[0], [1, 1, -1, tied, math.nan])
    np.testing.assert_allclose(np.diag(found), [1, 1, 1, 1, math.nan])


def test_confusion_has_the_truth_in_rows(drawn):
    plots.confusion("", [[3, 1, 0], [0, 5, 0], [0, 0, 0]], ["a", "b", "c"])
    plot = drawn[0].axes[0]
    cells = {text.get_position()[::-1]: text.get_text() for text in plot.texts}  # (row, column)
    assert cells[0, 0] == "3\n75.0 %" and cells[0, 1] == "1\n25.0 %" and cells[1, 0] == "0"
    assert cells[1, 1] == "5\n100.0 %" and cells[2, 2] == "–"
    assert names(plot.get_yticklabels()) == ["a (4)", "b (5)", "c (0)"]


def test_a_forest_shows_every_difference_and_no_more_of_an_interval_than_helps(drawn):
    rows = [("a", -60, -65, -55), ("b", 5, 1, 9), ("c", 2, -900, 904), ("d", 1, None, None)]
    plots.forest("", rows, "title", "points")
    left, right = drawn[0].axes[0].get_xlim()
    assert -90 < left < -65 and 60 < right < 90
    plots.forest("", rows[1:2], "title", "points")
    left, right = drawn[1].axes[0].get_xlim()
    assert -1 < left < 0 and 6 < right < 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("function", "data"),
    [
        ("attention", (np.ones((1, 1, 1, 1)), ["▁a"], ["▁b"], "title")),
        ("positions", (np.zeros((4, 6)),)),
        ("schedule", (np.ones(1), np.zeros(1))),
        ("training", ([{"step": 1, "loss": 2.5, "accuracy": 0.0}],)),
        ("by_length", ({"one": [(1, 5, 0, None)]},)),
        ("agreement", ({"$bleu$": [1.0, 2.0], "exact_match": [0.0, 0.0]},)),
        ("confusion", (np.zeros((1, 1), int), ["the only one"])),
    ],
)
def test_the_smallest_data_make_a_picture_and_no_warning(tmp_path, function, data):
    getattr(pictures if function == "attention" else plots, function)(
        tmp_path / "new" / "run-1.5", *data
    )
    assert {path.name for path in tmp_path.glob("new/*")} == {"run-1.5.png", "run-1.5.svg"}
