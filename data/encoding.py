"""Encode text as ids, in memory or into files that are memory-mapped."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from config import Config
from data.arrays import Pairs, Ragged
from data.splits import LABELS, TEXT, Row, Split
from data.tokenizer import BOS, EOS, AnyTokenizer, Labels

ID_TYPE = np.dtype(np.uint16)  # of the ids in files: a vocabulary has at most 65,536 tokens
PART = 20_000  # pairs that are encoded at a time


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
