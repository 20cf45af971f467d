"""Plan the batches of an epoch. Their order is a pure function of the seed and the epoch."""

import numpy as np

from data.arrays import Pairs, Text


def plan_batches(
    data: Pairs | Text,
    batch_tokens: int,
    batch_sentences: int,
    seed: int | None = None,
    epoch: int = 0,
) -> list[np.ndarray]:
    """Divide data into the batches of an epoch. Each is an argument of `data.batch`."""
    plan = plan_blocks if isinstance(data, Text) else plan_pairs
    return plan(data, batch_tokens, batch_sentences, seed, epoch)


def plan_blocks(
    text: Text, batch_tokens: int, batch_sentences: int, seed: int | None, epoch: int
) -> list[np.ndarray]:
    """Divide a text into blocks, and group these into batches, (rows, 2) each.

    Every token is in exactly one block. The length of the first block, and so where the others
    begin, and their order are drawn from (seed, epoch). Without a seed, nothing is random: the
    first block has full length. A batch has at least one block, and at most `batch_sentences`
    blocks and `batch_tokens` tokens.
    """
    random = None if seed is None else np.random.default_rng([seed, epoch])
    first = text.block if random is None else random.integers(1, text.block + 1)
    count = len(text.tokens.ids)
    bounds = np.concatenate([[0], np.arange(first, count, text.block), [count]])
    blocks = np.stack([bounds[:-1], bounds[1:]], axis=1)  # (blocks, 2)
    if random is not None:
        blocks = random.permutation(blocks)
    rows = max(1, min(batch_tokens // text.block, batch_sentences))
    return np.split(blocks, range(rows, len(blocks), rows))


def plan_pairs(
    pairs: Pairs, batch_tokens: int, batch_sentences: int, seed: int | None, epoch: int
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
