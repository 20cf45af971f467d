"""Checks of zero-init-projections.patch."""

import numpy as np
import tensorflow as tf

from config import Config
from model.layers import Seed, trainable_variables
from model.loss import loss_sums
from model.transformer import Layer, Transformer

CONFIG = Config(num_layers=2, d_model=16, num_heads=4, dff=24)
SEED = Seed(0, -1)


def test_each_layer_is_the_identity_at_first():
    x = np.float32(np.random.default_rng(0).normal(size=(2, 5, 16)))
    np.testing.assert_array_equal(Layer(CONFIG, SEED)(x, None)[0], x)
    layer = Layer(CONFIG, SEED, cross=True)
    memory = layer.cross_attention.keys_values(x)
    np.testing.assert_array_equal(layer(x, None, memory=memory)[0], x)


def test_gradients_reach_the_zeros_and_all_other_matrices_are_random():
    model = Transformer(CONFIG, 11, 11)
    kernels = {name: x for name, x in trainable_variables(model).items() if name.endswith("kernel")}
    source, target = np.int32([[5, 6, 2]]), np.int32([[1, 7, 8, 2]])
    with tf.GradientTape() as tape:
        loss = loss_sums(*model.teacher_forced(source, target)[:2]).loss
    gradients = tape.gradient(loss, kernels)
    for name, kernel in kernels.items():
        zero = name.endswith(("output/kernel", "outer/kernel"))
        assert np.any(kernel) != zero, name
        if name.startswith("decoder"):  # the encoder follows one update later
            assert np.any(gradients[name]) == zero, name
