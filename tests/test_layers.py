"""The leaves: their arithmetic, and that every draw is a function of (seed, place) alone."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import layers, transformer
from model.layers import (
    Dense,
    Embedding,
    FeedForward,
    LayerNorm,
    dropout,
    fold_in,
    product,
    products_in,
)
from model.transformer import Transformer

RNG = np.random.default_rng(0)
SEED = tf.constant([0, 1], tf.int64)


def randomised(module):
    for variable in module.variables:
        variable.assign(RNG.normal(size=variable.shape))
    return module


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4)])
def test_dense_is_x_times_kernel_plus_bias(shape):
    dense = randomised(Dense(4, 5, SEED))
    x = np.float32(RNG.normal(size=shape))
    expected = x @ dense.kernel.numpy() + dense.bias.numpy()
    np.testing.assert_allclose(dense(x), expected, rtol=1e-5, atol=1e-6)


def test_embedding_is_the_row_of_the_id_times_root_d_model():
    embedding = Embedding(5, 16, SEED)
    table = embedding.table.numpy()
    np.testing.assert_allclose(embedding([[3, 0]]), [[4 * table[3], 4 * table[0]]], rtol=1e-6)


def test_feed_forward_is_two_products_around_a_relu():
    net = randomised(FeedForward(3, 6, SEED))
    x = np.float32(RNG.normal(size=(2, 4, 3)))
    hidden = np.maximum(0, x @ net.inner.kernel.numpy() + net.inner.bias.numpy())
    expected = hidden @ net.outer.kernel.numpy() + net.outer.bias.numpy()
    np.testing.assert_allclose(net(x), expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_is_that_of_keras():
    norm = randomised(LayerNorm(8))
    keras = tf.keras.layers.LayerNormalization(epsilon=1e-6)
    x = np.float32(3 + 2 * RNG.normal(size=(2, 5, 8)))
    keras.build(x.shape)
    keras.set_weights([norm.scale, norm.offset])
    np.testing.assert_allclose(norm(x), keras(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(7, 8), (2, 5, 8)])
def test_layer_norms_gradient_is_that_of_the_plain_version(shape):
    x = tf.constant(3 + 2 * RNG.normal(size=shape), tf.float32)
    scale, offset = tf.constant(RNG.normal(size=(2, 8)), tf.float32)
    upstream = tf.constant(RNG.normal(size=shape), tf.float32)
    results = []
    for version in (layers.layer_norm, layers.plain_layer_norm):
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y = version(x, scale, offset)
        results.append([y, *tape.gradient(y, [x, scale, offset], upstream)])
    for name, ours, automatic in zip("y x scale offset".split(), *results, strict=True):
        np.testing.assert_allclose(ours, automatic, rtol=1e-4, atol=1e-5, err_msg=name)


def test_dropout_without_a_seed_is_nothing():
    x = tf.ones((3, 4))
    assert dropout(x, 0.9, None) is x


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_the_share_it_is_told_and_keeps_the_mean(rate):
    dropped = dropout(tf.ones((100, 1000)), rate, SEED).numpy()
    assert np.mean(dropped == 0) == pytest.approx(rate, abs=0.01)
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-6)
    assert np.mean(dropped) == pytest.approx(1, abs=0.02)


def test_dropout_takes_rows_of_odd_length_and_draws_each_value_apart():
    dropped = dropout(tf.ones((4000, 5)), 0.5, SEED).numpy() == 0
    assert dropped.shape == (4000, 5)
    # No two columns, and no row and the next, go together.
    assert abs(np.corrcoef(dropped.T) - np.eye(5)).max() < 0.06
    assert abs(np.corrcoef(dropped[:-1].ravel(), dropped[1:].ravel())[0, 1]) < 0.03


def test_dropouts_mask_is_a_function_of_run_step_and_place():
    def mask(run, step, place):
        return dropout(tf.ones(64), 0.5, fold_in(tf.constant([run, step], tf.int64), place)).numpy()

    np.testing.assert_array_equal(mask(0, 1, "here"), mask(0, 1, "here"))
    masks = [mask(0, 1, "here"), mask(1, 1, "here"), mask(0, 2, "here"), mask(0, 1, "there")]
    for one, other in itertools.combinations(masks, 2):
        assert np.any(one != other)


def test_no_seed_stays_no_seed_at_any_place():
    assert fold_in(None, "here") is None


def test_initial_weights_have_the_spread_of_their_formulas():
    kernel = Dense(300, 100, SEED).kernel.numpy()  # Glorot, uniform: ±√(6 / (in + out))
    assert np.max(np.abs(kernel)) == pytest.approx(np.sqrt(6 / 400), rel=0.01)
    assert np.var(kernel) == pytest.approx(2 / 400, rel=0.05)
    table = Embedding(1000, 64, SEED).table.numpy()  # normal: variance 1 / d_model
    assert np.var(table) == pytest.approx(1 / 64, rel=0.05)
    assert abs(np.mean(table)) < 0.01


def fresh(**flags):
    """A model with its initial weights."""
    sizes = {"num_layers": 2, "d_model": 8, "num_heads": 2, "dff": 12, "positions": "learned"}
    return Transformer(Config(**(sizes | flags)), 11, 11)


def draws(module):
    """The variables that are drawn, as arrays: all but biases, scales and offsets."""
    return [v.numpy() for v in module.trainable_variables if v.shape.rank > 1]


def assert_same_draws(one, other):
    for mine, its in zip(draws(one), draws(other), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_one_more_layer_leaves_all_other_weights_as_they_were():
    two, three = fresh(num_layers=2), fresh(num_layers=3)
    for part in ("encoder", "decoder"):
        mine, its = getattr(two, part), getattr(three, part)
        assert_same_draws(mine.embedding, its.embedding)
        assert_same_draws(mine.positions, its.positions)
        for i in range(2):
            assert_same_draws(mine.layers[i], its.layers[i])


@pytest.mark.parametrize("change", [{"norm": "post"}, {"dropout_rate": 0.5}, {"max_length": 40}])
def test_another_choice_elsewhere_leaves_the_layers_as_they_were(change):
    one, other = fresh(), fresh(**change)
    assert_same_draws(one.encoder.layers[1], other.encoder.layers[1])
    assert_same_draws(one.decoder.layers[1], other.decoder.layers[1])


def test_another_seed_draws_all_weights_anew():
    assert_same_draws(fresh(seed=5), fresh(seed=5))
    for mine, its in zip(draws(fresh(seed=5)), draws(fresh(seed=6)), strict=True):
        assert np.mean(mine == its) < 0.01


def test_no_two_places_of_the_model_share_a_draw(monkeypatch):
    """Neither two weights nor two dropouts of a step."""
    seeds = []

    def spy(function):
        def called(*given):
            seeds.append(tuple(np.array(given[-1])))  # the seed comes last
            return function(*given)

        return called

    for name in ("glorot_uniform", "normal"):
        monkeypatch.setattr(layers, name, spy(getattr(layers, name)))
    monkeypatch.setattr(transformer, "dropout", spy(dropout))
    model = fresh(tie_embeddings=False, positions="none")
    matrices = 2 * (4 + 2) + 2 * (4 + 4 + 2) + 3  # two layers each way, embeddings, output
    assert len(seeds) == matrices
    ids, step_0 = np.int32([[1, 2, 3]]), tf.constant([0, 0], tf.int64)
    model.decode(ids, model.encode(ids, True, step_0), True, True, step_0)
    assert len(seeds) == matrices + 2 * 2 + 2 * 3 + 2  # after each sublayer and both embeddings
    assert len(set(seeds)) == len(seeds)


def test_products_are_in_float32_but_inside_products_in():
    x, w = (tf.constant(RNG.normal(size=(64, 64)), tf.float32) for _ in range(2))
    exact = x.numpy().astype(float) @ w.numpy().astype(float)
    with products_in("bfloat16"):
        with products_in("float32"):
            inner = product(x, w)
        low = product(x, w)
        low_transposed = product(x, tf.transpose(w), transpose_b=True)
    np.testing.assert_allclose(inner, exact, atol=1e-4)
    np.testing.assert_allclose(product(x, w), exact, atol=1e-4)
    assert low.dtype == tf.float32
    assert 1e-3 < np.abs(low - exact).max() < 0.3
    np.testing.assert_allclose(low_transposed, low, atol=0.1)


def test_the_step_multiplies_as_it_is_told_and_sums_up_in_float32():
    """In bfloat16 the weights' products and their gradients, and nothing else."""
    from model.optimizer import Adam
    from train import make_train_step

    for precision, of_weights in [("float32", 0), ("bfloat16", 3 * (6 + 10 + 1))]:
        config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, precision=precision, shards=1)
        model = Transformer(config, 9, 9)
        step = make_train_step(model, Adam(model.trainable_variables), config)
        operations = step.get_concrete_function().graph.get_operations()
        low = [op for op in operations if any(x.dtype == tf.bfloat16 for x in op.outputs)]
        assert sum(op.type == "MatMul" for op in low) == of_weights
        assert {op.type for op in low} <= {"MatMul", "Cast"}
