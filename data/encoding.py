"""Encode text as ids, in memory or into files that are memory-mapped."""

import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data import tokenizer
from data.batches import Pairs, Ragged
from data.splits import CorpusError, Split, TextPair, progress_bar
from data.tokenizer import Labels, Tokenizer
from utils import write_json

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
    texts: Iterable[TextPair],
    total: int,
    tokenizers: tuple[Tokenizer, Tokenizer | Labels],
    max_length: int,
) -> int:
    """Encode a split in parts, and append each part to the files that `map_pairs` reads.

    Records its progress in NAME.progress.json, from which a later call resumes. Returns the number
    of pairs with more than `max_length` tokens on a side. Raises CorpusError if there are not
    `total` pairs, UserError, and OSError.
    """
    state = folder / f"{name}.progress.json"
    progress = {"pairs": 0, "too_long": 0, "sizes": {}}  # sizes of the files, in bytes
    if state.exists():
        progress = json.loads(state.read_text("utf-8"))
        log(f"resuming after {progress['pairs']:,} pairs")
    sizes, texts = progress["sizes"], itertools.islice(texts, progress["pairs"], None)
    with progress_bar(None, f"encoding {name}", total, progress["pairs"]) as bar:
        while part := list(itertools.islice(texts, PART)):
            pairs, too_long = encode(Split.of(part), *tokenizers, max_length)
            for side, rows, trained in zip(("source", "target"), pairs, tokenizers, strict=True):
                ids_file, offsets_file = array_files(folder, f"{name}.{side}")
                ids_size, offsets_size = (sizes.get(f.name, 0) for f in (ids_file, offsets_file))
                ids = rows.ids.astype(id_type(trained))
                offsets = rows.offsets + ids_size // ids.itemsize
                offsets = offsets[1:] if offsets_size else offsets  # the first one is 0
                sizes[ids_file.name] = write_at(ids_file, ids_size, ids)
                sizes[offsets_file.name] = write_at(offsets_file, offsets_size, offsets)
            progress["pairs"] += len(part)
            progress["too_long"] += too_long
            write_json(state, progress)
            bar.update(len(part))
    if progress["pairs"] != total:
        raise CorpusError(
            f"the {name} split had {total:,} pairs when it was first read, and now has "
            f"{progress['pairs']:,}: start again when its files no longer change"
        )
    return progress["too_long"]


def write_at(path: Path, size: int, array: np.ndarray) -> int:
    """Write an array after the first `size` bytes of a file. Returns the new size.

    Raises CorpusError if the file is smaller, and OSError.
    """
    with path.open("r+b" if size else "wb") as file:
        if file.seek(0, 2) < size:
            raise CorpusError(f"{path} is damaged: delete {path.parent}")
        file.seek(size)
        file.write(array)
        file.truncate()
        return file.tell()


def array_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of the ids and of the offsets of one side of a split."""
    return folder / f"{name}.ids", folder / f"{name}.offsets"


def id_type(tokenizer: Tokenizer | Labels) -> np.dtype:
    """Return the smallest type that holds all ids of a tokenizer."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def map_pairs(folder: Path, name: str, tokenizers: tuple[Tokenizer, Tokenizer | Labels]) -> Pairs:
    """Memory-map the arrays of a split. Raises OSError, and ValueError if they are inconsistent."""
    sides = []
    for side, trained in zip(("source", "target"), tokenizers, strict=True):
        ids_file, offsets_file = array_files(folder, f"{name}.{side}")
        ids = np.memmap(ids_file, id_type(trained), "r")
        offsets = np.memmap(offsets_file, np.int64, "r")
        if offsets[-1] != len(ids):
            raise ValueError(f"{ids_file.name} has {len(ids)} ids instead of {offsets[-1]}")
        # Plain arrays are faster to index than np.memmap.
        sides.append(Ragged(np.asarray(ids), np.asarray(offsets)))
    return Pairs(*sides)


def log(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr, flush=True)
