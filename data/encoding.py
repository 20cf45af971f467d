"""Encode text as ids, in memory or into files that are memory-mapped."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data.arrays import Pairs, Ragged, Text
from data.splits import Split, TextPair
from data.tokenizer import BOS, EOS, Labels, Tokenizer
from utils import progress_bar

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
            sources.append([*source[:max_length], EOS])
            targets.append([BOS, *target, *target_tokenizer.ending])
    return Pairs(Ragged.of(sources), Ragged.of(targets)), too_long


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer, ending: Sequence[int] = ()) -> Ragged:
    """Encode the texts of a language model. ending: the ids after each text."""
    return Ragged.of([[*row, *ending] for row in tokenizer.encode(texts)])


def start_id(tokenizer: Tokenizer, documents: bool) -> int:
    """Return the id before the first token of a text: the end of another one, or a line feed.

    documents: whether the texts are separate documents, each of which ends in eos.
    """
    line_feed = tokenizer.encode(["\n"])[0]
    return EOS if documents or len(line_feed) != 1 else line_feed[0]


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
    used, too_long = 0, 0
    for part in in_parts(pairs, name, total):
        encoded, longer = encode(part, *tokenizers, max_length)
        used += len(encoded.source.lengths)
        too_long += longer
        for side, rows, trained in zip(SIDES, encoded, tokenizers, strict=True):
            append(folder, f"{name}.{side}", rows, trained)
    return used, too_long


def encode_texts_to_files(
    folder: Path,
    name: str,
    pairs: Iterable[TextPair],
    total: int,
    tokenizer: Tokenizer,
    documents: bool,
) -> int:
    """Encode the `total` texts of a split in parts, into the files that `map_text` reads.

    pairs: with an empty source. Returns the number of tokens. Raises OSError.
    """
    tokens = 0
    for part in in_parts(pairs, name, total):
        rows = encode_texts(part.targets, tokenizer, [EOS] if documents else [])
        append(folder, f"{name}.text", rows, tokenizer)
        tokens += len(rows.ids)
    return tokens


def in_parts(pairs: Iterable[TextPair], name: str, total: int) -> Iterator[Split]:
    """Yield PART pairs of a split at a time, and show the progress."""
    texts = iter(progress_bar(pairs, desc=f"encoding {name}", total=total, unit="pair"))
    while part := list(itertools.islice(texts, PART)):
        yield Split.of(part)


def append(folder: Path, name: str, rows: Ragged, tokenizer: Tokenizer | Labels) -> None:
    """Append sequences to the files of an array. Raises OSError."""
    ids_file, offsets_file = array_files(folder, name)
    with ids_file.open("ab") as ids, offsets_file.open("ab") as offsets:
        start = ids.tell() // id_type(tokenizer).itemsize
        first = 1 if offsets.tell() else 0  # offset 0 is in the first part only
        ids.write(rows.ids.astype(id_type(tokenizer)))
        offsets.write(rows.offsets[first:] + start)


def array_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of the ids and of the offsets of one side of a split."""
    return folder / f"{name}.ids", folder / f"{name}.offsets"


def id_type(tokenizer: Tokenizer | Labels) -> np.dtype:
    """Return the smallest type that holds all ids of a tokenizer."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def map_array(folder: Path, name: str, tokenizer: Tokenizer | Labels) -> Ragged:
    """Memory-map the files of an array. Raises OSError, and ValueError if they are inconsistent."""
    ids_file, offsets_file = array_files(folder, name)
    ids = np.memmap(ids_file, id_type(tokenizer), "r")
    offsets = np.memmap(offsets_file, np.int64, "r")
    if offsets[-1] != len(ids):
        raise ValueError(f"{ids_file.name} has {len(ids)} ids instead of {offsets[-1]}")
    # Plain arrays are faster to index than np.memmap.
    return Ragged(np.asarray(ids), np.asarray(offsets))


def map_pairs(folder: Path, name: str, tokenizers: tuple[Tokenizer, Tokenizer | Labels]) -> Pairs:
    """Memory-map the pairs of a split. Raises OSError and ValueError."""
    sides = zip(SIDES, tokenizers, strict=True)
    return Pairs(*(map_array(folder, f"{name}.{side}", tokenizer) for side, tokenizer in sides))


def map_text(folder: Path, name: str, tokenizer: Tokenizer, start: int, block: int) -> Text:
    """Memory-map the texts of a split. Raises OSError and ValueError."""
    return Text(map_array(folder, f"{name}.text", tokenizer), start, block)
