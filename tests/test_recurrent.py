"""The recurrent encoder-decoder beside Keras' own layers with the same weights.

Who sees whom, padding, gradients and cached decoding: test_transformer.py and test_decoding.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from model.loss import teacher_forcing
from model.recurrent import GRU, Bidirectional

keras = tf.keras
SEED = tf.constant([0, -1], tf.int64)
REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)


def random(*shape):
    return np.float32(np.random.default_rng(len(shape)).normal(size=shape))


def randomised(module):
    """All variables random: a bias of 0 hides where it is added."""
    rng = np.random.default_rng(0)
    for variable in module.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return module


def keras_weights(gru):
    """A GRU's variables as Keras has them."""
    biases = tf.stack([gru.input.bias, gru.recurrent.bias])
    return [gru.input.kernel.numpy(), gru.recurrent.kernel.numpy(), biases.numpy()]


def test_a_gru_is_keras_gru():
    x, h, gru = random(3, 5, 6), random(3, 4), randomised(GRU(6, 4, SEED))
    twin = keras.layers.GRU(4, return_sequences=True)
    twin.build(x.shape)
    twin.set_weights(keras_weights(gru))
    ours, theirs = gru(x, REAL, h).numpy(), twin(x, mask=REAL, initial_state=h).numpy()
    np.testing.assert_allclose(ours[REAL], theirs[REAL], atol=1e-5)
    # At padding the state stays what it was.
    np.testing.assert_array_equal(ours[1, 2], ours[1, 4])
    np.testing.assert_array_equal(ours[2, 0], ours[2, 4])


def test_both_directions_are_keras_bidirectional():
    x, both = random(3, 5, 6), randomised(Bidirectional(6, SEED))
    twin = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True))
    twin.build(x.shape)
    twin.set_weights([*keras_weights(both.forwards), *keras_weights(both.backwards)])
    ours, theirs = both(x, REAL).numpy(), twin(x, mask=REAL).numpy()
    np.testing.assert_allclose(ours[REAL], theirs[REAL], atol=1e-5)


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_attention_is_keras_attention(tiny, kind):
    cell = tiny(model="recurrent", recurrent_attention=kind).cell
    memory, query = random(3, 5, 8), random(3, 8)
    source = {"memory": memory, "keys": cell.keys(memory), "mask": REAL[:, np.newaxis]}
    context, weights = cell.attend(query, source)
    if kind == "dot":
        layer, asked = keras.layers.Attention(), query
    else:
        layer, asked = keras.layers.AdditiveAttention(), cell.query(query)
    inputs = [asked[:, np.newaxis], memory, source["keys"]]  # query, value, key
    if kind == "additive":
        layer.build([x.shape for x in inputs])
        layer.set_weights([cell.score.numpy()])
    theirs, their_weights = layer(inputs, mask=[None, REAL], return_attention_scores=True)
    np.testing.assert_allclose(context, theirs[:, 0], atol=1e-5)
    np.testing.assert_allclose(weights, their_weights[:, 0], atol=1e-5)
    assert not np.any(weights.numpy()[~REAL])


def test_the_summary_is_the_last_state_of_each_direction(tiny):
    """Not of the padding's end: the longer the batch, the more a wrong place would matter."""
    model = tiny(model="recurrent", recurrent_attention="none")
    memory, mask = random(3, 5, 8), REAL[:, np.newaxis, np.newaxis]
    memory[1, 3:, :4], memory[2, 1:, :4] = memory[1, 2, :4], memory[2, 0, :4]  # as a GRU leaves it
    source, _ = model.init_decoder(memory, mask)
    for row, last in enumerate([4, 2, 0]):
        expected = np.concatenate([memory[row, last, :4], memory[row, 0, 4:]])
        np.testing.assert_array_equal(source["summary"][row], expected)


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_the_weights_of_attention_are_given_and_sum_to_one(tiny, kind):
    model = tiny(model="recurrent", recurrent_attention=kind)
    source, target = np.int32([[3, 4, 5, 2], [7, 2, 0, 0]]), np.int32([[1, 6], [1, 5]])
    weights = model.attention(source, target)["cross"].numpy()
    assert weights.shape == (2, 1, 1, 2, 4)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
    assert not np.any(weights[1, ..., 2:])


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_the_parameters_are_those_that_the_papers_count(tiny, kind):
    layers, size, vocab = 2, 8, 11
    model = tiny(model="recurrent", recurrent_attention=kind, num_layers=layers)

    def gru(d_in, units):
        return 3 * units * (d_in + units + 2)  # Keras' two biases

    below = size if kind == "dot" else 2 * size  # the context comes in with the embedding
    count = vocab * size + layers * 2 * gru(size, size // 2) + layers * size * (size + 1)
    count += gru(below, size) + (layers - 1) * gru(size, size) + (2 * size + 1) * size
    count += 2 * size * (size + 1) + size if kind == "additive" else 0
    assert sum(variable.shape.num_elements() for variable in model.trainable_variables) == count


def test_dropout_hangs_on_the_seed(tiny):
    source, target = np.int32([[3, 4, 5, 2]]), np.int32([[1, 6, 7, 2]])
    model = tiny(model="recurrent", dropout_rate=0.3)
    without = tiny(model="recurrent", dropout_rate=0.0)
    seven, eight = tf.constant([[0, 7], [0, 8]], tf.int64)
    logits = lambda model, *seed: teacher_forcing(model, source, target, *seed)[0].numpy()  # noqa: E731
    np.testing.assert_array_equal(logits(model), logits(without))
    np.testing.assert_array_equal(logits(model, seven), logits(model, seven))
    assert np.max(np.abs(logits(model, seven) - logits(model))) > 0.01
    assert np.max(np.abs(logits(model, seven) - logits(model, eight))) > 0.01


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_a_cell_looks_before_its_step_or_after_it_as_its_paper_has_it(tiny, kind):
    cell = tiny(model="recurrent", recurrent_attention=kind).cell
    memory, x, h = random(3, 5, 8), random(3, 8), [random(3, 8) + i for i in range(2)]
    source = {"memory": memory, "keys": cell.keys(memory), "mask": REAL[:, np.newaxis],
              "summary": random(3, 8) - 1}  # fmt: skip
    low, top = cell.layers

    def steps(x):
        after = low.step(low.input(x), h[0])
        return [after, top.step(top.input(after), h[1])]

    if kind == "dot":  # Luong et al.: the new top state looks
        expected = steps(x)
        context, _ = cell.attend(expected[1], source)
    else:  # Bahdanau et al.: the old top state looks, and what it sees comes in with the word
        context = source["summary"] if kind == "none" else cell.attend(h[1], source)[0]
        expected = steps(np.concatenate([x, context], axis=1))
    found, found_context, _ = cell(x, h, source)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found_context, context, atol=1e-6)
