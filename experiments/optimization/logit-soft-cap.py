"""Checks of logit-soft-cap.patch."""

import numpy as np
import pytest

from config import Config
from model import build


@pytest.mark.parametrize("kind", ["transformer", "language_model"])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_small_logits_stay_and_large_ones_approach_the_cap(kind, tie_embeddings):
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 4}
    model = build(Config(model=kind, **sizes, tie_embeddings=tie_embeddings), 11, 11)
    hidden = np.random.default_rng(0).normal(size=(5, 16))
    for factor in (0.01, 1, 100):
        uncapped = model.output(np.float32(factor * hidden)).numpy()
        logits = model.logits(np.float32(factor * hidden)).numpy()
        np.testing.assert_allclose(logits, 15 * np.tanh(uncapped / 15), rtol=1e-4, atol=1e-6)
        if factor == 0.01:
            np.testing.assert_allclose(logits, uncapped, atol=1e-4)
    assert 14.9 < np.max(np.abs(logits)) <= 15
