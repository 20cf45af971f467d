"""Check of relu-squared.patch."""

import numpy as np

from config import Config
from model.layers import FeedForward, Seed


def test_hidden_layer_is_the_square_of_relu():
    random, net = np.random.default_rng(0), FeedForward(Config(d_model=8, dff=12), Seed(0, -1))
    for variable in net.variables:
        variable.assign(random.normal(size=variable.shape))
    x = random.normal(size=(2, 5, 8))
    hidden = np.maximum(0, x @ net.inner.kernel.numpy() + net.inner.bias.numpy()) ** 2
    expected = hidden @ net.outer.kernel.numpy() + net.outer.bias.numpy()
    np.testing.assert_allclose(net(np.float32(x)), expected, rtol=1e-4, atol=1e-3)
