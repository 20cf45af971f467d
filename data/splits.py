"""`Corpus`: rows of a reader, which are divided into splits and normalized for a task."""

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import TASKS, Config
from data.text import CorpusError, normalize_source, to_line, to_nfc, visible_text
from utils import amount, progress_bar, warn

SPLITS = ("train", "validation", "test")
TEXT, LABELS = "language modeling", "classification"
WINDOW = 50  # characters of the parts of a text that training may have seen
PART = 1 << 20  # windows that are compared at a time

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
    size: int  # number of pairs
    sample: list[Row]  # all pairs, or evenly spaced ones if there are too many
    labels: set[str]  # the targets, in labelled corpora
    hashes: array  # of train: of each source, or of the windows of the texts, see `seen_share`


@dataclass(frozen=True)
class Corpus:
    """A corpus of translations, of texts with labels, or of texts.

    A reader returns one whose parts are splits, or a single part `all`. `for_task` returns one
    whose parts are splits, and whose rows are pairs. `files` downloads the corpus if necessary, and
    is called before `rows`. Both raise CorpusError. The files and the name identify the texts: the
    parts of a generated corpus have no files, and its name has all that it depends on.
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
        Raises CorpusError if the split does not exist or is empty.
        """
        in_order = self.task == TEXT and split != "train"
        digest, count, sample, step, labels = hashlib.sha256(), 0, [], 1, set()
        hashes, text = array("q"), ""
        for pair in progress_bar(self.read(split), desc=f"reading {split}", unit="pair"):
            digest.update(json.dumps(pair[:2]).encode())
            if count % step == 0 and not (in_order and count >= limit):
                sample.append(pair)
            if len(sample) > limit:
                sample, step = sample[::2], 2 * step
            if self.task == LABELS:
                labels.add(pair[1])
            if split == "train" and self.task == TEXT:
                text += pair[1]
                end = len(text) // WINDOW * WINDOW
                hashes.extend(hash(text[i : i + WINDOW]) for i in range(0, end, WINDOW))
                text = text[end:]
            elif split == "train":
                hashes.append(hash(pair[0]))
            count += 1
        if not count:
            raise CorpusError(
                f"{self.name}: its {split} split is empty: add texts, or give files for each split"
            )
        return Summary(digest.hexdigest(), count, sample, labels, hashes)

    def fingerprint(self) -> str:
        """Hex digest of the corpus' files. Does not depend on where they are."""
        digest = hashlib.sha256(os.fsencode(Path(self.name).name))  # `mini` has no files
        for file in sorted({file for files in self.files().values() for file in files}):
            path = file.relative_to(self.name) if file.is_relative_to(self.name) else file.name
            with file.open("rb") as opened:  # may be too large for the memory
                content = hashlib.file_digest(opened, "sha256").digest()
            digest.update(os.fsencode(path) + content)
        return digest.hexdigest()


def seen_share(texts: Split, train: Summary) -> float:
    """Return the share of the sources that are also in the training split.

    The texts of a language model have no sources: it is the share of the characters that lie in a
    window of the training text. Its windows, of `WINDOW` characters, follow one another, and may be
    at any place of the texts.
    """
    if any(texts.sources):
        return float(np.isin([*map(hash, texts.sources)], train.hashes).mean())
    text, known = "".join(texts.targets), np.append(np.unique(train.hashes), 0)
    begins = np.zeros(len(text) + WINDOW, bool)  # at [WINDOW + i]: whether a window begins at i
    for start in range(0, len(text) - WINDOW + 1, PART):  # flat memory
        places = range(start, min(start + PART, len(text) - WINDOW + 1))
        hashes = np.fromiter((hash(text[i : i + WINDOW]) for i in places), np.int64)
        same = known[np.searchsorted(known[:-1], hashes)] == hashes
        begins[WINDOW + start :][: len(same)] = same
    count = np.cumsum(begins, dtype=np.int32)
    return float(np.mean(count[WINDOW:] > count[:-WINDOW])) if text else 0.0


# ---- Splits --------------------------------------------------------------------------------------


def rows_of(corpus: Corpus, column: int, share: float | None, split: str) -> Iterator[Row]:
    """Yield the rows of a split, from the part that has them. The part `all` can still be read.

    column: of a row, the text that decides its split. share: that of validation, and of test.

    The part `all` of one text is divided by position: a line is in the split of its first
    character. Other rows of `all` are divided by a hash of their first column, in both directions
    of translation, or of the text of a language model. If no part validates, random rows of `train`
    do: by default a fifth, and without labels, where there can be millions of texts, at most 5,000.
    """
    parts = corpus.files()
    divided = "all" in parts and split != "all"
    if divided and corpus.documents:
        for row in corpus.rows("all"):
            if assign_split(row[column], share or 0.02) == split:
                yield row
    elif divided:
        position, size = 0, sum(len(text) for (text,) in corpus.rows("all"))
        for row in corpus.rows("all"):
            if split_at(10_000 * position / size, share or 0.05) == split:
                yield row
            position += len(row[0])
    elif corpus.documents and "validation" not in parts and split in ("train", "validation"):
        count = sum(1 for _ in corpus.rows("train"))
        size = int(count * (share or 0.2))
        size = size if corpus.task == LABELS or share else min(size, 5_000)
        held_out = np.zeros(count, bool)
        held_out[np.random.default_rng(0).permutation(count)[:size]] = True
        for is_held_out, row in zip(held_out, corpus.rows("train"), strict=True):
            if is_held_out == (split == "validation"):
                yield row
    else:
        yield from corpus.rows(split)


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
    """Divide a corpus into splits, and choose its columns, their order, and a share of `train`.

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
    column = columns[0] if config.task == TEXT else 0  # that decides the split

    def files() -> Files:
        parts = corpus.files()
        if "all" in parts:
            return dict.fromkeys(SPLITS, parts["all"]) | parts
        if corpus.documents and "train" in parts:
            return dict.fromkeys(SPLITS[:2], parts["train"]) | parts
        return parts

    def rows(split: str) -> Iterator[Row]:
        share = config.train_share if split == "train" else None
        whole = rows_of(corpus, column, config.held_out_share, split)
        return normalized(chosen, columns, share, split, whole)

    return replace(chosen, files=files, rows=rows)


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
    corpus: Corpus, columns: Sequence[int], share: float | None, split: str, rows: Iterator[Row]
) -> Iterator[Row]:
    """Yield the pairs of a split. Those with an empty text are left out. A text of a language model
    has the source "".

    Texts are in Unicode's form NFC (a text that is divided into lines or parts, each of them).
    Sources have no other white space than single spaces, translations are one line, as outputs are,
    and labels are stripped.
    """
    texts, empty = corpus.task == TEXT, 0
    for row in rows:
        source = "" if texts else normalize_source(row[columns[0]])
        target = (to_nfc if texts else to_line)(row[columns[-1]])
        target = target.strip() if corpus.task == LABELS else target
        if corpus.documents and not ((texts or source) and target.strip()):
            empty += 1
        elif share is None or hash_share(source or target) < share:
            yield source, target, *(() if texts else row[2:])
    if empty:
        warn(f"{corpus.name}: skipped {amount(empty, 'pair')} with an empty text in {split}")
