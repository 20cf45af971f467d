"""Checks of parallel-attention-ffn.patch."""

import numpy as np
import pytest

from config import Config
from model.layers import Seed, dropout, fold_in
from model.transformer import Layer

RANDOM = np.random.default_rng(0)
X, Y = np.float32(RANDOM.normal(size=(2, 2, 5, 16)))


def make_layer(norm, cross):
    config = Config(d_model=16, num_heads=4, dff=24, norm=norm, dropout_rate=0.3)
    layer = Layer(config, Seed(0, -1), cross)
    for variable in layer.variables:
        variable.assign(RANDOM.normal(size=variable.shape))
    return layer


def kept(y, seed, name):
    return dropout(y, 0.3, fold_in(seed, name))


@pytest.mark.parametrize("seed", [None, Seed(0, 7)])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_self_attention_and_feed_forward_have_one_input_without_cross_attention(norm, seed):
    layer = make_layer(norm, cross=False)
    normed = layer.attention_pre_norm(X)
    y, _, _ = layer.attention.self_attend(normed, None)
    both = kept(y, seed, "attention") + kept(layer.feed_forward(normed), seed, "feed_forward")
    expected = layer.attention_post_norm(X + both)
    np.testing.assert_allclose(layer(X, None, seed)[0], expected, atol=1e-4)


@pytest.mark.parametrize("seed", [None, Seed(0, 7)])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cross_attention_and_feed_forward_have_one_input_in_the_decoder(norm, seed):
    layer = make_layer(norm, cross=True)
    memory = layer.cross_attention.keys_values(Y)
    y, _, _ = layer.attention.self_attend(layer.attention_pre_norm(X), None)
    x = layer.attention_post_norm(X + kept(y, seed, "self_attention"))
    normed = layer.cross_pre_norm(x)
    y, _ = layer.cross_attention.cross_attend(normed, memory, None)
    both = kept(y, seed, "cross_attention") + kept(layer.feed_forward(normed), seed, "feed_forward")
    output, _, _ = layer(X, None, seed, memory=memory)
    np.testing.assert_allclose(output, layer.cross_post_norm(x + both), atol=1e-4)
