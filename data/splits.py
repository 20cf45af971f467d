"""`Corpus`: rows of a reader, which are divided into splits and normalized for a task."""

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import TASKS, Config
from data.text import CorpusError, normalize_source, to_line, to_nfc, visible_text
from utils import amount, progress_bar, warn

SPLITS = ("train", "validation", "test")
TEXT, LABELS = "language modeling", "classification"

# The texts of a reader's columns, or a source and a target; in some corpora, then a tag.
Row = tuple[str, ...]
Files = dict[str, list[Path]]  # of each part or split


class Split(NamedTuple):
    """Texts in a fixed order, with their translations or labels."""

    sources: list[str]
    targets: list[str]  # targets[i] is the translation or the label of sources[i]
    tags: list[str] | None = None  # the phenomenon that each pair tests, if the corpus has tags

    def match_case(self, lowercase: bool) -> "Split":
        """Return the split with targets in lower case, as a tokenizer with `lowercase` decodes."""
        return self._replace(targets=[t.lower() for t in self.targets]) if lowercase else self

    @classmethod
    def of(cls, pairs: Iterable[Row]) -> "Split":
        """Collect pairs in memory."""
        columns = [list(column) for column in zip(*pairs, strict=True)]
        return cls(*(columns or ([], [])))

    def take(self, indices: Iterable[int]) -> "Split":
        """Return the pairs at these indices."""
        indices = list(indices)
        return Split(*(column and [column[i] for i in indices] for column in self))


class Summary(NamedTuple):
    """What one pass over a split collects."""

    sha256: str  # of the texts; depends on their order and on the direction
    sample: list[Row]  # all pairs, or evenly spaced ones if there are too many
    labels: set[str]  # the targets, in labelled corpora
    hashes: array  # of the source of each pair


@dataclass(frozen=True)
class Corpus:
    """A corpus of translations, of texts with labels, or of texts.

    A reader returns one whose parts are splits, or a single part `all`. `divided` returns one whose
    parts are splits, and `for_task` one whose rows are pairs. `files` downloads the corpus if
    necessary, and is called before `rows`. Both raise CorpusError. The files and the name identify
    the texts: the parts of a generated corpus have no files, and its name has all that it depends
    on.
    """

    name: str
    languages: tuple[str, ...]  # of the columns of a row, such as ("pt", "en"), ("text", "label")
    files: Callable[[], Files]  # returns the files of each part
    rows: Callable[[str], Iterator[Row]]  # yields the rows of a part
    task: str = "translation"  # what it is for: a value of `config.TASKS`
    documents: bool = True  # of texts: whether they are separate, not the lines of one file

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return [part for part in self.files() if part != "all"]

    def read(self, split: str) -> Iterator[Row]:
        """Read a split, always in the same order. Raises CorpusError if it does not exist."""
        if split not in self.files():
            raise CorpusError(f"{self.name} has no {split} split; it has {', '.join(self.splits)}")
        return self.rows(split)

    def load(self, split: str) -> Split:
        """Load a split into memory. Raises CorpusError if it does not exist."""
        return Split.of(self.read(split))

    def summarize(self, split: str, limit: int) -> Summary:
        """Read a split once, keeping at most `limit` of its pairs in memory.

        If there are more, keeps every second, fourth, … pair: between limit / 2 and limit. Of texts
        other than those of the training split, keeps the first ones, because they belong together.
        """
        in_order = self.task == TEXT and split != "train"
        digest, sample, step, labels, hashes = hashlib.sha256(), [], 1, set(), array("q")
        for pair in progress_bar(self.read(split), desc=f"reading {split}", unit="pair"):
            digest.update(json.dumps(pair[:2]).encode())
            if len(hashes) % step == 0 and not (in_order and len(hashes) >= limit):
                sample.append(pair)
            if len(sample) > limit:
                sample, step = sample[::2], 2 * step
            if self.task == LABELS:
                labels.add(pair[1])
            hashes.append(hash(pair[0]))
        return Summary(digest.hexdigest(), sample, labels, hashes)

    def fingerprint(self) -> str:
        """Hex digest of the corpus' files. Does not depend on where they are."""
        digest = hashlib.sha256(os.fsencode(Path(self.name).name))  # `mini` has no files
        for file in sorted({file for files in self.files().values() for file in files}):
            path = file.relative_to(self.name) if file.is_relative_to(self.name) else file.name
            with file.open("rb") as opened:  # may be too large for the memory
                content = hashlib.file_digest(opened, "sha256").digest()
            digest.update(os.fsencode(path) + content)
        return digest.hexdigest()


# ---- Splits --------------------------------------------------------------------------------------


def divided(corpus: Corpus, config: Config) -> Corpus:
    """Divide the part `all` into splits, or, if no part validates, `train` into two.

    The part `all` can still be read. Does not need the data.
    """
    column = columns_of(corpus, config)[0] if config.task == TEXT else 0
    assign = partial(assign_rows, corpus, column, config.held_out_share)

    def files() -> Files:
        parts = corpus.files()
        part, splits = divided_part(corpus)
        return dict.fromkeys(splits, parts.get(part)) | parts

    def rows(split: str) -> Iterator[Row]:
        part, splits = divided_part(corpus)
        if split not in splits:
            return corpus.rows(split)
        return (row for assigned, row in assign(part) if assigned == split)

    return replace(corpus, files=files, rows=rows)


def divided_part(corpus: Corpus) -> tuple[str | None, Sequence[str]]:
    """Return the part that is divided, or None, and the splits that it is divided into."""
    parts = corpus.files()
    if "all" in parts:
        return "all", SPLITS
    if corpus.documents and "train" in parts and "validation" not in parts:
        return "train", SPLITS[:2]
    return None, ()


def assign_rows(
    corpus: Corpus, column: int, share: float | None, part: str
) -> Iterator[tuple[str, Row]]:
    """Yield each row of a part, and its split.

    One text is divided by position: a line is in the split of its first character. Other rows are
    divided by a hash of their first column, in both directions of translation, or of the text of a
    language model. If no part validates, random rows of the training split do: by default a fifth,
    and without labels, where there can be millions of texts, at most 5,000.
    """
    if part == "train":
        count = sum(1 for _ in corpus.rows(part))
        size = int(count * (share or 0.2))
        size = size if corpus.task == LABELS or share else min(size, 5_000)
        held_out = np.zeros(count, bool)
        held_out[np.random.default_rng(0).permutation(count)[:size]] = True
        for is_held_out, row in zip(held_out, corpus.rows(part), strict=True):
            yield ("validation" if is_held_out else "train"), row
    elif corpus.documents:
        for row in corpus.rows(part):
            yield assign_split(row[column], share or 0.02), row
    else:
        position, size = 0, sum(len(text) for (text,) in corpus.rows(part))
        for row in corpus.rows(part):
            yield split_at(10_000 * position / size, share or 0.05), row
            position += len(row[0])


def split_at(place: float, share: float) -> str:
    """Return the split of a place from 0 to 10,000: the last ones test, as many before validate."""
    size = round(share * 10_000)
    if place < 10_000 - 2 * size:
        return "train"
    return "validation" if place < 10_000 - size else "test"


def assign_split(text: str, share: float = 0.02) -> str:
    """Assign a text to a split by its hash: this share to validation, the same to test.

    share: a multiple of 0.0001. Texts that `visible_text` makes equal are in the same split, and
    adding texts to a corpus does not move the others.
    """
    digest = hashlib.sha256(visible_text(text).encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    return split_at(number % 100 * 100 + number // 100 % 100, share)


def hash_share(text: str) -> float:
    """Map a text to a number from 0 to 1, independent of its split in `assign_split`."""
    digest = hashlib.sha256(normalize_source(text).encode()).digest()
    return int.from_bytes(digest[8:16], "big") / 2**64


# ---- Pairs ---------------------------------------------------------------------------------------


def for_task(corpus: Corpus, config: Config) -> Corpus:
    """Choose the columns of a corpus, their order, and a share of its training split.

    A language model gets the target side of translations, or texts without their labels. Raises
    CorpusError if the corpus is for another task.
    """
    columns = columns_of(corpus, config)
    if config.task not in (TEXT, corpus.task):
        model = next(model for model, task in TASKS.items() if task == corpus.task)
        raise CorpusError(f"{corpus.name} is for {corpus.task}: train with --model {model}")
    if config.train_share is not None and not corpus.documents:
        raise CorpusError(f"--train-share cannot shorten {corpus.name}, which is one text")
    languages = tuple(corpus.languages[i] for i in columns)
    chosen = replace(corpus, languages=languages, task=config.task)
    return replace(chosen, rows=partial(normalized, chosen, columns, config.train_share))


def columns_of(corpus: Corpus, config: Config) -> list[int]:
    """Return the indices of the columns to use, of which the last is the target."""
    names = config.languages.split(",") if config.languages else corpus.languages
    if {*names} != {*corpus.languages}:
        languages = ", ".join(corpus.languages)
        raise CorpusError(f"{corpus.name} has {languages}: change or remove --languages")
    if corpus.task == LABELS:
        return [0] if config.task == TEXT else [0, 1]
    columns = [corpus.languages.index(name) for name in names][:: -1 if config.reverse else 1]
    return columns[-1:] if config.task == TEXT else columns


def normalized(
    corpus: Corpus, columns: Sequence[int], train_share: float | None, split: str
) -> Iterator[Row]:
    """Yield the pairs of a split. Those with an empty text are left out. A text of a language model
    has the source "".

    Texts are in Unicode's form NFC (a text that is divided into lines or parts, each of them).
    Sources have no other white space than single spaces, translations are one line, as outputs are,
    and labels are stripped.
    """
    share = train_share if split == "train" else None
    texts, empty = corpus.task == TEXT, 0
    for row in corpus.rows(split):
        source = "" if texts else normalize_source(row[columns[0]])
        target = (to_nfc if texts else to_line)(row[columns[-1]])
        target = target.strip() if corpus.task == LABELS else target
        if corpus.documents and not ((texts or source) and target.strip()):
            empty += 1
        elif share is None or hash_share(source or target) < share:
            yield source, target, *(() if texts else row[2:])
    if empty:
        warn(f"{corpus.name}: skipped {amount(empty, 'pair')} with an empty text in {split}")
