"""Pairs of texts to pairs of ids, in memory or in files that are written in parts and mapped."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data import tokenizer
from data.batches import Pairs, Rows
from data.splits import Row, Split, progress_bar
from data.tokenizer import Labels, Tokenizer

PART = 20_000  # pairs that are encoded at a time


def encode(
    split: Split, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | Labels, max_length: int
) -> tuple[Pairs, int]:
    """Encode a split. Also returns how many pairs have more than `max_length` tokens on a side.

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
    return Pairs(Rows.of(sources), Rows.of(targets)), too_long


def encode_to_files(
    folder: Path,
    name: str,
    rows: Iterable[Row],
    total: int,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | Labels,
    max_length: int,
) -> int:
    """Encode a split in parts, and append each to NAME.{source,target}.{ids,offsets}.

    NAME.progress.json says how much has been written: a later call continues from there. Returns
    how many pairs have more than `max_length` tokens on a side. Raises UserError and OSError.
    """
    state = folder / f"{name}.progress.json"
    progress = {"read": 0, "too_long": 0, "sizes": [0, 8, 0, 8]}
    if state.exists():
        progress = json.loads(state.read_text("utf-8"))
        log(f"continuing after {progress['read']:,} pairs")
    tokenizers = (source_tokenizer, target_tokenizer)
    with contextlib.ExitStack() as stack:
        files = []
        for path, size in zip(array_files(folder, name), progress["sizes"], strict=True):
            file = stack.enter_context(path.open("ab"))
            file.truncate(size)  # the 8 bytes of new offsets are the first one, 0
            file.seek(size)
            files.append(file)
        bar = stack.enter_context(progress_bar((), f"encoding {name}", total))
        bar.update(progress["read"])
        rows = itertools.islice(rows, progress["read"], None)
        while part := list(itertools.islice(rows, PART)):
            pairs, too_long = encode(Split.of(part), *tokenizers, max_length)
            for side, trained, (ids_file, offsets_file) in zip(
                pairs, tokenizers, (files[:2], files[2:]), strict=True
            ):
                dtype = id_type(trained)
                offsets_file.write(side.offsets[1:] + ids_file.tell() // dtype.itemsize)
                ids_file.write(side.ids.astype(dtype))
            for file in files:
                file.flush()
            progress["read"] += len(part)
            progress["too_long"] += too_long
            progress["sizes"] = [file.tell() for file in files]
            write_json(state, progress)
            bar.update(len(part))
    return progress["too_long"]


def array_files(folder: Path, name: str) -> list[Path]:
    """Return the files of source ids, source offsets, target ids and target offsets of a split."""
    return [folder / f"{name}.{s}.{a}" for s in ("source", "target") for a in ("ids", "offsets")]


def id_type(tokenizer: Tokenizer | Labels) -> np.dtype:
    """Return the smallest type that holds all ids of a tokenizer."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def map_pairs(folder: Path, name: str, tokenizers: tuple[Tokenizer, Tokenizer | Labels]) -> Pairs:
    """Map the arrays of a split from their files. Raises OSError and ValueError."""
    files, sides = array_files(folder, name), []
    for trained, ids_file, offsets_file in zip(tokenizers, files[::2], files[1::2], strict=True):
        ids = np.memmap(ids_file, id_type(trained), "r")
        ends = np.memmap(offsets_file, np.int64, "r")
        if ends[-1] != len(ids):
            raise ValueError(f"{ids_file.name} has {len(ids)} ids instead of {ends[-1]}")
        sides.append(Rows(np.asarray(ids), np.asarray(ends)))
    return Pairs(*sides)


def log(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr, flush=True)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically. Raises OSError."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    part.replace(path)
