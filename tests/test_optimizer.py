"""The schedule of section 5.3, and Adam compared with its formula."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

from config import Config
from model.optimizer import Adam, learning_rate

D_MODEL, WARMUP = 64, 100
CONFIG = Config(d_model=D_MODEL, warmup_steps=WARMUP)
PEAK = 1 / np.sqrt(D_MODEL * WARMUP)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, PEAK / WARMUP), (WARMUP // 2, PEAK / 2), (WARMUP, PEAK), (4 * WARMUP, PEAK / 2)],
)
@pytest.mark.exercise("learning-rate")
def test_learning_rate_rises_linearly_and_decays_as_the_inverse_square_root(step, expected):
    rate = learning_rate(step, CONFIG)
    linear, decay = step * WARMUP**-1.5, step**-0.5
    before = (step - 1) * WARMUP**-1.5 if step <= WARMUP else (step - 1) ** -0.5
    mistakes = {
        "the larger of the two terms is used, not the smaller": max(linear, decay) * D_MODEL**-0.5,
        "the rate does not rise: the second term must grow with the step": PEAK,
        "the rate is multiplied by √d_model instead of divided": expected * D_MODEL,
        "d_model is missing: its root divides the rate": expected * D_MODEL**0.5,
        "the step is counted from 0: the first update has step 1": before * D_MODEL**-0.5,
    }
    expect(rate, expected, {x: y for x, y in mistakes.items() if y != expected}, atol=0)
    tripled = learning_rate(step, dataclasses.replace(CONFIG, learning_rate_scale=3.0))
    expect(tripled, 3 * expected, {"learning_rate_scale has no effect": expected}, atol=0)


@pytest.mark.exercise("learning-rate")
def test_learning_rate_accepts_an_integer_variable():
    step = tf.Variable(WARMUP, dtype=tf.int64)
    assert float(learning_rate(step, CONFIG)) == pytest.approx(PEAK, rel=1e-5)


@pytest.mark.exercise("adam")
def test_adam_equals_its_formula():
    """In fifty updates, of gradients of many magnitudes and a rate for each."""
    rng = np.random.default_rng(0)
    start = np.float32(rng.normal(size=(4, 3)))
    gradients = np.float32(rng.normal(size=(50, 4, 3)) * 10.0 ** rng.uniform(-4, 1, (50, 4, 3)))
    rates = np.float32(rng.uniform(1e-3, 1e-2, 50))
    ours, variable = [], tf.Variable(start)
    adam = Adam({"w": variable})
    for gradient, rate in zip(gradients, rates, strict=True):
        adam.apply([gradient], {"w": variable}, rate)
        ours.append(variable.numpy())
    assert adam.step == 50

    def path(
        beta_1=0.9,
        beta_2=0.98,
        square=np.square,
        root=np.sqrt,
        corrected=True,
        sign=1,
        momentum=True,
    ):
        x, m, v, values = start, 0.0, 0.0, []
        for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
            m = beta_1 * m * momentum + (1 - beta_1) * g
            v = beta_2 * v + (1 - beta_2) * square(g)
            unbias = np.sqrt(1 - 0.98**t) / (1 - 0.9**t) if corrected else 1
            x = x - sign * rate * unbias * m / (root(v) + 1e-9)
            values.append(x)
        return np.array(values)

    mistakes = {
        "the bias correction is missing: multiply by `correction`": path(corrected=False),
        "β₁ and β₂ are exchanged": path(0.98, 0.9),
        "v is a mean of gradients, not of their squares": path(square=np.abs),
        "the root of v is missing": path(root=lambda v: v),
        "the update goes uphill: subtract it": path(sign=-1),
        "m is not kept from step to step": path(momentum=False),
    }
    expect(np.array(ours), path(), mistakes, rtol=0, atol=2e-6)


@pytest.mark.exercise("adam")
def test_first_update_is_the_learning_rate_times_the_sign_of_the_gradient():
    """m = 0.1 g and v = 0.02 g², without bias g and g², so that the update is g / √g²."""
    variable = tf.Variable([1.0, 1.0, 1.0])
    Adam({"w": variable}).apply([tf.constant([1e-3, -5.0, 0.0])], {"w": variable}, 0.25)
    np.testing.assert_allclose(variable, [0.75, 1.25, 1.0], rtol=1e-5)
