"""The whole model beside its twin of Keras' own layers: logits, gradients, training under `fit`.

The twin takes nothing from the model but the values of its variables. What it attends to and its
positions are written here once more, one entry at a time.
"""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import keras_twin
from config import Config
from data.batches import Pairs, Rows, plan
from evaluation.translator import Translator
from model.loss import cross_entropy, teacher_forcing
from model.optimizer import Adam
from train import make_train_step

keras = tf.keras

SOURCE = np.int32([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])
TARGET = np.int32([[1, 6, 5, 4, 9, 3, 2], [1, 7, 2, 0, 0, 0, 0], [1, 5, 4, 3, 2, 0, 0]])
VOCAB = 11

SIZES = {"num_layers": 2, "d_model": 8, "num_heads": 2, "key_dim": 5, "dff": 12, "max_length": 20}
FLAVOURS = {
    "post_norm_tied_shared": {"norm": "post"},
    "pre_norm_tied": {"norm": "pre", "shared_vocabulary": False},
    "pre_norm_untied_learned": {
        "norm": "pre", "tie_embeddings": False, "positions": "learned", "shared_vocabulary": False,
    },
    "post_norm_untied_no_positions": {
        "norm": "post", "tie_embeddings": False, "positions": "none",
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=FLAVOURS.values(), ids=FLAVOURS.keys())
def flags(request):
    return SIZES | request.param


@pytest.fixture(scope="module")
def vocab_sizes(flags):
    return (VOCAB if flags.get("shared_vocabulary", True) else VOCAB + 2, VOCAB)


@pytest.fixture(scope="module")
def twins(flags, vocab_sizes, tiny):
    """Our model, all of whose variables are random, and its twin."""
    ours = tiny(*vocab_sizes, **flags)
    twin = keras_twin.build(Config(**flags), *vocab_sizes)
    keras_twin.to_keras(ours, twin)
    return ours, twin


def values(variables):
    return [np.array(tf.convert_to_tensor(variable)) for variable in variables]


def difference(ours, theirs):
    """The largest, of any entry."""
    return np.max(np.abs(tf.convert_to_tensor(ours) - tf.reshape(theirs, ours.shape)))


def real_logits(twin, source, target):
    """The twin's logits and the labels of the real tokens, as `teacher_forcing` gives them."""
    real = target[:, 1:] != 0
    return twin([source, target[:, :-1]])[real], target[:, 1:][real]


# ---- The same model -----------------------------------------------------------------------------


def test_each_parameter_has_one_twin(twins):
    ours, twin = twins
    mine, theirs = zip(*keras_twin.pairs(ours, twin), strict=True)
    assert sorted(map(id, mine)) == sorted(map(id, ours.trainable_variables))
    assert sorted(map(id, theirs)) == sorted(map(id, twin.trainable_weights))


def test_the_twin_given_our_weights_has_our_logits(twins):
    ours, twin = twins
    logits, labels = teacher_forcing(ours, SOURCE, TARGET)
    keras_logits, keras_labels = real_logits(twin, SOURCE, TARGET)
    np.testing.assert_array_equal(labels, keras_labels)
    assert np.std(logits) > 0.5  # there is something to compare
    largest = difference(logits, keras_logits)
    assert largest < 1e-5, f"the largest difference is {largest:.1e}"


def test_our_model_given_the_twins_weights_has_its_logits(flags, vocab_sizes, tiny):
    ours = tiny(*vocab_sizes, **flags)
    keras.utils.set_random_seed(0)
    twin = keras_twin.build(Config(**flags), *vocab_sizes)
    rng = np.random.default_rng(1)
    for weight in twin.trainable_weights:
        weight.assign_add(rng.normal(scale=0.25, size=weight.shape))
    logits, _ = real_logits(twin, SOURCE, TARGET)
    keras_twin.from_keras(ours, twin)
    assert np.std(logits) > 0.3
    largest = difference(logits, teacher_forcing(ours, SOURCE, TARGET)[0])
    assert largest < 1e-5, f"the largest difference is {largest:.1e}"


def test_there_and_back_restores_every_bit(twins, flags, vocab_sizes, tiny):
    ours, twin = twins
    other = tiny(*vocab_sizes, spread=0.5, **flags)
    keras_twin.from_keras(other, twin)
    for before, after in zip(values(ours.variables), values(other.variables), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_twins_have_the_same_loss_and_gradients(twins, flags):
    ours, twin = twins
    mine, theirs = zip(*keras_twin.pairs(ours, twin), strict=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(cross_entropy(*teacher_forcing(ours, SOURCE, TARGET), 0.1))
    gradients = tape.gradient(loss, mine)
    keras_twin.compile_as_ours(twin, Config(**flags))
    everything = Pairs(*(Rows.of([row[row != 0] for row in ids]) for ids in (SOURCE, TARGET)))
    ((x, y, weights),) = keras_twin.dataset(everything, [np.arange(len(SOURCE))], VOCAB)
    with tf.GradientTape() as tape:
        keras_loss = twin.compute_loss(x, y, twin(x), weights)
    keras_gradients = tape.gradient(keras_loss, [weight.value for weight in theirs])
    assert float(loss) == pytest.approx(float(keras_loss), abs=1e-5)
    differences = [
        difference(*map(tf.convert_to_tensor, pair))
        for pair in zip(gradients, keras_gradients, strict=True)
    ]
    assert max(differences) < 1e-4, f"the largest difference is {max(differences):.1e}"


# ---- What the twin makes by itself --------------------------------------------------------------


def test_the_twin_attends_to_what_it_should(tiny):
    """A token is put in another's place: the logits that change are those that may see it."""
    twin = keras_twin.build(Config(**SIZES), VOCAB, VOCAB)
    keras_twin.to_keras(tiny(**SIZES), twin)
    target = TARGET[:, :-1]
    before = twin([SOURCE, target]).numpy()
    for side, ids in enumerate((SOURCE, target)):
        for b in range(len(ids)):
            for j in range(ids.shape[1]):
                if ids[b, j] == 0:
                    continue
                inputs = [SOURCE.copy(), target.copy()]
                inputs[side][b, j] = 10
                changed = np.abs(twin(inputs).numpy() - before).max(axis=-1) > 1e-6
                for row in range(len(target)):
                    for i in range(np.count_nonzero(target[row])):
                        seen = row == b and (side == 0 or j <= i)
                        assert changed[row, i] == seen, (side, b, j, row, i)
    wider = [np.pad(ids, [(0, 0), (0, 3)]) for ids in (SOURCE, target)]
    after = twin(wider).numpy()[:, : target.shape[1]]
    np.testing.assert_allclose(after[target != 0], before[target != 0], atol=1e-6)


def test_the_sinusoids_are_the_papers():
    table = keras_twin.sinusoids(10, 8)
    for place in range(10):
        for i in range(4):
            angle = place / 10000 ** (2 * i / 8)
            assert table[place, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[place, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_twin_drops_what_we_drop(norm, tiny):
    """Embeddings with positions and each sublayer's output: without these only the norms speak."""
    ours = tiny(**SIZES, norm=norm)
    twin = keras_twin.build(Config(**SIZES, norm=norm, dropout_rate=1 - 1e-9), VOCAB, VOCAB)
    keras_twin.to_keras(ours, twin)
    norms = [ours.decoder.last_norm]
    if norm == "post":
        norms = [
            residual.norm
            for layer in ours.decoder.layers
            for residual in (layer.self_residual, layer.cross_residual, layer.feed_forward_residual)
        ]
    x = tf.zeros((1, SIZES["d_model"]))
    for layer_norm in norms:
        x = layer_norm(x)
    logits = tf.matmul(x, ours.decoder.embedding.table, transpose_b=True)
    inputs = [SOURCE, TARGET[:, :-1]]
    assert np.abs(twin(inputs) - logits).max() > 0.3
    np.testing.assert_allclose(twin(inputs, training=True), np.tile(logits, (3, 6, 1)), atol=1e-5)
    # And nothing else: 2 embeddings, 2 sublayers in an encoder's layer, 3 in a decoder's.
    layers = [(type(layer).__name__, layer.get_config()) for layer in twin.layers]
    assert sum(kind == "Dropout" for kind, _ in layers) == 2 + 2 * 2 + 2 * 3
    assert {made["dropout"] for kind, made in layers if kind == "MultiHeadAttention"} == {0.0}


# ---- Training -----------------------------------------------------------------------------------


def corpus(count):
    """Pairs whose target is the source turned round, of many lengths."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, VOCAB, rng.integers(1, 9)).tolist() for _ in range(count)]
    return Pairs(
        Rows.of([[*row, 2] for row in rows]), Rows.of([[1, *row[::-1], 2] for row in rows])
    )


@pytest.mark.parametrize("flavour", ["post_norm_tied_shared", "pre_norm_untied_learned"])
def test_fit_goes_step_by_step_as_train_does(flavour, tiny):
    flags = SIZES | FLAVOURS[flavour] | {"num_layers": 1, "dropout_rate": 0.0}
    config = Config(**flags, warmup_steps=10, learning_rate_scale=0.3, batch_tokens=64, shards=1)
    pairs = corpus(300)
    batches = plan(pairs, 64, 32, seed=0)[:20]
    assert len({ids.shape for indices in batches for ids in pairs.batch(indices)}) > 10
    ours = tiny(VOCAB, VOCAB, **flags)
    twin = keras_twin.build(config, VOCAB, VOCAB)
    keras_twin.to_keras(ours, twin)
    keras_twin.compile_as_ours(twin, config)
    train_step = make_train_step(ours, Adam(ours.trainable_variables), config)
    losses = [float(train_step(*pairs.batch(indices))[0]) for indices in batches]
    # An epoch of one step has that step's loss, not a mean.
    data = keras_twin.dataset(pairs, batches, VOCAB)
    fitted = twin.fit(data, epochs=20, steps_per_epoch=1, shuffle=False, verbose=0)
    assert losses[0] - losses[-1] > 0.3  # something was learnt
    differences = np.abs(np.subtract(losses, fitted.history["loss"]))
    assert len(differences) == 20 and max(differences) < 1e-4, differences


@pytest.fixture
def eagerly():
    """Without graphs, which would be traced for longer than they run."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.filterwarnings("ignore:Even though")  # tf.data keeps its graphs
def test_keras_measures_what_we_measure(tiny, eagerly):
    """Nats and accuracy over real tokens, over batches of different lengths, without smoothing."""
    ours = tiny(**SIZES)
    twin = keras_twin.build(Config(**SIZES), VOCAB, VOCAB)
    keras_twin.to_keras(ours, twin)
    keras_twin.compile_as_ours(twin, Config(**SIZES))
    pairs = corpus(40)
    batches = plan(pairs, 64, 32)
    found = twin.evaluate(keras_twin.dataset(pairs, batches, VOCAB), verbose=0, return_dict=True)
    loss, accuracy = Translator(ours, None, None, 20).mean(pairs, batches)
    assert found["nats"] == pytest.approx(loss, abs=1e-5)
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Even though")
def test_the_twin_is_trained_on_the_corpus_of_the_flags(tmp_path, capsys, eagerly):
    """For as many steps as are asked for; at the end both measure the weights that it has."""
    lines = [f"{'1 ' * (i % 9)}{i}\t{i}{' 1' * (i % 9)}\n" for i in range(400)]
    (tmp_path / "ones.tsv").write_text("".join(lines))
    config = Config(
        **SIZES | {"num_layers": 1}, corpus=str(tmp_path / "ones.tsv"), cache_dir=str(tmp_path),
        vocab_size=280, batch_tokens=1024, epochs=5, max_steps=8, warmup_steps=2,
    )  # fmt: skip
    keras_twin.main(config)
    out = capsys.readouterr().out
    counts = [int(count) for count in re.findall(r"(\d+)/\1\b.*val_nats", out)]
    assert sum(counts) == 8 and len(counts) == 2
    theirs, mine = map(float, re.findall(r"\d+\.\d+", out.splitlines()[-1]))
    assert theirs == pytest.approx(mine, abs=2e-4) and 1 < mine < 5
