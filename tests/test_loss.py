"""The loss: worked by hand, over real tokens alone, whatever the padding."""

from math import log

import numpy as np
import pytest
import tensorflow as tf

from model.loss import cross_entropy, plain_cross_entropy, teacher_forcing, token_totals

SOURCE = np.int32([[3, 4, 2, 0], [5, 6, 7, 2]])
TARGET = np.int32([[1, 6, 5, 4, 2], [1, 3, 2, 0, 0]])
LOGITS = np.log(np.float32([[1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4]]))


def wider(ids, columns):
    """The same sentences in a batch with so many more columns of padding."""
    return np.pad(ids, [(0, 0), (0, columns)])


def test_cross_entropy_is_minus_the_log_of_the_labels_probability():
    losses = cross_entropy(LOGITS, [0, 2])
    np.testing.assert_allclose(losses, [log(2), log(4)], rtol=1e-6)


def test_smoothing_shares_epsilon_with_the_whole_vocabulary():
    """ε = 0.3 of 3 tokens: the label has 0.7 + 0.1, each other token 0.1."""
    losses = cross_entropy(LOGITS, [0, 2], label_smoothing=0.3)
    expected = [
        0.8 * log(2) + 0.1 * log(4) + 0.1 * log(4),
        0.1 * log(2) + 0.1 * log(4) + 0.8 * log(4),
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_gradient_in_closed_form_is_that_of_the_plain_loss(label_smoothing, scale):
    """Each token's with a weight of its own; also where probabilities are too small for a log."""
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(scale=scale, size=(6, 9)), tf.float32)
    labels, upstream = rng.integers(0, 9, 6), tf.constant(rng.normal(size=6), tf.float32)

    def value_and_gradient(loss):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = loss(logits, labels, label_smoothing)
        return losses, tape.gradient(losses, logits, output_gradients=upstream)

    values, gradient = value_and_gradient(cross_entropy)
    plain_values, plain_gradient = value_and_gradient(plain_cross_entropy)
    np.testing.assert_allclose(values, plain_values, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, plain_gradient, atol=1e-6)


def test_totals_are_sums_of_unsmoothed_losses_right_guesses_and_tokens():
    logits = np.log(np.float32([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.4, 0.5]]))
    totals = token_totals(logits, np.int32([0, 1, 1]))  # right, right, a close second
    np.testing.assert_allclose(totals, [-log(0.5) - log(0.8) - log(0.4), 2, 3], rtol=1e-6)


class Recorder:
    """A model that keeps what teacher forcing gives it, and whose hidden vector is the input id."""

    def encode(self, source, source_mask, seed):
        self.encoded = (source, source_mask)
        return "memory"

    def decode(self, target_in, memory, self_mask, cross_mask, seed):
        assert memory == "memory"
        self.target_in, self.self_mask, self.cross_mask = target_in, self_mask, cross_mask
        return tf.cast(target_in, tf.float32)[:, :, tf.newaxis], None

    def logits(self, hidden):
        return hidden


def test_teacher_forcing_gives_each_place_the_true_tokens_before_it():
    model = Recorder()
    logits, labels = teacher_forcing(model, SOURCE, TARGET)
    np.testing.assert_array_equal(model.target_in, [[1, 6, 5, 4], [1, 3, 2, 0]])
    # One after another: the real tokens that are guessed, and the token before each.
    np.testing.assert_array_equal(labels, [6, 5, 4, 2, 3, 2])
    np.testing.assert_array_equal(logits[:, 0], [1, 6, 5, 4, 1, 3])


def test_teacher_forcing_masks_the_future_and_both_paddings():
    model = Recorder()
    teacher_forcing(model, SOURCE, TARGET)
    source_mask = [[[[True, True, True, False]]], [[[True, True, True, True]]]]
    np.testing.assert_array_equal(model.encoded[1], source_mask)
    np.testing.assert_array_equal(model.cross_mask, source_mask)
    for row, ids in enumerate(TARGET):
        for i in range(4):
            for j in range(4):
                assert model.self_mask[row, 0, i, j] == (j <= i and ids[j] != 0)


@pytest.mark.parametrize("columns", [1, 5])
def test_loss_and_accuracy_do_not_depend_on_padding(tiny, columns):
    model = tiny()
    logits, labels = teacher_forcing(model, SOURCE, TARGET)
    padded = teacher_forcing(model, wider(SOURCE, columns), wider(TARGET, columns))
    np.testing.assert_allclose(token_totals(*padded), token_totals(logits, labels), rtol=1e-5)
    assert token_totals(*padded)[2] == 6
    losses = cross_entropy(logits, labels, label_smoothing=0.1)
    np.testing.assert_allclose(cross_entropy(*padded, 0.1), losses, rtol=1e-5)


def test_the_seed_reaches_encoder_and_decoder():
    model, seeds = Recorder(), []
    model.encode = lambda source, mask, seed: seeds.append(seed) or "memory"
    decode = model.decode
    model.decode = lambda *given: seeds.append(given[-1]) or decode(*given)
    teacher_forcing(model, SOURCE, TARGET, "seed")
    assert seeds == ["seed", "seed"]
