"""Parity with a model of stock Keras layers: logits, gradients and training under `fit`.

The twin takes only the values of the variables from our model.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import metrics_of, train_here

from benchmarks import keras_twin
from config import Config
from data.arrays import Pairs, Ragged
from model.loss import loss_sums

keras = tf.keras

SOURCE = np.int32([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])
TARGET = np.int32([[1, 6, 5, 4, 9, 3, 2], [1, 7, 2, 0, 0, 0, 0], [1, 5, 4, 3, 2, 0, 0]])
VOCAB = 11

SIZES = {"num_layers": 2, "d_model": 8, "num_heads": 2, "key_dim": 5, "dff": 12, "max_length": 20}
VARIANTS = {
    "post_norm_tied_shared": {"norm": "post"},
    "untied_learned": {"positions": "learned", "shared_vocabulary": False, "tie_embeddings": False},
    "tied_no_positions": {"positions": "none", "shared_vocabulary": False},
    "language_model_post_norm_tied": {"model": "language_model", "norm": "post"},
    "language_model_untied": {"model": "language_model", "tie_embeddings": False},
}


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def flags(request):
    return SIZES | request.param


@pytest.fixture(scope="module")
def twins(flags, tiny):
    """Our model with random variables, and its twin."""
    sizes = (VOCAB if flags.get("shared_vocabulary", True) else VOCAB + 2, VOCAB)
    ours, twin = tiny(*sizes, **flags), keras_twin.build(Config(**flags), *sizes)
    keras_twin.to_keras(ours, twin)
    return ours, twin


def difference(ours, theirs):
    """Return the largest absolute difference of any entry."""
    return np.max(np.abs(tf.convert_to_tensor(ours) - tf.reshape(theirs, ours.shape)))


# ---- The same model -----------------------------------------------------------------------------


def test_each_variable_has_one_twin(twins):
    ours, twin = twins
    mine, theirs = zip(*keras_twin.matched_variables(ours, twin), strict=True)
    assert sorted(map(id, mine)) == sorted(map(id, ours.trainable_variables))
    assert sorted(map(id, theirs)) == sorted(map(id, twin.trainable_weights))


def test_logits_agree_with_our_weights(twins):
    ours, twin = twins
    logits, labels, _ = ours.teacher_forced(SOURCE, TARGET)
    real = TARGET[:, 1:] != 0
    np.testing.assert_array_equal(labels, TARGET[:, 1:][real])
    assert np.std(logits) > 0.5
    largest = difference(logits, twin([SOURCE, TARGET[:, :-1]])[real])
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
    keras_gradients = map(tf.convert_to_tensor, keras_gradients)
    largest = max(map(difference, gradients, keras_gradients))
    assert largest < 1e-4, f"the largest difference is {largest:.1e}"


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_twin_has_dropout_where_our_model_has(norm):
    """At 2 embeddings, 2 sublayers per encoder layer, 3 per decoder layer."""
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.5}
    twin = keras_twin.build(Config(**SIZES, norm=norm, **rates), VOCAB, VOCAB)
    layers = [(type(layer).__name__, layer.get_config()) for layer in twin.layers]
    assert sum(kind == "Dropout" for kind, _ in layers) == 2 + 2 * 2 + 2 * 3
    assert {flags["dropout"] for kind, flags in layers if kind == "MultiHeadAttention"} == {0.5}


# ---- Training -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Even though")
def test_program_trains_on_the_corpus_like_train_py(tmp_path, capsys, eager):
    """After each epoch it has the same loss, and at the end so has our model with its weights."""
    lines = [f"{'1 ' * (i % 9)}{i}\t{i}{' 1' * (i % 9)}\n" for i in range(400)]
    (tmp_path / "ones.tsv").write_text("".join(lines))
    flags = {"vocab_size": 280, "batch_tokens": 1024, "epochs": 5, "max_steps": 20, "shards": 1}
    flags |= {"num_layers": 1, "dropout_rate": 0.0, "tie_embeddings": False}
    flags |= {"warmup_steps": 8, "learning_rate_scale": 0.2}
    paths = {"corpus": str(tmp_path / "ones.tsv"), "cache_dir": str(tmp_path)}
    keras_twin.main(Config(**SIZES | flags | paths))
    out = capsys.readouterr().out
    counts = [int(count) for count in re.findall(r"(\d+)/\1\b.*val_nats", out)]
    assert sum(counts) == 20 and len(counts) > 2
    theirs, mine = map(float, re.findall(r"\d+\.\d+", out.splitlines()[-1]))
    assert theirs == pytest.approx(mine, abs=2e-4)
    run = train_here(**SIZES | flags | paths, runs_dir=str(tmp_path), name="run")
    losses = [line["validation_loss"] for line in metrics_of(run) if "validation_loss" in line]
    assert 1 < losses[-1] < losses[0] - 0.3
    keras_losses = [float(loss) for loss in re.findall(r"val_nats: (\d+\.\d+)", out)]
    assert losses == pytest.approx(keras_losses, abs=5e-4)
