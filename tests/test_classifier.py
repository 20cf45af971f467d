"""Classifier: pooling, invariance to padding, decoding of labels, and their evaluation."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import translate
from data import tokenizer
from evaluation.scores import label_scores
from evaluation.search import Search
from evaluation.translator import Translator
from model.classifier import POOLING
from model.layers import Seed

TARGET = np.int32([[2, 4], [2, 5], [2, 5]])  # bos, label


def test_poolings_by_hand():
    memory = np.float32([[[1, -5], [3, -7], [99, 99]]])
    real = np.array([[True, True, False]])
    for name, expected in {"max": [3, -5], "mean": [2, -6], "first": [1, -5]}.items():
        np.testing.assert_array_equal(POOLING[name](memory, real), [expected])


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_pooling_without_real_positions_is_zero_with_finite_gradients(pooling):
    memory = tf.constant([[[1.0, -5.0], [3.0, -7.0]], [[2.0, 4.0], [6.0, 8.0]]])
    real = np.array([[False, False], [True, True]])
    with tf.GradientTape() as tape:
        tape.watch(memory)
        pooled = POOLING[pooling](memory, real)
    np.testing.assert_array_equal(pooled[0], [0, 0])
    assert np.all(pooled[1].numpy() > 0)
    gradient = tape.gradient(pooled, memory).numpy()
    np.testing.assert_array_equal(gradient[0], np.zeros((2, 2)))
    np.testing.assert_array_equal(gradient[1].sum(axis=0), [1, 1])


def test_dropout_reaches_the_pooled_vector_in_training_only(tiny):
    model = tiny(model="classifier", target_vocab=6, dropout_rate=0.5)
    memory, mask = tf.ones((2, 3, 8)), tf.ones((2, 1, 1, 3), bool)
    pooled = model.decode(None, memory, None, mask, Seed(0, 7))[0].numpy()
    assert set(np.unique(pooled)) == {0.0, 2.0}
    np.testing.assert_array_equal(model.decode(None, memory, None, mask)[0], tf.ones((2, 1, 8)))


# Decoding


@pytest.fixture(scope="module")
def tokenizers():
    texts = ["a good film", "a bad film", "not good", "not bad , not bad at all"]
    return tokenizer.train(texts, 300), tokenizer.Labels(["neg", "pos"])


def test_score_of_a_label_is_its_log_probability(tiny, tokenizers):
    model = tiny(tokenizers[0].vocab_size, 6, spread=0.05, model="classifier")
    model.output.bias[:4].assign([9.0] * 4)  # special tokens must be excluded
    texts = ["a good film", "not bad at all", "a film", ""]
    best = Translator(model, *tokenizers, 20).n_best(texts)
    ranked = Translator(model, *tokenizers, 20, Search(beam=2, n_best=2)).n_best(texts)
    for text, (first,), both in zip(texts[:3], best[:3], ranked[:3], strict=True):
        source = np.int32([[*tokenizers[0].encode([text])[0], tokenizer.EOS]])
        logits = model.teacher_forced(source, TARGET[:1]).logits
        log_probs = dict(zip(["neg", "pos"], tf.nn.log_softmax(logits[0, 4:]).numpy(), strict=True))
        assert first[1] == max(log_probs, key=log_probs.get)
        assert {label for _, label in both} == {"neg", "pos"}
        for score, label in [first, *both]:
            assert score == pytest.approx(log_probs[label], abs=1e-5)
    assert best[3] == [(0.0, "")]


@pytest.mark.parametrize(("search", "fields"), [(Search(), 2), (Search(beam=2, n_best=2), 3)])
def test_labels_are_printed_with_their_probability(
    tiny, tokenizers, search, fields, monkeypatch, capsys
):
    model = tiny(tokenizers[0].vocab_size, 6, spread=0.05, model="classifier")
    translator = Translator(model, *tokenizers, 20, search)
    monkeypatch.setattr("evaluation.command_line.load", lambda _: translator)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    translate.main(SimpleNamespace(texts=["a good film", ""], file=None, search=search))
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    shares = [float(x) for x in rows[0] + rows[1] if x.startswith("0.")]
    assert all(len(row) == fields for row in rows[: fields - 1])
    assert max(shares) >= 0.5 and (fields == 2 or sum(shares) == pytest.approx(1, abs=1e-3))
    assert rows[-1][-1] == ""  # an empty text has no label


# Evaluation


def test_confusion_and_f1_by_hand():
    true = ["a", "a", "a", "b", "b", "c"]
    predicted = ["a", "a", "b", "b", "a", "b"]
    scores = label_scores(predicted, true, ["a", "b", "c"])
    assert [*scores["confusion"].values()] == [{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]
    # a: 2 correct of 3 predicted and 3 true; b: 1 of 3 and 2; c: never predicted.
    assert [*scores["f1_by_label"].values()] == pytest.approx([4 / 6, 2 / 5, 0])
    scores = label_scores(["a", "", "b"], ["a", "a", "b"], ["a", "b"])  # "" is a mistake
    assert scores["f1_by_label"] == pytest.approx({"a": 2 / 3, "b": 1})
