"""Checks of swiglu.patch."""

import numpy as np
import scipy.special

from config import Config
from model.layers import FeedForward, Seed


def test_feed_forward_is_a_product_of_a_gate_and_a_projection():
    random, net = np.random.default_rng(0), FeedForward(Config(d_model=8, dff=12), Seed(0, -1))
    for variable in net.variables:
        variable.assign(random.normal(size=variable.shape))
    x = random.normal(size=(2, 5, 8))
    gate, inner = (x @ layer.kernel.numpy() + layer.bias.numpy() for layer in (net.gate, net.inner))
    hidden = gate * scipy.special.expit(gate) * inner
    expected = hidden @ net.outer.kernel.numpy() + net.outer.bias.numpy()
    np.testing.assert_allclose(net(np.float32(x)), expected, rtol=1e-4, atol=1e-4)


def test_matrices_have_as_many_parameters_as_those_of_the_baseline():
    net = FeedForward(Config(d_model=8, dff=12), Seed(0, -1))
    sizes = [
        variable.shape.num_elements() for variable in net.variables if variable.shape.rank == 2
    ]
    assert len(sizes) == 3 and sum(sizes) == 2 * 8 * 12


def test_the_two_projections_to_the_hidden_layer_have_different_initial_weights():
    net = FeedForward(Config(d_model=8, num_heads=2, dff=12), Seed(0, -1))
    assert np.all(net.gate.kernel != net.inner.kernel)
