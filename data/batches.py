"""Ids to padded batches of like length. The order is a pure function of (seed, epoch)."""

from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Sentences as ids, one after another: sentence i is ids[offsets[i] : offsets[i + 1]]."""

    ids: np.ndarray  # (tokens,), int32
    offsets: np.ndarray  # (sentences + 1,), int64

    @classmethod
    def of(cls, sentences):
        """From a list of lists of ids."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        ids = np.fromiter((i for row in sentences for i in row), np.int32, lengths.sum())
        return cls(ids, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))

    @property
    def lengths(self):
        """(sentences,), int64."""
        return np.diff(self.offsets)

    def padded(self, indices):
        """The sentences `indices` as one array (len(indices), longest), 0 = padding."""
        lengths = self.lengths[indices]
        place = np.arange(lengths.max())
        where = np.minimum(self.offsets[indices][:, None] + place, len(self.ids) - 1)
        return np.where(place < lengths[:, None], self.ids[where], 0).astype(np.int32)


class Pairs(NamedTuple):
    """Pairs as ids: a source ends in eos, a target is bos … eos, or bos and a label."""

    source: Rows
    target: Rows

    def batch(self, indices):
        """source (batch, source_len) and target (batch, target_len), int32."""
        return self.source.padded(indices), self.target.padded(indices)


def plan(pairs, batch_tokens, batch_sentences, seed=None, epoch=0):
    """The epoch's batches, as a list of index arrays.

    A batch holds as many pairs as fit into `batch_tokens` positions on its longer side, at the most
    `batch_sentences`, and at least one. Pairs of like length come together, so that little of a
    batch is padding; which ones, and the order of the batches, is drawn from (seed, epoch). A seed
    of None draws nothing.
    """
    source, target = pairs.source.lengths, pairs.target.lengths
    order = np.arange(len(source))
    if seed is not None:
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(order)
        # Up to two tokens of noise: new company in every epoch for 2 % more padding.
        source = source + random.uniform(0, 2, len(source))
    order = order[np.lexsort((source[order], target[order]))]
    longer = np.maximum(pairs.source.lengths, pairs.target.lengths - 1)[order]

    starts, longest = [0], 0
    for i, length in enumerate(longer.tolist()):
        longest = max(longest, length)
        count = i + 1 - starts[-1]
        if count > 1 and (count * longest > batch_tokens or count > batch_sentences):
            starts.append(i)
            longest = length
    batches = np.split(order, starts[1:]) if len(order) else []
    return batches if seed is None else [batches[i] for i in random.permutation(len(batches))]
