"""Checks of output-gate.patch."""

import numpy as np
import scipy.special
import tensorflow as tf

from config import Config
from model.attention import MultiHeadAttention
from model.layers import Seed

RANDOM = np.random.default_rng(0)


def make_attention():
    attention = MultiHeadAttention(Config(d_model=16, num_heads=4, key_dim=6), Seed(0, -1))
    for variable in attention.variables:
        variable.assign(RANDOM.normal(size=variable.shape) / 2)
    return attention


def gated(attention, x, weights, values):
    """Each head's output, times its gate, before the projection of all heads."""
    gates = scipy.special.expit(x @ attention.gate.kernel.numpy() + attention.gate.bias.numpy())
    heads = [weights[:, i] @ values[:, i] * gates[:, :, i : i + 1] for i in range(4)]
    return np.concatenate(heads, axis=-1) @ attention.output.kernel + attention.output.bias


def test_self_attention_multiplies_each_head_by_a_gate_of_its_input():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(3, 5, 16)))
    y, weights, (_, values) = attention.self_attend(x, None)
    np.testing.assert_allclose(y, gated(attention, x, weights, values), rtol=1e-4, atol=1e-5)


def test_cross_attention_multiplies_each_head_by_a_gate_of_the_decoder():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(3, 5, 16)))
    memory = attention.keys_values(np.float32(RANDOM.normal(size=(3, 7, 16))))
    y, weights = attention.cross_attend(x, memory, None)
    np.testing.assert_allclose(y, gated(attention, x, weights, memory[1]), rtol=1e-4, atol=1e-5)


def test_hypotheses_of_one_source_have_their_own_gates():
    attention, x = make_attention(), np.float32(RANDOM.normal(size=(6, 1, 16)))
    keys, values = attention.keys_values(np.float32(RANDOM.normal(size=(2, 7, 16))))
    y, _ = attention.cross_attend(x, (keys, values), None)
    copied = tf.repeat(keys, 3, axis=0), tf.repeat(values, 3, axis=0)
    np.testing.assert_allclose(y, attention.cross_attend(x, copied, None)[0], atol=1e-5)
