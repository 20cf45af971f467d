"""Checks of ema.patch."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

import train
from config import Config
from model import build
from model.layers import trainable_variables
from model.optimizer import Adam
from training.checkpoints import restore_model

CONFIG = Config(num_layers=1, d_model=16, num_heads=2, dff=24, shards=1, total_steps=9)
IDS = np.int32([[2, 4, 5, 6, 3], [2, 7, 3, 0, 0]])


def test_average_is_a_mean_and_from_step_50_on_exponential():
    random = np.random.default_rng(0)
    variable = tf.Variable(np.float32(random.normal(size=(4, 3))))
    optimizer, weights = Adam({"w": variable}), []
    for step in range(1, 121):
        gradient = tf.constant(random.normal(size=(4, 3)), tf.float32)
        optimizer.apply([gradient], {"w": variable}, 0.1)
        weights.append(variable.numpy())
        if step <= 50:
            expected = np.mean(weights, axis=0)
        else:
            expected = 0.98 * expected + 0.02 * weights[-1]
        np.testing.assert_allclose(optimizer.average[0], expected, atol=1e-5)


def test_training_uses_the_variables_and_validation_their_averages(monkeypatch):
    captured = {}

    def stop(config, dataset, model, optimizer, strategy):
        captured.update(model=model, optimizer=optimizer)
        raise InterruptedError

    tokenizer = SimpleNamespace(vocab_size=11)
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    dataset = SimpleNamespace(**tokenizers, train=None, corpus_info={})
    monkeypatch.setattr(train.pipeline, "load", lambda config: dataset)
    monkeypatch.setattr(train.machine, "set_parallelism", lambda shards: None)
    monkeypatch.setattr(train, "make_predictor", lambda model, *_: captured.update(validated=model))
    monkeypatch.setattr(train, "Run", stop)
    try:
        train.train(CONFIG)
    except InterruptedError:
        model, validated, optimizer = map(captured.get, ("model", "validated", "optimizer"))
    train_step = train.make_train_step(model, optimizer, CONFIG)
    for _ in range(3):
        train_step(IDS, IDS)
    for name, average in trainable_variables(validated).items():
        variable = trainable_variables(model)[name]
        assert any(average is each for each in optimizer.average), name
        assert not np.array_equal(average, variable) or np.all(variable == 0), name
    logits = [each.teacher_forced(IDS, IDS).logits for each in (model, validated)]
    assert np.max(np.abs(logits[0] - logits[1])) > 1e-5


def test_a_model_is_restored_with_the_averages(tmp_path):
    model, other = build(CONFIG, 11, 11), build(CONFIG, 11, 11)
    optimizer = Adam(trainable_variables(model))
    for average in optimizer.average:
        average.assign(tf.random.stateless_normal(average.shape, [0, len(average.shape)]))
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    restore_model(path, other)
    for variable, average in zip(
        trainable_variables(other).values(), optimizer.average, strict=True
    ):
        np.testing.assert_array_equal(variable, average)
