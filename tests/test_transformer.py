"""The Transformer: positions, dropout, norms and variables. See also test_invariants.py."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import transformer
from model.layers import Seed, dropout, fold_in

both_norms = pytest.mark.parametrize("norm", ["post", "pre"])

SOURCE = np.int32([[3, 4, 5, 2]])
TARGET = np.int32([[1, 3, 4, 5, 6, 7, 2]])


# Positions


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_order_of_the_source_matters_with_positions(tiny, positions):
    model, swapped = tiny(positions=positions), SOURCE[:, [1, 0, 2, 3]]
    logits = model.teacher_forced(SOURCE, TARGET).logits
    assert np.max(np.abs(logits - model.teacher_forced(swapped, TARGET).logits)) > 1e-3


def test_without_positions_the_source_is_a_bag_of_words(tiny):
    model, swapped = tiny(positions="none"), SOURCE[:, [1, 0, 2, 3]]
    logits = model.teacher_forced(SOURCE, TARGET).logits
    np.testing.assert_allclose(model.teacher_forced(swapped, TARGET).logits, logits, atol=1e-5)


# Dropout


@both_norms
def test_dropout_follows_every_sublayer_and_both_embeddings_in_training(tiny, norm, monkeypatch):
    model, seeds = tiny(norm=norm, num_layers=3, dropout_rate=0.3), []

    def spy(x, rate, seed):
        assert rate == 0.3
        seeds.append(seed)
        return dropout(x, rate, seed)

    monkeypatch.setattr(transformer, "dropout", spy)
    places = 2 + 3 * (2 + 3)
    model.teacher_forced(SOURCE, TARGET)
    assert seeds == [None] * places
    seeds.clear()
    model.teacher_forced(SOURCE, TARGET, Seed(0, 7))
    assert None not in seeds
    assert len(set(seeds)) == len(seeds) == places


@both_norms
def test_dropout_applies_to_a_sublayer_and_not_to_the_residual(norm):
    config = Config(d_model=64, num_heads=2, dropout_rate=0.5, norm=norm)
    layer, seed = transformer.Layer(config, Seed(0, -1)), Seed(0, 7)
    x, y, z = np.float32(np.random.default_rng(0).normal(size=(3, 2, 5, 64)))
    layer.attention.self_attend = lambda x, mask, seed, cache: (y, None, None)
    layer.feed_forward = lambda inputs: z
    expected = x
    for name, output in (("attention", y), ("feed_forward", z)):
        kept = dropout(tf.ones_like(output), 0.5, fold_in(seed, name))  # 0 or 1 / (1 − rate)
        expected = getattr(layer, f"{name}_post_norm")(expected + output * kept)
    np.testing.assert_allclose(layer(x, None, seed)[0], expected, atol=1e-5)


def test_a_decoder_layer_needs_the_memory():
    layer = transformer.Layer(Config(d_model=8, num_heads=2, dff=4), Seed(0, -1), cross=True)
    with pytest.raises(TypeError):
        layer(tf.zeros((1, 2, 8)), None)


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_logits_depend_on_the_seed_and_without_one_there_is_no_dropout(tiny, kind):
    model, without = (tiny(model=kind, dropout_rate=rate) for rate in (0.3, 0.0))

    def logits(model, *seed):
        return np.array(model.teacher_forced(SOURCE, TARGET, *seed).logits)

    step_7, step_8 = Seed(0, 7), Seed(0, 8)
    np.testing.assert_array_equal(logits(model), logits(without))
    np.testing.assert_array_equal(logits(model, step_7), logits(model, step_7))
    assert np.max(np.abs(logits(model, step_7) - logits(model))) > 0.01
    assert np.max(np.abs(logits(model, step_7) - logits(model, step_8))) > 0.01


# Variables


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("shared_vocabulary", [True, False])
@pytest.mark.parametrize(("norm", "positions"), [("post", "sinusoidal"), ("pre", "learned")])
def test_all_variables_exist_after_init_and_their_number_is_as_computed(
    tiny, norm, positions, shared_vocabulary, tie_embeddings
):
    """Section 3, counted on paper. A variable created in a call would be unknown to Adam."""
    source_vocab = target_vocab = 11
    if not shared_vocabulary:
        source_vocab = 13
    layers, d_model, heads, key_dim, dff, longest = 2, 16, 4, 5, 24, 20
    model = tiny(
        source_vocab,
        target_vocab,
        num_layers=layers,
        key_dim=key_dim,
        max_length=longest,
        norm=norm,
        positions=positions,
        shared_vocabulary=shared_vocabulary,
        tie_embeddings=tie_embeddings,
    )
    after_init = [variable.ref() for variable in model.trainable_variables]

    width = heads * key_dim
    attention = 3 * (d_model * width + width) + (width * d_model + d_model)
    feed_forward = (d_model * dff + dff) + (dff * d_model + d_model)
    layer_norm = 2 * d_model
    count = layers * (attention + feed_forward + 2 * layer_norm)  # the encoder
    count += layers * (2 * attention + feed_forward + 3 * layer_norm)  # the decoder
    if norm == "pre":
        count += 2 * layer_norm  # one at the end of each stack
    if positions == "learned":
        count += 2 * (longest + 1) * d_model  # bos or eos in addition to the longest sentence
    count += target_vocab * d_model
    if not (tie_embeddings and shared_vocabulary):
        count += source_vocab * d_model
    if not tie_embeddings:
        count += d_model * target_vocab + target_vocab
    assert sum(variable.shape.num_elements() for variable in model.trainable_variables) == count

    model.teacher_forced(SOURCE, TARGET, Seed(0, 7))
    model.decode_step(tf.constant([1]), model.init_decode(SOURCE))
    assert [variable.ref() for variable in model.variables] == after_init
