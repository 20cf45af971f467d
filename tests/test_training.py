"""The train step, and tasks that only a correct model learns completely."""

from random import Random

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

import train
from config import Config
from model import build, layers
from model.decoding import greedy
from model.layers import trainable_variables
from model.loss import loss_sums
from model.masks import look_ahead_mask, padding_mask
from model.optimizer import Adam
from train import make_train_step
from utils import UserError

BOS, EOS, VOCAB = 1, 2, 12


def config_of(**settings):
    """Return the Config of a tiny model."""
    sizes = {"num_layers": 1, "d_model": 8, "dropout_rate": 0.0, "shards": 1}
    if settings.get("model") != "recurrent":
        sizes |= {"num_heads": 2, "dff": 8}
    return Config(**sizes | settings)


def model_and_step(config):
    """Return a model, its optimizer and its train step."""
    model = build(config, VOCAB, VOCAB)
    # Only rounding makes a gradient for a key's bias: a small epsilon would make it a large update.
    optimizer = Adam(trainable_variables(model), epsilon=1e-3)
    return model, optimizer, make_train_step(model, optimizer, config)


def random_ids(batch, length=9):
    """Return ids (batch, length) of sequences of random lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, length, (batch, 1))
    ids = rng.integers(3, VOCAB, (batch, length), np.int32)
    return np.where(np.arange(length) < lengths, ids, 0)


# ---- The train step ------------------------------------------------------------------------------


def test_a_layer_that_is_not_called_is_named(eager, capsys):
    config = config_of(seed=77)
    model = build(config, VOCAB, VOCAB)
    model.gate = layers.Dense(8, 8, layers.initial_seed(0))
    variables = trainable_variables(model)
    train_step = make_train_step(model, Adam(variables), config)
    train_step(random_ids(4), random_ids(4))
    warnings = capsys.readouterr().err
    assert "gate/kernel" in warnings and "gate/bias" in warnings and warnings.count("\n") == 2


def test_a_variable_that_the_model_does_not_find_is_named(eager, monkeypatch):
    """It is in use, but neither trained nor saved."""

    class Gate:
        weight = tf.Variable(1.0, name="weight")

    model, _, train_step = model_and_step(config_of())
    forward = model.teacher_forced

    def gated(*words):
        predictions = forward(*words)
        return predictions._replace(logits=predictions.logits * Gate.weight)

    monkeypatch.setattr(model, "teacher_forced", gated)
    with pytest.raises(UserError, match="would not be trained"):
        train_step(random_ids(4), random_ids(4))


def test_one_trace_serves_all_shapes():
    _, _, train_step = model_and_step(config_of(positions="learned", max_length=6))
    rng = np.random.default_rng(0)
    for batch, source_len, target_len in [(1, 1, 2), (4, 5, 9), (3, 9, 4), (7, 2, 2)]:
        source = rng.integers(3, VOCAB, (batch, source_len), np.int32)
        target = rng.integers(3, VOCAB, (batch, target_len), np.int32)
        assert all(np.isfinite(value) for value in train_step(source, target).values())
    assert train_step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.exercise("train-step")
def test_loss_is_without_label_smoothing_and_objective_is_with_it(eager, label_smoothing):
    """Both of the same logits, averaged over the real target tokens."""
    config = config_of(label_smoothing=label_smoothing, shards=2)
    model, _, train_step = model_and_step(config)
    ids = random_ids(5)
    target_in, labels = ids[:, :-1], ids[:, 1:]
    source_mask, self_mask = padding_mask(tf.constant(ids)), look_ahead_mask(target_in.shape[1])
    memory, _ = model.encode(ids, source_mask)
    hidden, _ = model.decode(target_in, memory, self_mask, source_mask)
    log_probabilities = tf.nn.log_softmax(model.logits(hidden)).numpy()[labels != 0]
    labels = labels[labels != 0]
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    uniform = -log_probabilities.mean()
    accuracy = (log_probabilities.argmax(axis=-1) == labels).mean()

    metrics = train_step(ids, ids)
    objective = (1 - label_smoothing) * loss + label_smoothing * uniform
    mistakes = {
        "the loss that is reported has label smoothing": objective,
        "the loss that is reported is a sum: it must be a mean per token": loss * len(labels),
    }
    expect(metrics["loss"], loss, mistakes)
    assert float(metrics["accuracy"]) == pytest.approx(accuracy, rel=1e-5)
    plain = {"the objective that is reported has no label smoothing": loss}
    expect(metrics["objective"], objective, plain)
    assert (float(metrics["objective"]) != float(metrics["loss"])) == (label_smoothing > 0)


@pytest.mark.exercise("train-step")
def test_the_step_follows_the_gradient_of_the_objective(eager):
    """Of one with label smoothing, at the learning rate of the schedule."""
    config = config_of(label_smoothing=0.3, warmup_steps=10)
    model, _, train_step = model_and_step(config)
    ids = random_ids(5)
    with tf.GradientTape(persistent=True) as tape:
        logits, labels, _ = model.teacher_forced(tf.constant(ids), tf.constant(ids))
        objective = loss_sums(logits, labels, 0.3).objective / len(labels)
        loss = loss_sums(logits, labels).loss / len(labels)
    gradients = list(map(tf.convert_to_tensor, tape.gradient(objective, model.trainable_variables)))
    of_loss = tf.linalg.global_norm(tape.gradient(loss, model.trainable_variables))
    before = [variable.numpy() for variable in model.trainable_variables]
    metrics = train_step(ids, ids)
    rate = 8**-0.5 * 10**-1.5
    late = {"the first rate is that of step 0: the first update has step 1": 0}
    expect(metrics["learning_rate"], rate, late, atol=0)
    norm = float(tf.linalg.global_norm(gradients))
    mistakes = {
        "the gradient is that of the sum over the tokens, not of the mean": norm * len(labels),
        "the gradient is that of the reported loss, without label smoothing": of_loss,
    }
    expect(metrics["grad_norm"], norm, mistakes, rtol=1e-4)
    layers = {name: float(x) for name, x in metrics.items() if name.startswith("grad_norm/")}
    assert np.linalg.norm([*layers.values()]) == pytest.approx(norm, rel=1e-4)
    assert {"grad_norm/encoder/layers/0", "grad_norm/encoder/final_norm"} < layers.keys()
    unchanged = map(np.array_equal, before, model.trainable_variables)
    expect(all(unchanged), False, {"no variable changes: the optimizer is not applied": True})
    for old, variable, g in zip(before, model.trainable_variables, gradients, strict=True):
        # Adam's first update, with the epsilon of model_and_step.
        update = rate * g / (abs(g) + 1e-3 / np.sqrt(1 - 0.98))
        np.testing.assert_allclose(old - variable, update, atol=1e-5)


def test_an_edited_equation_is_what_is_trained(eager, monkeypatch):
    """Also if the edit has an effect at some sizes only. No faster function may replace it."""
    norm, ids, losses = layers.LayerNorm.__call__, random_ids(5), {}
    for width in (64, 128):
        for edit in (norm, lambda self, x: norm(self, x) * (1 + (x.shape[-1] > 64))):
            monkeypatch.setattr(layers.LayerNorm, "__call__", edit)
            _, _, train_step = model_and_step(config_of(d_model=width))
            losses[width, edit == norm] = [float(train_step(ids, ids)["loss"]) for _ in range(2)]
    np.testing.assert_allclose(losses[64, False], losses[64, True], rtol=1e-5)
    assert np.all(np.abs(np.subtract(losses[128, False], losses[128, True])) > 1e-4)


@pytest.mark.parametrize(
    ("settings", "batch"),
    [({}, 5), ({"model": "recurrent", "recurrent_attention": "none"}, 1)],
    ids=["transformer-5", "recurrent-1"],
)
def test_parts_make_the_same_step_as_the_whole_batch(eager, settings, batch):
    """Also if a part is empty, and if the parts have different numbers of real tokens."""
    ids, results = random_ids(batch), []
    for parts in ({}, {"shards": 3}, {"shards": 2, "accumulate": 2}):
        config = config_of(**parts, **settings)
        model, _, train_step = model_and_step(config)
        metrics = train_step(ids, ids)
        weights = np.concatenate([np.ravel(variable) for variable in model.trainable_variables])
        results.append([*map(float, metrics.values()), *weights])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-5, atol=1e-6)


def test_the_model_is_traced_once_for_all_parts(monkeypatch):
    traced = []
    batch_sums = train.batch_sums
    monkeypatch.setattr(train, "batch_sums", lambda *x: traced.append(x) or batch_sums(*x))
    config = config_of(model="classifier", accumulate=3, shards=4)
    model_and_step(config)[2].get_concrete_function()
    assert len(traced) == 1


@pytest.mark.parametrize("parts", ["shards", "accumulate"])
def test_parts_draw_different_dropout(eager, parts):
    """With the same dropout for a sentence and its copy, their loss would be that of one."""
    ids, losses = np.int32([[1, 5, 6, 7, 8, 2]]), []
    for rows in (1, 2):
        _, _, train_step = model_and_step(config_of(dropout_rate=0.5, **{parts: 2}))
        batch = np.repeat(ids, rows, axis=0)
        losses.append(float(train_step(batch, batch)["loss"]))
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.exercise("train-step")
def test_each_step_draws_different_dropout(eager):
    ids = random_ids(5)
    _, _, train_step = model_and_step(config_of(dropout_rate=0.5, learning_rate_scale=1e-9))
    losses = [float(train_step(ids, ids)["loss"]) for _ in range(2)]
    same = {"two steps draw the same dropout: the seed must depend on the step": True}
    expect(abs(losses[0] - losses[1]) > 1e-3, True, same)


def test_word_dropout_is_on_in_training():
    ids, losses = np.int32([[2, 5, 6, 7, 8, 9, 3]]), []
    for rate in (0.0, 0.9):
        config = config_of(word_dropout=rate)
        model = build(config, VOCAB, VOCAB)
        losses.append(train.batch_sums(model, ids, ids, layers.Seed(0, 0), config).loss)
    assert abs(losses[0] - losses[1]) > 1e-4


def test_the_first_step_that_is_not_finite_is_recorded(eager):
    """Here the gradient is not finite, though the objective is."""
    model, optimizer, train_step = model_and_step(config_of())
    scale = tf.Variable(1.0)

    @tf.custom_gradient
    def with_scaled_gradient(logits):
        return tf.identity(logits), lambda upstream: upstream * scale

    logits, ids = model.logits, random_ids(5)
    model.logits = lambda hidden: with_scaled_gradient(logits(hidden))
    first = optimizer.first_nonfinite_step
    for value, expected in [(1.0, 0), (np.inf, 2), (np.inf, 2)]:
        scale.assign(value)
        objective = float(train_step(ids, ids)["objective"])
        assert int(first) == expected
        assert np.isfinite(objective) or optimizer.step == 3


# ---- Learning ------------------------------------------------------------------------------------


def strings(count):
    """Return different strings of 2 to 5 symbols."""
    random, distinct = Random(0), {}
    while len(distinct) < count:
        distinct[tuple(random.choices(range(3, VOCAB), k=random.randint(2, 5)))] = None
    return list(distinct)


def padded(rows):
    length = max(map(len, rows))
    return np.int32([[*row] + [0] * (length - len(row)) for row in rows])


def unpadded(row):
    return [token for token in row.tolist() if token != 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "order", "steps"),
    [
        ({"num_heads": 4, "dff": 128, "norm": "post"}, 1, 300),
        ({"num_heads": 4, "dff": 128, "norm": "pre"}, -1, 500),
        ({"model": "recurrent", "recurrent_attention": "additive"}, -1, 300),
    ],
    ids=["copy_post_norm", "reverse_pre_norm", "reverse_additive"],
)
def test_a_tiny_model_learns_to_copy_and_reverse(flags, order, steps):
    """At least 95 % exactly right, on strings not in the training data, by greedy decoding."""
    sizes = {"num_layers": 1, "d_model": 64, "shards": 1, "dropout_rate": 0.0}
    config = Config(**sizes, warmup_steps=200, learning_rate_scale=0.3, **flags)
    model = build(config, VOCAB, VOCAB)
    train_step = make_train_step(model, Adam(trainable_variables(model)), config)
    pairs = [([*string, EOS], [BOS, *string[::order], EOS]) for string in strings(2000)]
    train, held_out = pairs[:-200], pairs[-200:]
    random = Random(0)
    for _ in range(steps):
        train_step(*map(padded, zip(*random.sample(train, 64), strict=True)))

    sources, targets = map(padded, zip(*held_out, strict=True))
    outputs = greedy(model, tf.constant(sources), BOS, EOS).numpy()
    pairs = zip(outputs, targets[:, 1:], strict=True)
    assert np.mean([unpadded(output) == unpadded(target) for output, target in pairs]) >= 0.95
