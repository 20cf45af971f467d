"""Checks of adamw.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import build
from model.layers import trainable_variables
from model.optimizer import Adam

RANDOM = np.random.default_rng(0)
RATE = 0.25


def test_two_updates_equal_the_formula():
    matrix = np.float32(RANDOM.normal(size=(4, 3)))
    variable, m, v, expected = tf.Variable(matrix), 0.0, 0.0, matrix.astype(float)
    optimizer, gradients = Adam({"kernel": variable}), RANDOM.normal(size=(2, 4, 3))
    for t, gradient in enumerate(gradients, start=1):
        optimizer.apply([tf.constant(gradient, tf.float32)], {"kernel": variable}, RATE)
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        step = (m / (1 - 0.9**t)) / np.sqrt(v / (1 - 0.98**t))
        expected = expected - RATE * (step + 0.1 * expected)
        np.testing.assert_allclose(variable, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["transformer", "recurrent"])
def test_only_matrices_decay(model):
    """Without a gradient, nothing but the decay changes a variable."""
    sizes = {"num_layers": 1, "d_model": 16, "positions": "learned", "tie_embeddings": False}
    variables = trainable_variables(build(Config(model=model, **sizes), 11, 11))
    for variable in variables.values():
        variable.assign(tf.ones_like(variable))
    zeros = [tf.zeros_like(variable) for variable in variables.values()]
    Adam(variables).apply(zeros, variables, tf.constant(RATE))
    shrunk = {name for name, each in variables.items() if np.all(np.isclose(each, 1 - 0.1 * RATE))}
    unchanged = {name for name, each in variables.items() if np.all(each == 1.0)}
    assert shrunk == {name for name in variables if name.endswith(("kernel", "table"))}
    assert unchanged == variables.keys() - shrunk and len(unchanged) > 5
