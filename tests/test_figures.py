"""Figures show each number at the right place, under the right name."""

import json
from contextlib import contextmanager
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

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


def curves(plot):
    return {line.get_label(): line.get_xydata().tolist() for line in plot.lines}


def test_training_and_validation_have_their_own_steps(drawn):
    train = [{"step": s, "loss": 1 / s, "accuracy": s / 10, "grad_norm": s} for s in (1, 2, 3)]
    validation = {"step": 2, "validation_loss": 0.7, "validation_accuracy": 0.25}
    figures.training("", {"one": [*train[:2], validation, train[2]]}, "example")
    titles = [plot.get_title() for plot in drawn[0].axes]  # no panels without data
    assert titles == ["loss, nats per example", "accuracy, % of examples", "norm of the gradient"]
    accuracy = curves(drawn[0].axes[1])
    assert accuracy == {"one, training": [[1, 10], [2, 20], [3, 30]], "one, validation": [[2, 25]]}
    assert drawn[0].axes[1].get_ylim()[0] == 0 and drawn[0].axes[1].get_ylim()[1] > 30


def test_a_single_point_is_visible_and_steps_are_whole_numbers(drawn):
    figures.training("", {"one": [{"step": 1, "loss": 1.0}, {"step": 2, "grad_norm": 2}]}, "token")
    for plot in drawn[0].axes:
        assert plot.lines[0].get_marker() == "." and set(plot.get_xticks()) >= {0, 1, 2}
        assert all(tick == int(tick) for tick in plot.get_xticks())


def test_other_runs_have_their_validation_in_the_same_panels(drawn):
    one = [{"step": 1, "loss": 1, "grad_norm": 2}, {"step": 2, "validation_loss": 0.7}]
    other = [{"step": 4, "validation_loss": 0.6, "loss": 9}, {"step": 5, "grad_norm": 7}]
    figures.training("", {"one": one, "other": other}, "token")
    loss, gradient = map(curves, drawn[0].axes)
    assert loss["one, training"] == [[1, 1]] and loss["one, validation"] == [[2, 0.7]]
    assert loss["other"] == [[4, 0.6]] and len(loss) == 3
    assert gradient == {"one, training": [[1, 2]], "other": [[5, 7]]}
    assert len(names(drawn[0].legends[0].texts)) == 3  # one legend for all panels


def test_bleu_of_100_is_inside_the_plot(drawn):
    figures.by_length("", {"1–5": 30, "6–10": 1009}, {"one": [100.0, 20.0], "two": [50.0, 10.0]})
    plot = drawn[0].axes[0]
    assert names(plot.get_xticklabels()) == ["1–5\n30", "6–10\n1,009"]
    assert [line.get_ydata().tolist() for line in plot.lines] == [[100, 20], [50, 10]]
    assert plot.get_ylim()[0] == 0 and plot.get_ylim()[1] > 100


def test_recurrent_runs_are_labelled_with_their_attention(tmp_path):
    kinds = {
        "a/gru": ("recurrent", "none"),
        "a/b": ("recurrent", "dot"),
        "b/b": ("transformer", "none"),
    }
    for name, (model, kind) in kinds.items():
        (tmp_path / name).mkdir(parents=True)
        text = json.dumps({"model": model, "recurrent_attention": kind})
        (tmp_path / name / "config.json").write_text(text)
    labels = figures.run_labels([tmp_path / name for name in ("a/gru", "b/b")])
    assert labels == ["gru: GRU, no attention", "b"]
    labels = figures.run_labels([tmp_path / name for name in ("a/b", "b/b")])
    assert labels == [f"{tmp_path}/a/b: GRU, dot attention", f"{tmp_path}/b/b"]


@pytest.mark.filterwarnings("error")
def test_agreement_is_the_correlation_of_ranks(drawn):
    """Equal values share their mean rank; a constant has no correlation."""
    columns = {"a": [1, 2, 3, 4], "b": [1, 10, 100, 1000], "c": [4, 3, 2, 1], "d": [5, 7, 7, 9]}
    figures.agreement("", columns | {"e": [3, 3, 3, 3]})
    first = [text.get_text() for text in drawn[0].axes[0].texts][:5]
    # Ranks of d: 1, 2.5, 2.5, 4: 4.5 / √(5 · 4.5) = 0.95.
    assert first == ["1.00", "1.00", "-1.00", "0.95", "–"]


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
        ("training", ({"one": [{"step": 1, "loss": 2.5, "accuracy": 0.0}]}, "token")),
        ("by_length", ({"1–5": 1}, {"one": [0.0]})),
        ("agreement", ({"$bleu$": [1.0, 2.0], "meteor": [0.0, 0.0]},)),
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
    groups = figures.group_by_length(sources)
    assert groups == {"1–5": [0, 1], "6–10": [2, 3], "41 and more": [4]}
    scores = [pytest.approx(100), bleu(outputs[2:4], targets[2:4]), bleu(outputs[4:], targets[4:])]
    assert figures.bleu_by_length(outputs, targets, groups) == scores
    groups = figures.group_by_length(["w " * 3] * 99 + sources[2:])
    assert {words: len(group) for words, group in groups.items()} == {"1–5": 99, "6 and more": 3}
