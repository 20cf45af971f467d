"""Check of sandwich-norm.patch."""

import numpy as np
import pytest

from config import Config
from model.layers import Seed
from model.transformer import Layer

RANDOM = np.random.default_rng(0)


def output_of(layer, name, x):
    if name == "feed_forward":
        return layer.feed_forward(x).numpy()
    if name == "attention":
        return layer.attention.self_attend(x, None)[0].numpy()
    memory = layer.cross_attention.keys_values(x)
    return layer.cross_attention.cross_attend(x, memory, None)[0].numpy()


@pytest.mark.parametrize("name", ["attention", "cross_attention", "feed_forward"])
def test_the_output_of_each_sublayer_is_normalized(name):
    layer = Layer(Config(d_model=16, num_heads=4, dff=24), Seed(0, -1), cross=True)
    for variable in layer.variables:
        variable.assign(RANDOM.normal(size=variable.shape))
    x = np.float32(RANDOM.normal(size=(2, 5, 16)))
    sublayer, normalized = getattr(layer, name), output_of(layer, name, x)
    norm, sublayer.norm = sublayer.norm, lambda y: y
    y = output_of(layer, name, x)
    y = (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)
    expected = y * norm.scale.numpy() + norm.offset.numpy()
    np.testing.assert_allclose(normalized, expected, rtol=1e-3, atol=1e-4)
