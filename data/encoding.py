"""Encode text as ids, in memory or into files that are memory-mapped."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data import tokenizer
from data.batches import Pairs, Ragged
from data.splits import Split, TextPair, progress_bar
from data.tokenizer import Labels, Tokenizer

SIDES = ("source", "target")
PART = 20_000  # pairs that are encoded at a time


def encode(
    split: Split, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | Labels, max_length: int
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
            sources.append([*source[:max_length], tokenizer.EOS])
            targets.append([tokenizer.BOS, *target, *target_tokenizer.ending])
    return Pairs(Ragged.of(sources), Ragged.of(targets)), too_long


def encode_to_files(
    folder: Path,
    name: str,
    pairs: Iterable[TextPair],
    total: int,
    tokenizers: tuple[Tokenizer, Tokenizer | Labels],
    max_length: int,
) -> tuple[int, int]:
    """Encode the `total` pairs of a split in parts, into the files that `map_pairs` reads.

    Returns the number of pairs that were written, and of those longer than `max_length` tokens.
    Raises UserError and OSError.
    """
    texts, used, too_long = iter(progress_bar(pairs, f"encoding {name}", total)), 0, 0
    while part := list(itertools.islice(texts, PART)):
        encoded, longer = encode(Split.of(part), *tokenizers, max_length)
        used += len(encoded.source.lengths)
        too_long += longer
        for side, rows, trained in zip(SIDES, encoded, tokenizers, strict=True):
            ids_file, offsets_file = array_files(folder, f"{name}.{side}")
            with ids_file.open("ab") as ids, offsets_file.open("ab") as offsets:
                start = ids.tell() // id_type(trained).itemsize
                first = 1 if offsets.tell() else 0  # offset 0 is in the first part only
                ids.write(rows.ids.astype(id_type(trained)))
                offsets.write(rows.offsets[first:] + start)
    return used, too_long


def array_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of the ids and of the offsets of one side of a split."""
    return folder / f"{name}.ids", folder / f"{name}.offsets"


def id_type(tokenizer: Tokenizer | Labels) -> np.dtype:
    """Return the smallest type that holds all ids of a tokenizer."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def map_pairs(folder: Path, name: str, tokenizers: tuple[Tokenizer, Tokenizer | Labels]) -> Pairs:
    """Memory-map the arrays of a split. Raises OSError, and ValueError if they are inconsistent."""
    sides = []
    for side, trained in zip(SIDES, tokenizers, strict=True):
        ids_file, offsets_file = array_files(folder, f"{name}.{side}")
        ids = np.memmap(ids_file, id_type(trained), "r")
        offsets = np.memmap(offsets_file, np.int64, "r")
        if offsets[-1] != len(ids):
            raise ValueError(f"{ids_file.name} has {len(ids)} ids instead of {offsets[-1]}")
        # Plain arrays are faster to index than np.memmap.
        sides.append(Ragged(np.asarray(ids), np.asarray(offsets)))
    return Pairs(*sides)
