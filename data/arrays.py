"""Encoded texts as arrays, which may be memory-mapped: pairs, and the text of a language model."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Sequences of ids, concatenated: sequence i is ids[offsets[i] : offsets[i + 1]].

    Either array may be memory-mapped.
    """

    ids: np.ndarray  # (tokens,), int32; uint16 in the cache
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


class Text(NamedTuple):
    """The texts of a language model, one after another, which are divided into blocks.

    A block is a range of tokens that are predicted: the indices of its first one, and of the one
    after its last. The model reads one token less, and the one before them.
    """

    tokens: Ragged  # one sequence for each text, or for each line of a file
    start: int  # the id before the first token
    block: int  # maximum tokens of a block

    def batch(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source (rows, 0) and the target (rows, longest + 1), padded with 0.

        blocks: (rows, 2). The first id of a target is that of the token before the block.
        """
        first, stop = blocks[:, :1], blocks[:, 1:]  # (rows, 1)
        index = first - 1 + np.arange((stop - first).max() + 1)  # (rows, longest + 1)
        ids = self.tokens.ids[np.clip(index, 0, len(self.tokens.ids) - 1)]
        ids = np.where(index < 0, self.start, ids)
        return np.zeros((len(blocks), 0), np.int32), np.where(index < stop, ids, 0).astype(np.int32)
