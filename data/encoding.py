"""Encode text as ids, in memory or into files that are memory-mapped."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from config import Config
from data.arrays import Pairs, Ragged
from data.splits import LABELS, TEXT, Row, Split
from data.tokenizer import BOS, EOS, UNK, AnyTokenizer, Labels

ID_TYPE = np.dtype(np.uint16)  # of the ids in files: a vocabulary has at most 65,536 tokens
PART = 20_000  # pairs that are encoded at a time
WINDOW = 50  # characters, on average, of the parts of a text that training may have seen


def encode(
    split: Split, source_tokenizer: AnyTokenizer, target_tokenizer: AnyTokenizer, max_length: int
) -> tuple[Pairs, int]:
    """Encode a split. Also returns the number of pairs that are longer than `max_length` tokens.

    Translations that are too long are dropped; texts with labels are cut. Raises UserError if a
    label is not in the training split.
    """
    cut = isinstance(target_tokenizer, Labels)
    sources, targets, too_long = [], [], 0
    for source, target in zip(
        source_tokenizer.encode(split.sources), target_tokenizer.encode(split.targets), strict=True
    ):
        fits = max(len(source), len(target)) <= max_length
        too_long += not fits
        if fits or cut:
            sources.append([*source[:max_length], EOS])
            targets.append([BOS, *target, *target_tokenizer.ending])
    return Pairs(Ragged.of(sources), Ragged.of(targets)), too_long


def encode_texts(
    texts: Iterable[str], tokenizer: AnyTokenizer, ending: Sequence[int] = ()
) -> Ragged:
    """Encode the texts of a language model. ending: the ids after each text."""
    return Ragged.of([[*row, *ending] for row in tokenizer.encode(texts)])


def seen_share(
    train: np.ndarray, texts: Sequence[str], tokenizer: AnyTokenizer, ending: Sequence[int] = ()
) -> float:
    """Return the share of texts that are also in the training text of a language model.

    train: its ids. The texts are divided into windows of as many tokens as `WINDOW` characters have
    on average, which are searched at all places of the training text. Those with an unknown token
    are left out. ending: the ids after each text.
    """
    ids = encode_texts(texts, tokenizer, ending).ids
    size = max(1, round(WINDOW * len(ids) / max(1, sum(map(len, texts)))))
    windows = ids[: len(ids) // size * size].reshape(-1, size)
    windows = windows[(windows != UNK).all(axis=1)]
    hashes = hash_windows(windows.ravel(), size)[::size]
    seen = np.zeros(len(hashes), bool)
    for start in range(0, len(train), 1 << 20):
        seen |= np.isin(hashes, hash_windows(train[start : start + (1 << 20) + size - 1], size))
    lengths = [len(text) for text in tokenizer.decode(row[row != EOS] for row in windows)]
    return float(np.average(seen, weights=lengths)) if len(seen) else 0.0


def hash_windows(ids: np.ndarray, size: int) -> np.ndarray:
    """Hash the window of `size` ids that begins at each place: (tokens − size + 1,), uint64."""
    hashes = np.zeros(max(0, len(ids) - size + 1), np.uint64)
    for i in range(size):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + ids[i : i + len(hashes)].astype(np.uint64)
    return hashes


def start_id(tokenizer: AnyTokenizer, documents: bool) -> int:
    """Return the id before the first token of a text: the end of another one, or a line feed.

    documents: whether the texts are separate documents, each of which ends in eos.
    """
    line_feed = tokenizer.encode(["\n"])[0]
    return EOS if documents or len(line_feed) != 1 else line_feed[0]


def encode_split(
    folder: Path,
    name: str,
    pairs: Iterable[Row],
    tokenizers: tuple[AnyTokenizer, AnyTokenizer],
    config: Config,
    ending: Sequence[int] = (),
) -> Counter[str]:
    """Encode the pairs of a split in parts, into files that `map_split` reads.

    Returns the number of pairs that were used, and of those that were dropped or cut because they
    are longer than --max-length; for a language model the number of tokens. ending: the ids after
    each of its texts. Raises UserError and OSError.
    """
    counts, pairs = Counter(), iter(pairs)
    while part := list(itertools.islice(pairs, PART)):
        if config.task == TEXT:
            sides = {"text": encode_texts(Split.of(part).targets, tokenizers[1], ending)}
        else:
            encoded, too_long = encode(Split.of(part), *tokenizers, config.max_length)
            sides = encoded._asdict()
            counts["used"] += len(encoded.source.lengths)
            counts["cut" if config.task == LABELS else "dropped"] += too_long
        for side, rows in sides.items():
            counts["tokens"] += len(rows.ids)
            path = folder / f"{name}.{side}"
            with open(f"{path}.ids", "ab") as ids, open(f"{path}.offsets", "ab") as ends:
                start = ids.tell() // ID_TYPE.itemsize
                first = 1 if ends.tell() else 0  # offset 0 is in the first part only
                ids.write(rows.ids.astype(ID_TYPE))
                ends.write(rows.offsets[first:] + start)
    return counts


def map_split(folder: Path, name: str, task: str) -> list[Ragged]:
    """Memory-map a split: its texts, or its sources and targets. Raises OSError, and ValueError if
    the files are inconsistent.
    """
    sides = []
    for side in ["text"] if task == TEXT else ["source", "target"]:
        ids = np.memmap(folder / f"{name}.{side}.ids", ID_TYPE, "r")
        offsets = np.memmap(folder / f"{name}.{side}.offsets", np.int64, "r")
        if offsets[-1] != len(ids):
            raise ValueError(f"{name}.{side}.ids has {len(ids)} ids instead of {offsets[-1]}")
        # Plain arrays are faster to index than np.memmap.
        sides.append(Ragged(np.asarray(ids), np.asarray(offsets)))
    return sides
