"""Parity with a model of stock Keras layers: logits, gradients and training under `fit`.

The twin takes only the values of the variables from our model.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import keras_twin
from config import Config
from data.arrays import Pairs, Ragged
from data.batches import plan_batches
from model.layers import trainable_variables
from model.loss import loss_sums
from model.optimizer import Adam
from train import make_train_step

keras = tf.keras

SOURCE = np.int32([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])
TARGET = np.int32([[1, 6, 5, 4, 9, 3, 2], [1, 7, 2, 0, 0, 0, 0], [1, 5, 4, 3, 2, 0, 0]])
VOCAB = 11

SIZES = {"num_layers": 2, "d_model": 8, "num_heads": 2, "key_dim": 5, "dff": 12, "max_length": 20}
VARIANTS = {
    "post_norm_tied_shared": {"norm": "post"},
    "pre_norm_untied_learned": {
        "norm": "pre",
        "tie_embeddings": False,
        "positions": "learned",
        "shared_vocabulary": False,
    },
    "pre_norm_tied_no_positions": {"norm": "pre", "shared_vocabulary": False, "positions": "none"},
    "language_model_post_norm_tied": {"model": "language_model", "norm": "post"},
    "language_model_pre_norm_untied": {
        "model": "language_model",
        "norm": "pre",
        "tie_embeddings": False,
    },
}


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def flags(request):
    return SIZES | request.param


@pytest.fixture(scope="module")
def vocab_sizes(flags):
    return (VOCAB if flags.get("shared_vocabulary", True) else VOCAB + 2, VOCAB)


@pytest.fixture(scope="module")
def twins(flags, vocab_sizes, tiny):
    """Our model with random variables, and its twin."""
    ours = tiny(*vocab_sizes, **flags)
    twin = keras_twin.build(Config(**flags), *vocab_sizes)
    keras_twin.to_keras(ours, twin)
    return ours, twin


def values(variables):
    return [np.array(tf.convert_to_tensor(variable)) for variable in variables]


def difference(ours, theirs):
    """Return the largest absolute difference of any entry."""
    return np.max(np.abs(tf.convert_to_tensor(ours) - tf.reshape(theirs, ours.shape)))


def real_logits(twin, source, target):
    """Return the logits and labels of the real tokens, in the order of `teacher_forced`."""
    real = target[:, 1:] != 0
    return twin([source, target[:, :-1]])[real], target[:, 1:][real]


# ---- The same model -----------------------------------------------------------------------------


def test_each_variable_has_one_twin(twins):
    ours, twin = twins
    mine, theirs = zip(*keras_twin.matched_variables(ours, twin), strict=True)
    assert sorted(map(id, mine)) == sorted(map(id, ours.trainable_variables))
    assert sorted(map(id, theirs)) == sorted(map(id, twin.trainable_weights))


def test_logits_agree_with_our_weights(twins):
    ours, twin = twins
    logits, labels, _ = ours.teacher_forced(SOURCE, TARGET)
    keras_logits, keras_labels = real_logits(twin, SOURCE, TARGET)
    np.testing.assert_array_equal(labels, keras_labels)
    assert np.std(logits) > 0.5
    largest = difference(logits, keras_logits)
    assert largest < 1e-5, f"the largest difference is {largest:.1e}"


def test_loss_and_gradients_agree(twins, flags):
    ours, twin = twins
    config = Config(**flags)
    mine, theirs = zip(*keras_twin.matched_variables(ours, twin), strict=True)
    with tf.GradientTape() as tape:
        logits, labels, _ = ours.teacher_forced(SOURCE, TARGET)
        loss = loss_sums(logits, labels, config.label_smoothing).objective / len(labels)
    gradients = tape.gradient(loss, mine)
    keras_twin.compile_twin(twin, config)
    pairs = Pairs(*(Ragged.of([row[row != 0] for row in ids]) for ids in (SOURCE, TARGET)))
    batches = [np.arange(len(SOURCE))]
    ((x, y, weights),) = keras_twin.dataset(pairs, batches, VOCAB, config)
    with tf.GradientTape() as tape:
        keras_loss = twin.compute_loss(x, y, twin(x), weights)
    keras_gradients = tape.gradient(keras_loss, [weight.value for weight in theirs])
    assert float(loss) == pytest.approx(float(keras_loss), abs=1e-5)
    differences = [
        difference(*map(tf.convert_to_tensor, pair))
        for pair in zip(gradients, keras_gradients, strict=True)
    ]
    assert max(differences) < 1e-4, f"the largest difference is {max(differences):.1e}"


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_twin_has_dropout_where_our_model_has(norm):
    """At 2 embeddings, 2 sublayers per encoder layer, 3 per decoder layer."""
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.5}
    twin = keras_twin.build(Config(**SIZES, norm=norm, **rates), VOCAB, VOCAB)
    layers = [(type(layer).__name__, layer.get_config()) for layer in twin.layers]
    assert sum(kind == "Dropout" for kind, _ in layers) == 2 + 2 * 2 + 2 * 3
    assert {flags["dropout"] for kind, flags in layers if kind == "MultiHeadAttention"} == {0.5}


# ---- Training -----------------------------------------------------------------------------------


def corpus(count):
    """Return pairs of many lengths whose target is the reversed source."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, VOCAB, rng.integers(1, 9)).tolist() for _ in range(count)]
    return Pairs(
        Ragged.of([[*row, 2] for row in rows]), Ragged.of([[1, *row[::-1], 2] for row in rows])
    )


@pytest.mark.slow
def test_losses_of_fit_equal_those_of_train(tiny):
    flags = SIZES | VARIANTS["pre_norm_untied_learned"] | {"num_layers": 1, "dropout_rate": 0.0}
    config = Config(**flags, warmup_steps=10, learning_rate_scale=0.3, batch_tokens=64, shards=1)
    pairs = corpus(300)
    batches = plan_batches(pairs, 64, 32, seed=0)[:20]
    assert len({ids.shape for indices in batches for ids in pairs.batch(indices)}) > 10
    ours = tiny(VOCAB, VOCAB, **flags)
    twin = keras_twin.build(config, VOCAB, VOCAB)
    keras_twin.to_keras(ours, twin)
    keras_twin.compile_twin(twin, config)
    train_step = make_train_step(ours, Adam(trainable_variables(ours)), config)
    losses = [float(train_step(*pairs.batch(indices))["objective"]) for indices in batches]
    # One step per epoch: the logged loss is not a mean over steps.
    data = keras_twin.dataset(pairs, batches, VOCAB, config)
    fitted = twin.fit(data, epochs=20, steps_per_epoch=1, shuffle=False, verbose=0)
    assert losses[0] - losses[-1] > 0.3
    differences = np.abs(np.subtract(losses, fitted.history["loss"]))
    assert len(differences) == 20 and max(differences) < 1e-4, differences


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Even though")
def test_program_trains_on_the_corpus_for_max_steps(tmp_path, capsys, eager):
    """At the end, Keras and our model report the same loss."""
    lines = [f"{'1 ' * (i % 9)}{i}\t{i}{' 1' * (i % 9)}\n" for i in range(400)]
    (tmp_path / "ones.tsv").write_text("".join(lines))
    flags = {"vocab_size": 280, "batch_tokens": 1024, "epochs": 5, "max_steps": 8}
    paths = {"corpus": str(tmp_path / "ones.tsv"), "cache_dir": str(tmp_path)}
    config = Config(**SIZES | {"num_layers": 1, "warmup_steps": 2} | flags | paths)
    keras_twin.main(config)
    out = capsys.readouterr().out
    counts = [int(count) for count in re.findall(r"(\d+)/\1\b.*val_nats", out)]
    assert sum(counts) == 8 and len(counts) == 2
    theirs, mine = map(float, re.findall(r"\d+\.\d+", out.splitlines()[-1]))
    assert theirs == pytest.approx(mine, abs=2e-4) and 1 < mine < 5
