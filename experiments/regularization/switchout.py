"""Checks of switchout.patch."""

import numpy as np
import pytest
import tensorflow as tf

import train
from config import Config
from model import build
from model.layers import Seed
from model.masks import switch_out

SEED = Seed(7, tf.constant(5, tf.int64))


def sentences(words, rows=4000):
    """Return ids below 500: bos, words, eos and padding; (rows, words + 4)."""
    ids = np.random.default_rng(0).integers(4, 500, (rows, words + 4), np.int32)
    ids[:, 0], ids[:, words + 1], ids[:, words + 2 :] = 2, 3, 0
    return ids


@pytest.mark.parametrize("words", [1, 2, 20])
def test_numbers_of_replaced_words_have_the_distribution_of_the_paper(words):
    ids = sentences(words)
    changed = switch_out(tf.constant(ids), 5000, SEED).numpy() != ids
    assert not np.any(changed & (ids < 4))
    numbers = np.arange(words + 1)
    shares = np.exp(-numbers) / np.sum(np.exp(-numbers))
    # Given a number, the count of replaced words is binomial.
    none = np.sum(shares * (1 - numbers / words) ** words)
    assert np.mean(~np.any(changed, axis=1)) == pytest.approx(none, abs=0.03)
    assert np.mean(np.sum(changed, axis=1)) == pytest.approx(np.sum(shares * numbers), abs=0.05)


def test_other_words_are_uniform_and_never_special():
    ids = sentences(9)
    switched = switch_out(tf.constant(ids), 8, SEED).numpy()
    counts = np.bincount(switched[(switched != ids)], minlength=9)
    assert np.all(counts[[0, 1, 2, 3, 8]] == 0) and np.ptp(counts[4:8]) < 0.2 * np.max(counts)


def test_source_target_and_labels_are_switched_with_different_draws(monkeypatch):
    config = Config(num_layers=1, d_model=16, num_heads=2, dff=24)
    calls, model, ids = [], build(config, 500, 500), sentences(9, rows=40)
    forward = model.teacher_forced
    monkeypatch.setattr(model, "teacher_forced", lambda *call: calls.append(call) or forward(*call))
    train.batch_sums(model, ids, ids, SEED, config)
    ((source, target, seed),) = calls
    changed = np.array([source != ids, target != ids])
    assert np.all(np.any(changed, axis=(1, 2))) and np.any(changed[0] != changed[1])
    assert np.max(source) < 500 and seed == SEED


def test_nothing_is_replaced_without_a_seed():
    ids = sentences(9, rows=40)
    np.testing.assert_array_equal(switch_out(ids, 500, None), ids)
