"""Section 5.3: the schedule at its landmarks, and Adam beside Keras' and beside the formula."""

import numpy as np
import pytest
import tensorflow as tf

from model.optimizer import Adam, learning_rate

D_MODEL, WARMUP = 64, 100
PEAK = 1 / np.sqrt(D_MODEL * WARMUP)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, PEAK / WARMUP), (WARMUP // 2, PEAK / 2), (WARMUP, PEAK), (4 * WARMUP, PEAK / 2)],
)
def test_rate_rises_linearly_to_its_peak_and_falls_as_the_square_root(step, expected):
    rate, tripled = (learning_rate(step, D_MODEL, WARMUP, scale) for scale in (1.0, 3.0))
    assert float(rate) == pytest.approx(expected, rel=1e-5)
    assert float(tripled) == pytest.approx(3 * expected, rel=1e-5)


def test_rate_peaks_at_the_end_of_the_warmup_without_a_jump():
    steps = np.arange(1, 10 * WARMUP)
    rates = np.array(learning_rate(steps, D_MODEL, WARMUP))
    assert steps[np.argmax(rates)] == WARMUP
    assert np.max(np.abs(np.diff(rates))) <= PEAK / WARMUP * 1.001  # no step is a larger one


def test_rate_takes_the_optimizers_own_count():
    """An int64 variable: the power of one is not to be had without a cast."""
    step = tf.Variable(WARMUP, dtype=tf.int64)
    assert float(learning_rate(step, D_MODEL, WARMUP)) == pytest.approx(PEAK, rel=1e-5)


def fifty_updates():
    """Starting values, and gradients of many sizes with a rate for each step."""
    rng = np.random.default_rng(0)
    start = np.float32(rng.normal(size=(4, 3)))
    gradients = np.float32(rng.normal(size=(50, 4, 3)) * 10.0 ** rng.uniform(-4, 1, (50, 4, 3)))
    return start, gradients, np.float32(rng.uniform(1e-3, 1e-2, 50))


def our_path():
    start, gradients, rates = fifty_updates()
    variable = tf.Variable(start)
    adam = Adam([variable])
    path = []
    for gradient, rate in zip(gradients, rates, strict=True):
        adam.apply([gradient], [variable], rate)
        path.append(variable.numpy())
    assert adam.step == 50
    return np.array(path)


def test_adam_is_that_of_keras():
    start, gradients, rates = fifty_updates()
    variable = tf.keras.Variable(start)
    adam = tf.keras.optimizers.Adam(beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    path = []
    for gradient, rate in zip(gradients, rates, strict=True):
        adam.learning_rate = rate
        adam.apply([tf.constant(gradient)], [variable])
        path.append(np.array(variable))
    np.testing.assert_allclose(our_path(), path, rtol=0, atol=1e-6)


def test_adam_is_the_formula():
    variable, gradients, rates = fifty_updates()
    m = v = np.zeros((4, 3))
    path = []
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * g**2
        unbias = np.sqrt(1 - 0.98**t) / (1 - 0.9**t)
        variable = variable - rate * unbias * m / (np.sqrt(v) + 1e-9)
        path.append(variable)
    np.testing.assert_allclose(our_path(), path, rtol=0, atol=2e-6)


def test_the_first_update_is_the_rate_in_the_gradients_direction():
    """m = 0.1 g and v = 0.02 g², unbiased g and g²: whatever its size, g / √g² is its sign."""
    variable = tf.Variable([1.0, 1.0, 1.0])
    Adam([variable]).apply([tf.constant([1e-3, -5.0, 0.0])], [variable], 0.25)
    np.testing.assert_allclose(variable, [0.75, 1.25, 1.0], rtol=1e-5)


def test_rows_that_were_looked_up_twice_have_their_gradients_added():
    """The gradient of an embedding table comes as slices, with a slice for each lookup."""
    sparse, dense = tf.Variable(tf.ones((3, 2))), tf.Variable(tf.ones((3, 2)))
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [-3.0, 4.0]]), [1, 1], (3, 2))
    Adam([sparse]).apply([slices], [sparse], 0.1)
    added = tf.constant([[0.0, 0.0], [-2.0, 6.0], [0.0, 0.0]])
    Adam([dense]).apply([added], [dense], 0.1)
    np.testing.assert_allclose(sparse, dense)
