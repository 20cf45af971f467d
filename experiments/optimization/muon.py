"""Checks of muon.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import build
from model.layers import trainable_variables
from model.optimizer import Adam, Muon, orthogonalize

RANDOM = np.random.default_rng(0)
SHAPES = [(32, 32), (16, 64), (64, 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_one_and_singular_vectors_stay(shape):
    u, _, v = np.linalg.svd(RANDOM.normal(size=shape), full_matrices=False)
    values = np.geomspace(1e-2, 1, 16 if 16 in shape else 32)
    for scale in (1e-6, 1e3):
        x = tf.constant(scale * (u * values) @ v, tf.float32)
        rotated = u.T @ orthogonalize(x).numpy() @ v.T
        np.testing.assert_allclose(rotated, np.diag(np.diag(rotated)), atol=1e-3)
        assert 0.6 < np.min(np.diag(rotated)) and np.max(np.diag(rotated)) < 1.21


@pytest.mark.parametrize("shape", SHAPES)
def test_products_have_no_more_rows_than_the_shorter_side(shape):
    spec = tf.TensorSpec(shape, tf.float32)
    graph = tf.function(orthogonalize).get_concrete_function(spec).graph
    products = [op.outputs[0].shape for op in graph.get_operations() if "MatMul" in op.type]
    assert len(products) == 15 and all(product[0] == min(shape) for product in products)


def updates(optimizer_class):
    """Make three updates of a model. Returns it before and after them, and the gradients."""
    config = Config(num_layers=1, d_model=8, num_heads=2, dff=24, positions="learned")
    variables = trainable_variables(build(config, 11, 11))
    optimizer, random = optimizer_class(variables), np.random.default_rng(0)
    before = {name: variable.numpy() for name, variable in variables.items()}
    shapes = [variable.shape for variable in variables.values()]
    gradients = [[np.float32(random.normal(size=shape)) for shape in shapes] for _ in range(3)]
    for gradient in gradients:
        optimizer.apply(gradient, variables, tf.constant(0.1))
    after = {name: variable.numpy() for name, variable in variables.items()}
    return before, after, dict(zip(variables, zip(*gradients, strict=True), strict=True))


def test_matrices_of_the_layers_get_orthogonal_steps_and_all_else_those_of_adam():
    (_, adam, _), (before, after, gradients) = updates(Adam), updates(Muon)
    matrices = {name for name in after if "/layers/" in name and name.endswith("kernel")}
    assert len(matrices) == 4 + 2 + 4 + 4 + 2
    for name in after.keys() - matrices:
        np.testing.assert_array_equal(after[name], adam[name], err_msg=name)
    for name in matrices:
        expected, m = before[name], 0.0
        for gradient in gradients[name]:
            m = 0.95 * m + gradient
            u, _, v = np.linalg.svd(0.95 * m + gradient, full_matrices=False)
            expected = expected - 0.1 * 0.2 * max(m.shape) ** 0.5 * u @ v
        # The singular values of a step are near 1 only: 0.68 … 1.2.
        steps, exact = after[name] - before[name], expected - before[name]
        assert np.sum(steps * exact) / np.linalg.norm(steps) / np.linalg.norm(exact) > 0.95
        assert 0.7 < np.linalg.norm(steps) / np.linalg.norm(exact) < 1.2
