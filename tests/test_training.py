"""Learning: a training step for all shapes, and tasks that only a sound model solves to the end."""

from random import Random

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import MODELS
from model.decoding import greedy
from model.optimizer import Adam
from model.transformer import Transformer
from train import make_train_step

BOS, EOS, VOCAB = 1, 2, 12


def training_step(model, config):
    """The step of train.py."""
    return make_train_step(model, Adam(model.trainable_variables), config)


def test_one_trace_serves_all_shapes():
    config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, positions="learned", max_length=6)
    train_step = training_step(Transformer(config, VOCAB, VOCAB), config)
    rng = np.random.default_rng(0)
    for batch, source_len, target_len in [(1, 1, 2), (4, 5, 9), (3, 9, 4), (7, 2, 2)]:
        source = rng.integers(3, VOCAB, (batch, source_len), np.int32)
        target = rng.integers(3, VOCAB, (batch, target_len), np.int32)
        assert np.isfinite(train_step(source, target)).all()
    assert train_step.experimental_get_tracing_count() == 1


FLAVOURS = {
    "transformer": {"num_heads": 2, "dff": 8},
    "summary": {"model": "recurrent", "recurrent_attention": "none"},
    "classifier": {"model": "classifier", "num_heads": 2, "dff": 8},
}


@pytest.mark.parametrize(
    ("flavour", "batch"),
    [("transformer", 1), ("transformer", 5), ("summary", 1), ("classifier", 5)],
)
def test_the_shards_of_a_batch_make_the_step_of_the_whole_batch(flavour, batch):
    """Also where a shard is empty, and where the shards have different numbers of real tokens."""
    flags = FLAVOURS[flavour]
    rng, after = np.random.default_rng(0), []
    lengths = rng.integers(2, 9, (batch, 1))
    ids = np.where(np.arange(9) < lengths, rng.integers(3, VOCAB, (batch, 9)), 0).astype(np.int32)
    for shards in (1, 3):
        config = Config(num_layers=1, d_model=8, dropout_rate=0, shards=shards, **flags)
        model = MODELS[config.model](config, VOCAB, VOCAB)
        # The key's bias has no gradient but rounding: with a small epsilon it would make steps.
        optimizer = Adam(model.trainable_variables, epsilon=1e-3)
        target = ids[:, :2] if config.labelled else ids
        loss, norm, _ = make_train_step(model, optimizer, config)(ids, target)
        weights = np.concatenate([np.ravel(v) for v in model.trainable_variables])
        after.append([float(loss), float(norm), *weights])
    np.testing.assert_allclose(after[1], after[0], rtol=1e-5, atol=1e-6)


def test_each_shard_has_dropout_of_its_own():
    """Twice the same sentence: with one dropout for both, two shards would have the loss of one."""
    ids, losses = np.int32([[1, 5, 6, 7, 8, 2]]), []
    for rows in (1, 2):
        config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, dropout_rate=0.5, shards=2)
        model = Transformer(config, VOCAB, VOCAB)
        batch = np.repeat(ids, rows, axis=0)
        losses.append(float(training_step(model, config)(batch, batch)[0]))
    assert abs(losses[0] - losses[1]) > 1e-3


def test_training_hides_words():
    ids, losses = np.int32([[2, 5, 6, 7, 8, 9, 3]]), []
    for rate in (0.0, 0.9):
        config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, dropout_rate=0,
                        word_dropout=rate, shards=1)  # fmt: skip
        model = Transformer(config, VOCAB, VOCAB)
        losses.append(float(training_step(model, config)(ids, ids)[0]))
    assert abs(losses[0] - losses[1]) > 1e-4


def strings(count):
    """So many strings of 3 to 8 symbols, all different."""
    random, found = Random(0), {}
    while len(found) < count:
        found[tuple(random.choices(range(3, VOCAB), k=random.randint(3, 8)))] = None
    return list(found)


def padded(rows):
    length = max(map(len, rows))
    return np.int32([[*row] + [0] * (length - len(row)) for row in rows])


def unpadded(row):
    return [token for token in row.tolist() if token != 0]


@pytest.mark.parametrize(
    ("flags", "order", "steps"),
    [
        ({"num_heads": 4, "dff": 128, "norm": "post"}, 1, 500),
        ({"num_heads": 4, "dff": 128, "norm": "pre"}, -1, 800),
        ({"model": "recurrent", "recurrent_attention": "additive"}, -1, 300),
    ],
    ids=["copy_post_norm", "reverse_pre_norm", "reverse_additive"],
)
def test_a_tiny_model_learns_to_copy_and_to_reverse(flags, order, steps):
    """Exactly, on strings it has never seen, and hearing itself instead of its teacher."""
    config = Config(
        num_layers=1, d_model=64, dropout_rate=0.0, warmup_steps=200, learning_rate_scale=0.3,
        **flags,
    )  # fmt: skip
    model = MODELS[config.model](config, VOCAB, VOCAB)
    train_step = training_step(model, config)
    pairs = [([*string, EOS], [BOS, *string[::order], EOS]) for string in strings(6000)]
    rest, held_out = pairs[:-200], pairs[-200:]
    random = Random(0)
    for _ in range(steps):
        train_step(*map(padded, zip(*random.sample(rest, 64), strict=True)))

    sources, targets = map(padded, zip(*held_out, strict=True))
    outputs = greedy(model, tf.constant(sources), BOS, EOS).numpy()
    pairs = zip(outputs, targets[:, 1:], strict=True)
    assert np.mean([unpadded(output) == unpadded(target) for output, target in pairs]) >= 0.99
