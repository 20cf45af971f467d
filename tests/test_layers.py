"""Basic layers: their arithmetic, and that a draw depends only on its seed and name."""

import itertools
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

import train
from config import Config
from model import build, layers, transformer
from model.layers import Dense, Embedding, Seed, dropout, fold_in, initial_seed, named_variables
from model.masks import word_dropout
from model.transformer import Transformer

RNG = np.random.default_rng(0)
SEED = Seed(0, 1)


def randomize(module):
    for variable in module.variables:
        variable.assign(RNG.normal(size=variable.shape))
    return module


@pytest.mark.exercise("positions")
def test_embedding_is_scaled_by_the_root_of_d_model():
    embedding = Embedding(5, 16, SEED)
    table = embedding.table.numpy()
    rows = table[[[3, 0]]]
    mistakes = {
        "the vectors are not multiplied by √d_model": rows,
        "the vectors are divided by √d_model: multiply them": rows / 4,
        "the vectors are multiplied by d_model instead of √d_model": 16 * rows,
        "the vectors are multiplied by the root of the vocabulary's size": 5**0.5 * rows,
    }
    expect(embedding([[3, 0]]), 4 * rows, mistakes)


@pytest.mark.exercise("feed-forward")
def test_feed_forward_has_a_relu_between_two_projections():
    net = randomize(layers.FeedForward(Config(d_model=4, num_heads=2, dff=6), SEED))
    x = np.float32(RNG.normal(size=(2, 3, 4)))
    inner = x @ net.inner.kernel.numpy() + net.inner.bias.numpy()

    def outer(hidden):
        return hidden @ net.outer.kernel.numpy() + net.outer.bias.numpy()

    right = outer(np.maximum(0, inner))
    mistakes = {
        "the ReLU is missing: two projections in a row are one projection": outer(inner),
        "the ReLU is after the second projection: it must be between the two": (
            np.maximum(0, outer(inner))
        ),
        "the nonlinearity is GELU: the paper has ReLU": outer(tf.nn.gelu(inner).numpy()),
        "x is added: the layer adds the residual, not the network": x + right,
    }
    expect(net(x), right, mistakes)


@pytest.mark.exercise("layer-norm")
def test_layer_norm_equals_keras():
    norm = randomize(layers.LayerNorm(8))
    keras = tf.keras.layers.LayerNormalization(epsilon=1e-6)
    x = np.float32(3 + 2 * RNG.normal(size=(2, 5, 8)))
    keras.build(x.shape)
    keras.set_weights([norm.scale, norm.offset])
    scale, offset = norm.scale.numpy(), norm.offset.numpy()
    centered, variance = x - x.mean(-1, keepdims=True), x.var(-1, keepdims=True)

    def over(axes, ddof=0):
        deviation = np.sqrt(x.var(axes, ddof=ddof, keepdims=True) + 1e-6)
        return (x - x.mean(axes, keepdims=True)) / deviation * scale + offset

    mistakes = {
        "mean and variance are over the positions: each position has its own": over(1),
        "mean and variance are over several positions: each has its own": over((1, 2)),
        "mean and variance are over the whole batch: each position has its own": over((0, 1, 2)),
        "the mean is not subtracted": x / np.sqrt((x * x).mean(-1, keepdims=True)) * scale + offset,
        "x is divided by the variance instead of its square root": (
            centered / variance * scale + offset
        ),
        "the variance is divided by n − 1 instead of n": over(-1, ddof=1),
        "scale and offset are missing": centered / np.sqrt(variance + 1e-6),
    }
    expect(norm(x), keras(x), mistakes)
    constant = norm(tf.ones((1, 8)))
    mistakes = {"a constant vector becomes NaN: EPSILON is missing": np.any(np.isnan(constant))}
    expect(constant, [norm.offset], mistakes)
    small, deviation = 1e-3 * x, 1e-3 * np.sqrt(variance)
    outside = 1e-3 * centered / (deviation + 1e-6) * scale + offset
    after = {"EPSILON is added to the square root: add it to the variance": outside}
    expect(norm(small), keras(small), after, rtol=1e-4)


@pytest.mark.exercise("dropout")
def test_dropout_without_a_seed_is_the_identity():
    x = tf.ones((3, 4))
    assert dropout(x, 0.9, None) is x


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.exercise("dropout")
def test_dropout_zeroes_its_rate_and_keeps_the_mean(rate):
    dropped = dropout(tf.ones((100, 1000)), rate, SEED).numpy()
    exchanged = {f"{1 - rate:.0%} is dropped instead of {rate:.0%}": 1 - rate}
    expect(np.mean(dropped == 0), rate, exchanged, atol=0.01)
    mistakes = {
        "what is kept is not scaled up: the mean falls": 1.0,
        "what is kept is multiplied by 1 / rate instead of 1 / (1 − rate)": 1 / rate,
    }
    expect(np.max(dropped), 1 / (1 - rate), mistakes)
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-6)
    assert np.mean(dropped) == pytest.approx(1, abs=0.02)


@pytest.mark.exercise("dropout")
def test_dropout_draws_are_independent():
    dropped = dropout(tf.ones((4000, 5)), 0.5, SEED).numpy() == 0
    rows = {"one draw decides about a whole row: each number needs its own": True}
    expect(np.all(dropped == dropped[:, :1]), False, rows)
    assert abs(np.corrcoef(dropped.T) - np.eye(5)).max() < 0.06
    assert abs(np.corrcoef(dropped[:-1].ravel(), dropped[1:].ravel())[0, 1]) < 0.03


@pytest.mark.exercise("dropout")
def test_dropout_depends_on_run_seed_step_and_name():
    def mask(run_seed, step, name):
        return dropout(tf.ones(64), 0.5, fold_in(layers.step_seed(run_seed, step), name)).numpy()

    random = {"the draws do not depend on the seed only: two equal calls differ": True}
    expect(mask(0, 1, "here"), mask(0, 1, "here"), random)
    masks = [mask(0, 1, "here"), mask(1, 1, "here"), mask(0, 2, "here"), mask(0, 1, "there")]
    for one, other in itertools.combinations(masks, 2):
        assert np.any(one != other)


@pytest.mark.parametrize(("drop", "value"), [(dropout, 1.0), (word_dropout, 7)])
def test_a_rate_can_depend_on_the_number_of_updates(drop, value):
    """It is then a tensor in a graph."""

    @tf.function(autograph=False)
    def drop_from_update_5(update):
        seed = layers.step_seed(0, update)
        rate = tf.where(seed.step < 5, 0.0, 0.5)
        return drop(tf.fill((1, 1000), value), rate, seed)

    np.testing.assert_array_equal(drop_from_update_5(tf.constant(4)), np.full((1, 1000), value))
    assert 400 < np.count_nonzero(drop_from_update_5(tf.constant(5))) < 600


def test_folding_in_two_names_does_not_commute():
    a_then_b = fold_in(fold_in(SEED, "a"), "b")
    assert a_then_b != fold_in(fold_in(SEED, "b"), "a")
    assert a_then_b == fold_in(fold_in(SEED, "a"), "b")
    assert fold_in(None, "here") is None


def test_initial_weights_have_the_variance_of_their_formulas():
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
    """Randomly initialized variables: all but biases, scales and offsets."""
    return [v.numpy() for v in module.trainable_variables if v.shape.rank > 1]


def assert_same_draws(one, other):
    for mine, theirs in zip(draws(one), draws(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("change", [{"norm": "post"}, {"dropout_rate": 0.5}, {"num_layers": 3}])
def test_a_change_elsewhere_leaves_initial_weights_unchanged(change):
    one, other = fresh(), fresh(**change)
    for mine, theirs in ((one.encoder, other.encoder), (one.decoder, other.decoder)):
        assert_same_draws(mine.embedding, theirs.embedding)
        assert_same_draws(mine.positions, theirs.positions)
        assert_same_draws(mine.layers[1], theirs.layers[1])


def test_another_seed_changes_all_initial_weights():
    assert_same_draws(fresh(seed=5), fresh(seed=5))
    for mine, theirs in zip(draws(fresh(seed=5)), draws(fresh(seed=6)), strict=True):
        assert np.mean(mine == theirs) < 0.01


def test_no_two_draws_of_a_model_share_a_seed(monkeypatch):
    seeds = []

    def spy(function):
        def call(*arguments):
            seeds.append(arguments[-1])  # the seed comes last
            return function(*arguments)

        return call

    for name in ("glorot_uniform", "normal"):
        monkeypatch.setattr(layers, name, spy(getattr(layers, name)))
    monkeypatch.setattr(transformer, "dropout", spy(dropout))
    model = fresh(tie_embeddings=False, positions="none")
    matrices = 2 * (4 + 2) + 2 * (4 + 4 + 2) + 3  # two layers each way, embeddings, output
    assert len(seeds) == matrices
    ids, seed, mask = np.int32([[1, 2, 3]]), Seed(0, 0), tf.constant(True)
    model.decode(ids, model.encode(ids, mask, seed)[0], mask, mask, seed)
    assert len(seeds) == matrices + 2 * 2 + 2 * 3 + 2  # after each sublayer and both embeddings
    assert len({tuple(seed) for seed in seeds}) == len(seeds)


def test_matmul_multiplies_in_its_dtype_and_returns_float32():
    x, w = (tf.constant(RNG.normal(size=(64, 64)), tf.float32) for _ in range(2))
    exact = x.numpy().astype(float) @ w.numpy().astype(float)
    np.testing.assert_allclose(layers.matmul(x, w, "float32"), exact, atol=1e-4)
    low = layers.matmul(x, w, "bfloat16")
    assert low.dtype == tf.float32
    assert 1e-3 < np.abs(low - exact).max() < 0.3
    transposed = layers.matmul(x, tf.transpose(w), "bfloat16", transpose_b=True)
    np.testing.assert_allclose(transposed, low, atol=0.1)


def test_bfloat16_is_used_for_products_with_weights_only():
    config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, precision="bfloat16", shards=1)
    model = Transformer(config, 9, 9)
    step = train.make_train_step(model, train.make_optimizer(model, config), config)
    operations = step.get_concrete_function().graph.get_operations()
    low = [op for op in operations if any(x.dtype == tf.bfloat16 for x in op.outputs)]
    assert sum(op.type == "MatMul" for op in low) == 3 * (6 + 10 + 1)
    assert {op.type for op in low} <= {"MatMul", "Cast"}


@pytest.mark.parametrize(
    "flags",
    [{"norm": "pre"}, {"norm": "post", "tie_embeddings": False}, {"model": "recurrent"}]
    + [{"model": "classifier"}],
)
def test_in_float32_shares_the_variables_and_multiplies_in_float32(flags):
    config = Config(num_layers=1, d_model=8, num_heads=2, dff=8, precision="bfloat16", **flags)
    model = build(config, 9, 9)
    twin = layers.in_float32(model)
    shared = {id(variable) for variable in twin.variables}
    assert shared == {id(variable) for variable in model.variables}

    def dtypes(model):
        kinds = (Dense, layers.TiedProjection)
        return {part.compute_dtype for part in model.submodules if isinstance(part, kinds)}

    assert dtypes(model) == {"bfloat16"} and dtypes(twin) == {"float32"}
    assert initial_seed(0) != initial_seed(1)


def test_a_variable_that_has_no_path_is_described():
    class Outer(tf.Module):
        def __init__(self):
            self.inner = Dense(2, 3, SEED)
            self.inner.others = MappingProxyType({"a": tf.Variable(tf.zeros((4, 5)))})

    with pytest.raises(ValueError, match=r"Dense .* shape \(4, 5\)"):
        named_variables(Outer())


def test_variables_are_named_by_their_path_wherever_they_are_as_in_checkpoints(tmp_path):
    class Parts(tf.Module):
        def __init__(self):
            self._scale = tf.Variable(0.0)
            self.dense = {"a": Dense(2, 3, SEED)}
            self.pair = (tf.Variable(1.0), [tf.Variable(2.0)])
            self.own = self  # a cycle
            self.shallow = self.pair[0]  # a shorter path, set later

    parts = Parts()
    names = named_variables(parts)
    assert set(names) == {"dense/a/kernel", "dense/a/bias", "shallow", "pair/1/0", "_scale"}
    assert names["pair/1/0"] is parts.pair[1][0]
    path = tf.train.Checkpoint(model=parts).save(str(tmp_path / "ckpt"))
    saved = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    assert {f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in names} < set(saved)
    assert sum(name.startswith("model/") for name in saved) == len(names)
