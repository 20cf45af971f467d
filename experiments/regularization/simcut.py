"""Checks of simcut.patch."""

from types import SimpleNamespace

import numpy as np
import scipy.special
import tensorflow as tf

import train
from config import Config
from model import build
from model.layers import Embedding, Seed

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(4, 50, (40, 30), np.int32)
IDS[:, 20] = 3  # eos
IDS[:, 21:] = 0
CONFIG = Config(num_layers=1, d_model=16, num_heads=2, dff=24, label_smoothing=0)
SEED = Seed(7, tf.constant(5, tf.int64))


def test_objective_has_three_times_the_divergence_and_both_passes_get_its_gradient():
    passes, labels = tf.constant(RANDOM.normal(size=(2, 5, 9)), tf.float32), [3, 2, 4, 2, 5]
    with tf.GradientTape() as tape:
        tape.watch(passes)
        logits = iter(tf.unstack(passes))
        model = SimpleNamespace(teacher_forced=lambda *_: (next(logits), labels, []))
        sums = train.batch_sums(model, IDS, IDS, SEED, CONFIG)
    p, q = scipy.special.log_softmax(np.float64(passes), axis=-1)
    divergence = np.sum(np.exp(p) * (p - q), axis=-1, keepdims=True)  # (tokens, 1)
    loss = -np.sum(p[range(5), labels])
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(sums.others["divergence"], np.sum(divergence), rtol=1e-5)
    np.testing.assert_allclose(sums.objective, loss + 3 * np.sum(divergence), rtol=1e-5)
    first = np.exp(p) - np.eye(9)[labels] + 3 * np.exp(p) * (p - q - divergence)
    gradient = tape.gradient(sums.objective, passes)
    np.testing.assert_allclose(gradient, [first, 3 * (np.exp(q) - np.exp(p))], atol=1e-5)


def test_five_per_cent_of_the_words_are_cut_in_the_second_pass(monkeypatch):
    calls, model = [], build(CONFIG, 50, 50)
    forward = model.teacher_forced
    monkeypatch.setattr(model, "teacher_forced", lambda *call: calls.append(call) or forward(*call))
    train.batch_sums(model, IDS, IDS, SEED, CONFIG)
    (source, target, seed), (*sides, cut_seed) = calls
    np.testing.assert_array_equal([source, target], [IDS, IDS])
    assert seed == SEED and cut_seed.key != SEED.key
    changed = np.array([side != IDS for side in sides])
    assert np.any(changed[0] != changed[1])
    for ids, where in zip(sides, changed, strict=True):
        assert np.all(ids[where] == -1) and np.all(IDS[where] >= 4)
        assert 0.03 < np.sum(where) / np.sum(IDS >= 4) < 0.07


def test_a_cut_word_has_a_vector_of_zeros_and_is_attended_to():
    embedding = Embedding(9, 4, SEED)
    vectors = embedding(tf.constant([[5, -1], [-1, 8]])).numpy()
    np.testing.assert_array_equal(vectors[[0, 1], [1, 0]], 0)
    np.testing.assert_allclose(vectors[[0, 1], [0, 1]], 2 * embedding.table.numpy()[[5, 8]])
    model, target = build(CONFIG, 50, 50), np.int32([[2, 9, 3]])
    sources = (np.int32([[4, filler, 3]]) for filler in (-1, 0))
    cut, padded = (model.teacher_forced(source, target).logits for source in sources)
    assert np.max(np.abs(cut - padded)) > 1e-3
