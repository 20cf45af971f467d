"""Recurrent encoder-decoder, compared with Keras layers with the same weights.

Causality, padding, gradients and cached decoding: test_invariants.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from model.layers import initial_seed
from model.recurrent import Bidirectional

keras = tf.keras
SEED = initial_seed(0)
REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)


def random(*shape):
    return np.float32(np.random.default_rng(len(shape)).normal(size=shape))


def keras_weights(gru):
    """Return the variables of a GRU in the order of Keras."""
    biases = tf.stack([gru.input.bias, gru.recurrent.bias])
    return [gru.input.kernel.numpy(), gru.recurrent.kernel.numpy(), biases.numpy()]


def test_bidirectional_gru_equals_keras():
    x, layer = random(3, 5, 6), Bidirectional(6, SEED)
    for variable in layer.variables:  # also the biases, which are 0 at first
        variable.assign(0.5 * random(*variable.shape))
    twin = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True))
    twin.build(x.shape)
    twin.set_weights([*keras_weights(layer.forward), *keras_weights(layer.backward)])
    ours, theirs = layer(x, REAL).numpy(), twin(x, mask=REAL).numpy()
    np.testing.assert_allclose(ours[REAL], theirs[REAL], atol=1e-5)
    forward = ours[..., :3]  # its state does not change at padding
    np.testing.assert_array_equal(forward[1:, 4], [forward[1, 2], forward[2, 0]])


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_attention_equals_keras(tiny, kind):
    cell = tiny(d_model=8, model="recurrent", recurrent_attention=kind).cell
    memory, query = random(3, 5, 8), random(3, 2, 8)  # two hypotheses per source
    keys = cell.keys(memory)
    encoded = {"memory": memory, "keys": keys, "mask": REAL[:, np.newaxis]}
    context, weights = cell.attend(query, encoded)
    if kind == "dot":
        layer = keras.layers.Attention()
    else:
        layer, query = keras.layers.AdditiveAttention(), cell.query(query)
    inputs = [query, memory, keys]  # query, value, key
    if kind == "additive":
        layer.build([x.shape for x in inputs])
        layer.set_weights([cell.score.numpy()])
    theirs, their_weights = layer(inputs, mask=[None, REAL], return_attention_scores=True)
    np.testing.assert_allclose(context, theirs, atol=1e-5)
    np.testing.assert_allclose(weights, their_weights, atol=1e-5)
    assert not np.any(weights.numpy()[np.repeat(~REAL[:, np.newaxis], 2, axis=1)])


def test_summary_is_the_last_state_of_each_direction_before_padding(tiny):
    model = tiny(d_model=8, model="recurrent", recurrent_attention="none")
    memory, mask = random(3, 5, 8), REAL[:, np.newaxis, np.newaxis]
    memory[1, 3:, :4] = memory[1, 2, :4]  # as a GRU does at padding
    memory[2, 1:, :4] = memory[2, 0, :4]
    source, _ = model.init_decoder(memory, mask)
    for row, last in enumerate([4, 2, 0]):
        expected = np.concatenate([memory[row, last, :4], memory[row, 0, 4:]])
        np.testing.assert_array_equal(source["summary"][row, 0], expected)


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_cell_attends_before_or_after_its_update_as_in_its_paper(tiny, kind):
    cell = tiny(d_model=8, model="recurrent", recurrent_attention=kind).cell
    # Two hypotheses of each of three sources.
    memory, x, h = random(3, 5, 8), random(3, 2, 8), [random(3, 2, 8) + i for i in range(2)]
    mask, summary = REAL[:, np.newaxis], random(3, 1, 8) - 1
    source = {"memory": memory, "keys": cell.keys(memory), "mask": mask, "summary": summary}
    low, top = cell.layers

    def update(x):
        state = low.step(low.input(x), h[0])
        return [state, top.step(top.input(state), h[1])]

    if kind == "dot":  # Luong et al.: the query is the new top state
        expected = update(x)
        expected_context = cell.attend(expected[1], source)[0]
    else:  # Bahdanau et al.: the query is the old top state, and the context is an input
        expected_context = np.repeat(summary, 2, 1)
        if kind != "none":
            expected_context = cell.attend(h[1], source)[0]
        expected = update(np.concatenate([x, expected_context], axis=-1))
    new_h, context, _ = cell(x, h, source)
    np.testing.assert_allclose(new_h, expected, atol=1e-6)
    np.testing.assert_allclose(context, expected_context, atol=1e-6)
