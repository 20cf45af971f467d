"""Checks of dynamic-tanh.patch."""

import numpy as np

from model.layers import LayerNorm


def test_each_number_becomes_a_scaled_and_shifted_tanh():
    random, norm = np.random.default_rng(0), LayerNorm(8)
    alpha, scale, offset = 0.7, *random.normal(size=(2, 8))
    for variable, value in ((norm.alpha, alpha), (norm.scale, scale), (norm.offset, offset)):
        variable.assign(value)
    x = random.normal(3, 2, (2, 5, 8))
    np.testing.assert_allclose(
        norm(np.float32(x)), np.tanh(alpha * x) * scale + offset, rtol=1e-4, atol=1e-5
    )


def test_alpha_is_one_half_at_first_and_each_norm_learns_its_own():
    norms = LayerNorm(8), LayerNorm(8)
    assert [float(norm.alpha) for norm in norms] == [0.5, 0.5]
    assert norms[0].alpha is not norms[1].alpha and norms[0].alpha.trainable
