"""Checks of linear-decay.patch."""

import numpy as np
import pytest

from config import Config
from model.optimizer import learning_rate

PEAK = (64 * 100) ** -0.5  # 1 / √(d_model · warmup_steps)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.01), (50, 0.5), (100, 1), (350, 0.75), (1100, 0), (1200, 0)]
)
def test_rate_rises_linearly_and_falls_linearly_to_zero(step, expected):
    config = Config(d_model=64, warmup_steps=100, total_steps=1100, learning_rate_scale=3.0)
    assert float(learning_rate(step, config)) == pytest.approx(3 * PEAK * expected, abs=1e-8)


@pytest.mark.parametrize("total_steps", [1, 99, 100, 101])
def test_rate_of_a_run_that_is_shorter_than_the_warmup_is_finite(total_steps):
    config = Config(d_model=64, warmup_steps=100, total_steps=total_steps)
    rates = learning_rate(np.arange(1, 130), config).numpy()
    assert np.all((rates >= 0) & (rates <= PEAK * 1.001))
