"""Checks of fixnorm.patch."""

import numpy as np

from model.layers import Embedding, Seed, TiedProjection

RANDOM = np.random.default_rng(0)


def make_embedding():
    embedding = Embedding(11, 16, Seed(0, -1))
    embedding.table.assign(RANDOM.normal(size=(11, 16)) * RANDOM.uniform(0.1, 10, size=(11, 1)))
    return embedding, embedding.table.numpy() / np.linalg.norm(embedding.table, axis=1)[:, None]


def test_words_have_vectors_of_equal_length():
    embedding, directions = make_embedding()
    ids = np.int32([[3, 7, 0], [10, 3, 1]])
    np.testing.assert_allclose(embedding(ids), 4 * directions[ids], rtol=1e-5)  # √d_model = 4


def test_logits_are_products_with_vectors_of_length_one():
    embedding, directions = make_embedding()
    hidden = RANDOM.normal(size=(5, 16))
    logits = TiedProjection(embedding)(np.float32(hidden))
    np.testing.assert_allclose(logits, hidden @ directions.T, rtol=1e-4, atol=1e-5)


def test_initial_vectors_are_short():
    table = Embedding(1000, 16, Seed(0, -1)).table.numpy()
    assert 0.0099 < np.max(table) < 0.01 and -0.01 < np.min(table) < -0.0099
