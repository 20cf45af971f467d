"""Checks of t5-bias.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model.attention import scaled_dot_product_attention
from model.language_model import LanguageModel
from model.layers import Seed, trainable_variables
from model.masks import look_ahead_mask, padding_mask
from model.positions import RelativeBiases
from model.transformer import Transformer

RANDOM = np.random.default_rng(0)


def make_biases():
    return RelativeBiases(4, 1.0, Seed(0, -1))


def expected_bucket(distance, both_sides):
    """As in the authors' code, where a positive relative position is to the right."""
    count, bucket = 32, 0
    if both_sides:
        count //= 2
        bucket += count * (distance < 0)
        distance = abs(distance)
    exact = count // 2
    if distance < exact:
        return bucket + distance
    large = exact + int(np.log(distance / exact) / np.log(128 / exact) * (count - exact) + 1e-6)
    return bucket + min(large, count - 1)


@pytest.mark.parametrize("both_sides", [True, False])
def test_distances_fall_into_the_buckets_of_the_paper(both_sides):
    distances = np.arange(-300 if both_sides else 0, 301)
    buckets = make_biases().bucket(distances, both_sides).numpy()
    expected = [expected_bucket(distance, both_sides) for distance in distances]
    np.testing.assert_array_equal(buckets, expected)
    assert set(buckets) == set(range(32)) - ({16} if both_sides else set())


def test_scores_are_those_of_the_bucket_and_the_head():
    """A padding mask shows positions on both sides, a look-ahead mask does not."""
    biases = make_biases()
    table = biases.table.numpy()
    for both_sides, mask in ((True, tf.ones((1, 1, 1, 40), tf.bool)), (False, look_ahead_mask(40))):
        scores = np.reshape(biases(mask), (4, 40, 40))
        for i, j in RANDOM.integers(40, size=(200, 2)):
            if both_sides or j <= i:
                row = table[expected_bucket(i - j, both_sides)]
                np.testing.assert_array_equal(scores[:, i, j], row)
            else:
                assert np.all(scores[:, i, j] == -1e9)


def test_a_step_of_decoding_has_the_row_of_its_position():
    biases = make_biases()
    full = biases(look_ahead_mask(40))
    for i in (0, 1, 17, 39):
        row = biases(look_ahead_mask(i + 1, start=i), start=i)
        np.testing.assert_array_equal(row, full[:, i : i + 1, : i + 1])


def test_all_layers_of_a_stack_share_one_table():
    model = Transformer(Config(num_layers=3, d_model=16, num_heads=4), 11, 11)
    tables = [name for name in trainable_variables(model) if name.endswith("biases/table")]
    assert tables == ["encoder/biases/table", "decoder/biases/table"]


def test_scores_are_added_in_self_attention_of_all_layers_and_not_in_cross_attention(monkeypatch):
    config = Config(num_layers=2, d_model=16, num_heads=4, positions="none")
    model, masks, ids = Transformer(config, 11, 11), [], np.int32([[5, 6, 7, 2]])

    def spy(query, key, value, mask, *dropout):
        masks.append(mask)
        return scaled_dot_product_attention(query, key, value, mask, *dropout)

    monkeypatch.setattr("model.attention.scaled_dot_product_attention", spy)
    source_mask = padding_mask(ids)
    model.decode(ids, model.encode(ids, source_mask)[0], look_ahead_mask(4), source_mask)
    encoder, decoder = model.encoder.biases(source_mask), model.decoder.biases(look_ahead_mask(4))
    expected = [encoder, encoder, decoder, source_mask, decoder, source_mask]
    for mask, each in zip(masks, expected, strict=True):
        np.testing.assert_array_equal(mask, each)


def test_scores_are_added_to_those_of_attention():
    query, key, value = np.float32(RANDOM.normal(size=(3, 2, 4, 5, 6)))
    mask = padding_mask(np.int32([[5, 6, 7, 8, 2], [5, 6, 2, 0, 0]]))
    biases = make_biases()(mask)
    _, weights = scaled_dot_product_attention(query, key, value, biases)
    expected = tf.nn.softmax(query @ key.swapaxes(2, 3) / 6**0.5 + biases)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)
    assert np.all(weights[1, :, :, 3:] == 0)


def test_a_language_model_decodes_as_it_was_trained():
    """Also after a beginning that it reads in one pass."""
    sizes = {"num_layers": 2, "d_model": 16, "num_heads": 4, "dff": 24, "positions": "none"}
    model = LanguageModel(Config(model="language_model", **sizes), 11, 11)
    ids = RANDOM.integers(4, 11, (3, 9), np.int32)
    expected = tf.reshape(model.teacher_forced(ids[:, :0], ids).logits, (3, 8, 11))
    for start in (0, 4):
        state = model.init_decode(ids[:, :start])
        for i in range(start, 8):
            logits, state = model.decode_step(tf.constant(ids[:, i]), state)
            np.testing.assert_allclose(logits, expected[:, i], rtol=1e-4, atol=1e-5)
