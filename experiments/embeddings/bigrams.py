"""Check of bigrams.patch."""

import numpy as np

from model.classifier import Bigrams
from model.layers import Seed

RANDOM = np.random.default_rng(0)


def test_pairs_of_neighbouring_words_have_vectors():
    embedding = Bigrams(11, 4, Seed(0, -1))
    embedding.pairs.assign(RANDOM.normal(size=embedding.pairs.shape))
    ids = np.int32([[5, 6, 7, 3, 0], [6, 0, 7, 10, 3]])  # two texts with eos; one word is dropped
    expected, vectors = embedding.table.numpy()[ids], embedding.pairs.numpy()
    for place, (first, second) in {(0, 1): (5, 6), (0, 2): (6, 7), (1, 3): (7, 10)}.items():
        expected[place] += vectors[(first * 1_000_003 + second) % 2**18]
    np.testing.assert_allclose(embedding(ids), 2 * expected, rtol=1e-6)  # √d_model = 2
