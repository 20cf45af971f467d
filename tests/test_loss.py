"""The loss, worked by hand: real tokens count, padding does not."""

import sys
from math import log

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

import train
from config import TASKS, Config
from data.arrays import Pairs, Ragged
from data.tokenizer import BOS, EOS, PAD
from evaluation.translator import Translator
from model import MODELS
from model.interface import Predictions, TeacherForcing
from model.layers import trainable_variables
from model.loss import loss_sums

SOURCE = np.int32([[8, 4, EOS, 0], [5, 6, 7, EOS]])
TARGET = np.int32([[BOS, 6, 5, 4, EOS], [BOS, 8, EOS, 0, 0]])
LOGITS = np.log(np.float32([[1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4]]))


@pytest.mark.exercise("label-smoothing")
def test_loss_is_minus_the_log_probability_of_the_label():
    for row, label, expected in ((0, 0, log(2)), (1, 2, log(4))):
        loss = loss_sums(LOGITS[row : row + 1], [label]).loss
        expect(loss, expected, {"the sign is wrong: the loss is −log p": -expected})


@pytest.mark.exercise("label-smoothing")
def test_label_smoothing_shares_epsilon_with_the_whole_vocabulary():
    """ε = 0.3 of 3 tokens: the label has 0.7 + 0.1, each other token 0.1."""

    def cross_entropy(label, on_label, on_others):
        shares = np.full(3, on_others)
        shares[label] = on_label
        return -np.sum(shares * LOGITS[0])

    for label, expected in (
        (0, 0.8 * log(2) + 0.1 * log(4) + 0.1 * log(4)),
        (2, 0.1 * log(2) + 0.1 * log(4) + 0.8 * log(4)),
    ):
        sums = loss_sums(LOGITS[:1], [label], label_smoothing=0.3)
        mistakes = {
            "the objective has no label smoothing": cross_entropy(label, 1, 0),
            "ε is shared among the other tokens only: the label also has ε / vocab_size": (
                cross_entropy(label, 0.7, 0.15)
            ),
            "ε and 1 − ε are exchanged": cross_entropy(label, 0.3 + 0.7 / 3, 0.7 / 3),
            "ε is on every token: the mean of the logits, not their sum, has the share ε": (
                cross_entropy(label, 0.7 + 0.3, 0.3)
            ),
        }
        expect(sums.objective, expected, mistakes)
        smoothed = {"the loss that is reported has label smoothing": expected}
        expect(sums.loss, cross_entropy(label, 1, 0), smoothed)


@pytest.mark.exercise("label-smoothing")
def test_sums_are_over_the_tokens():
    logits = np.log(np.float32([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.1, 0.5, 0.4]]))
    labels = np.int32([0, 2, 2])  # correct, correct, a close second
    sums = loss_sums(logits, labels, label_smoothing=0.3)
    single = [loss_sums(logits[i : i + 1], labels[i : i + 1], 0.3) for i in range(3)]
    loss = -log(0.5) - log(0.8) - log(0.4)
    expect(sums.loss, loss, {"the loss is a mean over the tokens: it must be a sum": loss / 3})
    np.testing.assert_allclose(sums[:3], np.sum([each[:3] for each in single], axis=0), rtol=1e-6)
    assert sums.correct == 2


def test_an_unknown_target_is_never_correct_and_costs_a_choice_among_all_characters():
    """A model that predicts the unknown token everywhere does not have a low loss."""
    sums = loss_sums(np.float32([[-99, 0, -99]] * 3), np.int32([1, 1, 1]))
    assert sums.correct == 0 and float(sums.loss) == pytest.approx(3 * log(sys.maxunicode + 1))
    assert abs(float(sums.objective)) < 1e-6


def test_an_auxiliary_loss_is_minimized_and_is_not_part_of_the_loss():
    before = loss_sums(LOGITS, np.int32([0, 2]), label_smoothing=0.3)
    sums = before.add_loss("z_loss", tf.constant(6.0), 0.5).add_loss("balance", tf.constant(2.0))
    assert float(sums.objective) == pytest.approx(float(before.objective) + 0.5 * 6 + 2)
    assert sums.others == {"z_loss": 6.0, "balance": 2.0} and before.others == {}
    assert sums[1:4] == before[1:4]


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.exercise("label-smoothing")
def test_objective_and_its_gradient_equal_keras(scale):
    """Also where exp would overflow and probabilities underflow."""
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(scale=scale, size=(6, 9)), tf.float32)
    labels = rng.integers(0, 9, 6)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        objective = loss_sums(logits, labels, label_smoothing=0.3).objective
        theirs = tf.keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.3, reduction="sum"
        )(tf.one_hot(labels, 9), logits)
    np.testing.assert_allclose(objective, theirs, rtol=1e-5)
    gradients = [tape.gradient(value, logits) for value in (objective, theirs)]
    np.testing.assert_allclose(*gradients, atol=1e-5)


class Recorder(TeacherForcing):
    """A model that records its arguments. Its hidden vectors are the input ids."""

    def encode(self, source, source_mask, seed=None):
        self.encoded, self.seeds = (source, source_mask), {"encoder": seed}
        return "memory", [{"self": 1}]

    def decode(self, target_in, memory, self_mask, cross_mask, seed=None):
        assert memory == "memory"
        self.target_in, self.self_mask, self.cross_mask = target_in, self_mask, cross_mask
        self.seeds["decoder"] = seed
        return tf.cast(target_in, tf.float32)[:, :, tf.newaxis], [{"cross": 2}, {"cross": 3}]

    def logits(self, hidden):
        return hidden


@pytest.mark.exercise("teacher-forcing", "masked-loss")
def test_teacher_forcing_predicts_each_token_from_the_true_tokens_before_it():
    model = Recorder()
    logits, labels, intermediates = model.teacher_forced(SOURCE, TARGET)
    assert intermediates == [{"self": 1}, {"cross": 2}, {"cross": 3}]
    shifted = {"the decoder reads the tokens that it should predict": TARGET[:, 1:]}
    expect(model.target_in, [[BOS, 6, 5, 4], [BOS, 8, EOS, 0]], shifted)
    mistakes = {
        "the labels are the tokens that the decoder reads, not the next ones": TARGET[:, :-1][
            TARGET[:, 1:] != 0
        ],
        "padding counts": TARGET[:, 1:].ravel(),
        "only padding counts: the mask is upside down": [0, 0],
        "the mask belongs to target[:, :-1]: the token after eos counts": [6, 5, 4, EOS, 8, EOS, 0],
        "eos does not count: the model must learn to end": [6, 5, 4, 8],
    }
    expect(labels, [6, 5, 4, EOS, 8, EOS], mistakes)
    expect(logits[:, 0], [BOS, 6, 5, 4, BOS, 8])  # the token before each


@pytest.mark.exercise("teacher-forcing")
def test_teacher_forcing_masks_later_tokens_and_the_padding_of_the_source():
    model = Recorder()
    model.teacher_forced(SOURCE, TARGET)
    source_mask = [[[[True, True, True, False]]], [[[True, True, True, True]]]]
    target_mask = np.array([[[[True] * 4]], [[[True] * 3 + [False]]]])
    padding = {"the padding of the source is not masked": np.ones((2, 1, 1, 4), bool)}
    expect(model.encoded[1], source_mask, padding)
    other = {"cross-attention has the mask of the target: it reads the source": target_mask}
    expect(model.cross_mask, source_mask, other)
    mistakes = {
        "later tokens are not masked: training sees what it should predict": (
            np.all(model.self_mask[..., 0, :3])
        )
    }
    expect(model.self_mask, np.tri(4, dtype=bool), mistakes)


def test_the_means_of_training_are_over_the_predicted_tokens(tiny, monkeypatch, eager):
    """A model may predict only some of the target tokens, here those with odd ids."""
    model, config = tiny(dropout_rate=0.0, num_layers=1), Config(shards=2, accumulate=2)
    forward = model.teacher_forced

    def predict_some(*inputs):
        logits, labels, _ = forward(*inputs)
        odd = labels % 2 == 1
        return Predictions(tf.boolean_mask(logits, odd), tf.boolean_mask(labels, odd), [])

    monkeypatch.setattr(model, "teacher_forced", predict_some)
    with tf.GradientTape() as tape:
        sums = train.batch_sums(model, SOURCE, TARGET, None, config)
        objective = sums.objective / 3  # the odd ids of TARGET are 5 and EOS, twice
    gradients = tape.gradient(objective, [*trainable_variables(model).values()])
    norm = tf.linalg.global_norm([tf.convert_to_tensor(gradient) for gradient in gradients])
    step = train.make_train_step(model, train.make_optimizer(model, config), config)
    values = step(SOURCE, TARGET)
    assert float(values["loss"]) == pytest.approx(float(sums.loss) / 3, rel=1e-4)
    assert float(values["grad_norm"]) == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_random_words_end_at_the_loss_of_their_entropy(tiny, kind):
    """Below it, training sees what it predicts; far above it, the update is wrong."""
    flags = {"model": kind, "num_layers": 1, "d_model": 16}
    model, random, losses = tiny(**flags, spread=0), np.random.default_rng(0), []
    config = Config(**flags, warmup_steps=50, learning_rate_scale=0.3, total_steps=400, shards=1)
    step = train.make_train_step(model, train.make_optimizer(model, config), config)
    for _ in range(400):
        source, target = random.integers(4, 11, (2, 16, 12), np.int32)  # seven words
        target[:, 0], target[8:, 8:], source[:4, 6:] = BOS, PAD, PAD
        if TASKS[kind] == "language modeling":
            source = source[:, :0]
        elif TASKS[kind] == "classification":
            target = target[:, :2]
        losses.append(step(source, target)["loss"])
    assert -0.004 < np.mean(losses[-200:]) - log(7) < 0.1


@pytest.mark.exercise("teacher-forcing")
def test_teacher_forcing_passes_the_seed_to_encoder_and_decoder():
    model = Recorder()
    model.teacher_forced(SOURCE, TARGET, "seed")
    for name, seed in model.seeds.items():
        missing = {f"the {name} gets no seed, so it has no dropout": seed is None}
        expect(seed == "seed", True, missing)


def test_validation_loss_is_computed_without_dropout_of_any_kind(tiny):
    model = tiny(dropout_rate=0.5, word_dropout=0.5, num_layers=1)
    pairs = Pairs(Ragged.of([[5, 6, 7, 8, 3]]), Ragged.of([[2, 8, 7, 6, 5, 3]]))
    loss, _ = Translator(model, None, None, 20).loss_and_accuracy(pairs)
    logits, labels, _ = model.teacher_forced(*pairs.batch(np.array([0])))
    expected = loss_sums(logits, labels).loss / len(labels)
    assert loss == pytest.approx(float(expected), rel=1e-5)
