"""Checks of value-residual.patch."""

import numpy as np
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention
from model.language_model import LanguageModel
from model.layers import Seed
from model.masks import look_ahead_mask, padding_mask
from model.transformer import Transformer

RANDOM = np.random.default_rng(0)
IDS = np.int32([[5, 6, 7, 8, 2]])


def randomized(module):
    for variable in module.variables:
        variable.assign(RANDOM.normal(size=variable.shape) / 2)
    return module


def test_values_are_the_mean_of_those_of_this_layer_and_of_the_first():
    attention = randomized(MultiHeadAttention(Config(d_model=16, num_heads=4), Seed(0, -1)))
    x, first_values = np.float32(RANDOM.normal(size=(2, 5, 16))), RANDOM.normal(size=(2, 4, 5, 4))
    _, weights, (_, values) = attention.self_attend(x, None)
    y, same_weights, _ = attention.self_attend(x, None, first_values=np.float32(first_values))
    mixed = (first_values + values) / 2  # (batch, num_heads, length, head_dim)
    expected = attention.output(attention.merge_heads(weights @ np.float32(mixed)))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(same_weights, weights)


def spy_on_values(model, monkeypatch):
    """Return, for each call of `self_attend`, its own values and those of the first layer."""
    calls, original = [], MultiHeadAttention.self_attend

    def spy(attention, x, mask, seed=None, cache=None, first_values=None):
        result = original(attention, x, mask, seed, cache, first_values)
        calls.append((result[2][1], first_values))
        return result

    monkeypatch.setattr(MultiHeadAttention, "self_attend", spy)
    return calls


def test_all_later_layers_of_a_stack_get_the_values_of_its_first_layer(monkeypatch):
    config = Config(num_layers=3, d_model=16, num_heads=4, dff=24)
    model = randomized(Transformer(config, 11, 11))
    calls, mask = spy_on_values(model, monkeypatch), padding_mask(IDS)
    model.decode(IDS, model.encode(IDS, mask)[0], look_ahead_mask(5), mask)
    assert len(calls) == 6
    for stack in (calls[:3], calls[3:]):
        assert stack[0][1] is None
        for _, first_values in stack[1:]:
            np.testing.assert_array_equal(first_values, stack[0][0])


def test_in_decoding_the_first_values_are_those_of_all_positions(monkeypatch):
    config = Config(num_layers=2, d_model=16, num_heads=4, dff=24)
    model = randomized(Transformer(config, 11, 11))
    state = model.init_decode(IDS)
    calls = spy_on_values(model, monkeypatch)
    for length, token in enumerate([1, 7, 8], start=1):
        calls.clear()
        _, state = model.decode_step(tf.constant([token]), state)
        assert calls[1][1].shape == (1, 4, length, 4)
        np.testing.assert_array_equal(calls[1][1], state["caches"][0][1])


def test_a_language_model_decodes_as_it_was_trained():
    """Also after a beginning that it reads in one pass."""
    sizes = {"num_layers": 2, "d_model": 16, "num_heads": 4, "dff": 24}
    model = LanguageModel(Config(model="language_model", **sizes), 11, 11)
    ids = RANDOM.integers(4, 11, (3, 9), np.int32)
    expected = tf.reshape(model.teacher_forced(ids[:, :0], ids).logits, (3, 8, 11))
    for start in (0, 4):
        state = model.init_decode(ids[:, :start])
        for i in range(start, 8):
            logits, state = model.decode_step(tf.constant(ids[:, i]), state)
            np.testing.assert_allclose(logits, expected[:, i], rtol=1e-4, atol=1e-5)
