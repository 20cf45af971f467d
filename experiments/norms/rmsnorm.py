"""Check of rmsnorm.patch."""

import numpy as np

from model.layers import LayerNorm


def test_norm_divides_by_the_root_mean_square_and_multiplies_by_the_scale():
    random, norm = np.random.default_rng(0), LayerNorm(8)
    (scale,) = norm.trainable_variables  # no offset
    scale.assign(random.normal(size=8))
    x = random.normal(3, 2, (2, 5, 8))
    expected = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)) * scale.numpy()
    np.testing.assert_allclose(norm(np.float32(x)), expected, rtol=1e-5)
    assert np.all(np.isfinite(norm(np.zeros((2, 8), np.float32))))
