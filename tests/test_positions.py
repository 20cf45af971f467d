"""Positional encodings: the formula of section 3.5 and its property."""

import math

import numpy as np
import pytest
from expect import expect

from model.layers import initial_seed
from model.positions import Learned, NoPositions, Sinusoidal


@pytest.mark.exercise("positions")
def test_sines_and_cosines_are_interleaved():
    """PE(p, 2i) = sin(p / 10000^(2i / d_model)), PE(p, 2i + 1) = cos(the same)."""
    d_model = 6
    expected = np.zeros((30, d_model))
    for p in range(30):
        for i in range(d_model // 2):
            angle = p / 10000 ** (2 * i / d_model)
            expected[p, 2 * i] = math.sin(angle)
            expected[p, 2 * i + 1] = math.cos(angle)
    sines, cosines = expected[:, ::2], expected[:, 1::2]
    shifted = np.stack([np.sin(1.0 + np.arange(30)), np.cos(1.0 + np.arange(30))], axis=1)
    actual = np.array(Sinusoidal(d_model)(0, 30))
    mistakes = {
        "sines and cosines are concatenated: interleave them, sine first": (
            np.concatenate([sines, cosines], axis=1)
        ),
        "the cosine precedes the sine": np.stack([cosines, sines], axis=2).reshape(30, d_model),
        "the first position is 1: it must be 0": (
            actual.shape == expected.shape and np.allclose(actual[:, :2], shifted, atol=1e-5)
        ),
        "the angle grows with the index: multiply positions by the frequencies": (
            actual.shape == expected.shape
            and np.allclose(actual[:, :2], expected[:, :2], atol=1e-5)
            and np.max(np.abs(actual[1, 2:] - expected[1, 2:])) > 0.5
        ),
    }
    expect(actual, expected, mistakes)


@pytest.mark.parametrize("kind", [Sinusoidal, Learned, NoPositions])
@pytest.mark.exercise("positions")
def test_a_range_of_positions_is_a_slice_of_all(kind):
    """Decoding computes one position at a time, training all of them."""
    positions = kind(8, 20, seed=initial_seed(0))
    whole = positions(0, 20).numpy()
    assert whole.shape == (20, 8)
    for p in range(20):
        ignored = {"start is ignored: each range begins at position 0": whole[:1]}
        expect(positions(p, p + 1), whole[p : p + 1], ignored, atol=1e-6)


def test_learned_positions_after_the_table_repeat_its_last_row():
    positions = Learned(8, 5, seed=initial_seed(0))
    table = positions.table.numpy()
    assert len(np.unique(table[:, 0])) == 5
    np.testing.assert_array_equal(positions(0, 7), table[[0, 1, 2, 3, 4, 4, 4]])
