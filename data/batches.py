"""Batches of pairs of similar length. Their order is a pure function of the seed and the epoch."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Sequences of ids, concatenated: sequence i is ids[offsets[i] : offsets[i + 1]].

    Either array may be memory-mapped.
    """

    ids: np.ndarray  # (tokens,), int32; uint16 in the cache if the vocabulary is small enough
    offsets: np.ndarray  # (sequences + 1,), int64

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        """Concatenate lists of ids."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        ids = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, lengths.sum())
        return cls(ids, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))

    @property
    def lengths(self) -> np.ndarray:
        """Number of ids of each sequence: (sequences,), int32."""
        return np.diff(self.offsets).astype(np.int32)

    def padded(self, indices: np.ndarray) -> np.ndarray:
        """Return the sequences `indices`, padded with 0: (len(indices), longest), int32."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        position = np.arange(lengths.max())
        where = np.minimum(starts[:, None] + position, len(self.ids) - 1)
        return np.where(position < lengths[:, None], self.ids[where], 0).astype(np.int32)


class Pairs(NamedTuple):
    """Encoded pairs. A source ends in eos. A target is bos … eos, or bos and a label."""

    source: Ragged
    target: Ragged

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return source (batch, source_len) and target (batch, target_len), padded with 0."""
        return self.source.padded(indices), self.target.padded(indices)


def plan_batches(
    pairs: Pairs, batch_tokens: int, batch_sentences: int, seed: int | None = None, epoch: int = 0
) -> list[np.ndarray]:
    """Group all pairs into the batches of an epoch, each an array of indices.

    A batch has at least one pair, at most `batch_sentences` pairs, and at most `batch_tokens`
    positions on its longer side, padding included. Its pairs have similar lengths, so that there is
    little padding. The grouping and the order of the batches are drawn from (seed, epoch). Without
    a seed, nothing is random: batches are in ascending order of target length.
    """
    # The arrays are as small as possible: there may be millions of pairs.
    source, target = pairs.source.lengths, pairs.target.lengths
    order = np.arange(len(source), dtype=np.int32)
    minor = source
    if seed is not None:
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(order)
        # Noise of up to two tokens regroups the pairs in every epoch, for 2 % more padding.
        minor = source + random.uniform(0, 2, len(source))
    order = order[np.lexsort((minor[order], target[order]))]
    # The decoder does not get the last id of a target.
    longer = np.maximum(source, target - 1)[order]

    starts, longest = [0], 0
    for i, length in enumerate(memoryview(longer)):
        longest = max(longest, length)
        size = i + 1 - starts[-1]
        if size > 1 and (size * longest > batch_tokens or size > batch_sentences):
            starts.append(i)
            longest = length
    batches = np.split(order, starts[1:]) if len(order) else []
    return batches if seed is None else [batches[i] for i in random.permutation(len(batches))]
