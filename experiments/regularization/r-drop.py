"""Checks of r-drop.patch."""

from types import SimpleNamespace

import numpy as np
import scipy.special
import tensorflow as tf

import train
from config import Config
from model import build
from model.layers import Seed
from model.loss import loss_sums

RANDOM = np.random.default_rng(0)
SOURCE = np.int32([[4, 5, 6, 3], [7, 3, 0, 0]])
TARGET = np.int32([[2, 8, 9, 3], [2, 5, 3, 0]])
SIZES = {"num_layers": 1, "d_model": 16, "num_heads": 2, "dff": 24}


def objective_of(passes):
    """Return what `batch_sums` returns if two passes have these logits, and the passes' seeds."""
    seeds = []

    def forward(source, target, seed):
        seeds.append(seed)
        return passes[len(seeds) - 1], tf.constant([3, 2, 4, 2, 5]), []

    model = SimpleNamespace(teacher_forced=forward)
    sums = train.batch_sums(model, SOURCE, TARGET, Seed(7, 5), Config(label_smoothing=0))
    return sums, seeds


def test_objective_is_half_of_the_papers_and_the_loss_is_that_of_the_first_pass():
    passes = np.float32(3 * RANDOM.normal(size=(2, 5, 9)))
    sums, seeds = objective_of(tf.constant(passes))
    p, q = scipy.special.log_softmax(passes.astype(float), axis=-1)
    first, second = (-np.sum(x[range(5), [3, 2, 4, 2, 5]]) for x in (p, q))
    divergences = np.sum(np.exp(p) * (p - q)) + np.sum(np.exp(q) * (q - p))
    np.testing.assert_allclose(2 * sums.objective, first + second + 5 / 2 * divergences, rtol=1e-5)
    np.testing.assert_allclose(sums.loss, first, rtol=1e-5)
    np.testing.assert_allclose(sums.others["divergence"], divergences / 2, rtol=1e-5)
    assert seeds[0] == Seed(7, 5) and seeds[1].key != 7 and seeds[1].counter == 5


def test_both_passes_have_gradients_and_are_treated_alike():
    gradients = []
    passes = tf.constant(RANDOM.normal(size=(2, 5, 9)), tf.float32)
    for ordered in (passes, passes[::-1]):
        with tf.GradientTape() as tape:
            tape.watch(ordered)
            objective = objective_of(ordered)[0].objective
        gradients.append(tape.gradient(objective, ordered).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1][::-1], atol=1e-5)


def test_only_dropout_adds_to_the_objective():
    for rate in (0.0, 0.3):
        config = Config(**SIZES, dropout_rate=rate)
        model, seed = build(config, 11, 11), Seed(7, tf.constant(5, tf.int64))
        sums = train.batch_sums(model, SOURCE, TARGET, seed, config)
        expected = loss_sums(*model.teacher_forced(SOURCE, TARGET, seed)[:2], 0.1)
        np.testing.assert_allclose(sums[1:3], expected[1:3], rtol=1e-6)
        assert np.isclose(sums.objective, expected.objective, rtol=1e-5) == (rate == 0)
