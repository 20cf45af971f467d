"""The corpus `mini`. Its grammar was checked against given translations, and is frozen: the hashes
of its splits imply that it still passes.
"""

import zlib
from functools import cache

import pytest

from data import mini

# crc32 of the pairs of each split
PINNED = {
    "train": 2383496968,
    "validation": 2735644008,
    "test": 1238479876,
    "compositional": 3052356342,
}


@cache
def corpus(split):
    return mini.generate(split)


@pytest.mark.parametrize("split", PINNED)
def test_the_splits_are_unchanged(split):
    text = "\n".join("\t".join(pair) for pair in corpus(split))
    assert zlib.crc32(text.encode()) == PINNED[split], (
        "the grammar has changed, and so every score on `mini`: read translations of each tag, "
        "name the change in the log, and pin the new hash"
    )


@pytest.mark.parametrize("split", ["train", "compositional"])
def test_a_smaller_size_is_a_prefix_and_another_seed_gives_other_pairs(split):
    assert mini.generate(split, 200) == corpus(split)[:200]
    assert mini.generate(split, 50, seed=1) != mini.generate(split, 50, seed=2)


def test_unknown_splits_and_invalid_sizes_are_rejected():
    with pytest.raises(ValueError, match=str(mini.LIMITS["test"])):
        mini.generate("test", mini.LIMITS["test"] + 1)
    with pytest.raises(ValueError, match="dev"):
        mini.generate("dev")


def test_no_source_is_in_two_splits_also_with_other_seeds():
    split_of = {}
    for split in PINNED:
        for pair in [*corpus(split), *mini.generate(split, 500, seed=1)]:
            key = pair.source.lower().removesuffix(".")  # however it is written
            assert split_of.setdefault(key, split) == split
