"""Checks of scalenorm.patch."""

import numpy as np
import pytest

from model.layers import LayerNorm


def test_vectors_keep_their_direction_and_get_a_learned_length():
    norm, x = LayerNorm(16), np.random.default_rng(0).normal(3, 2, (2, 5, 16))
    (length,) = norm.trainable_variables
    assert length.shape == () and float(length) == pytest.approx(4)  # √d_model
    length.assign(7)
    expected = 7 * x / np.linalg.norm(x, axis=-1, keepdims=True)
    np.testing.assert_allclose(norm(np.float32(x)), expected, rtol=1e-5)


def test_a_vector_of_zeros_stays_zero():
    np.testing.assert_array_equal(LayerNorm(16)(np.zeros((2, 16), np.float32)), np.zeros((2, 16)))
