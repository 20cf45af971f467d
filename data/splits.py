"""`Corpus` and `Split`: the rows of a corpus, divided into splits and normalized."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from config import TASKS, Config
from data.text import CorpusError, normalize_source, to_line, to_nfc, visible_text
from utils import amount, warn

SPLITS = ("train", "validation", "test")
# The splits that a part is divided into. None: a corpus with splits of its own.
DIVIDED = {"all": SPLITS, "train": ("train", "validation"), None: ()}
TEXT = "language modeling"

# The texts of a reader's columns; in some corpora also a tag. Or a source, a target and a tag.
Row = tuple[str, ...]


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
    """The statistics that one pass over a split collects."""

    pairs: int  # their number
    sha256: str  # of the texts; depends on their order and on the direction
    sample: list[Row]  # all pairs, or evenly spaced ones if there are too many
    labels: set[str]  # the targets, in labelled corpora
    sources: set[int]  # hashes of the different sources that were asked for


@dataclass(frozen=True)
class Corpus:
    """A corpus of translations, of texts with labels, or of texts.

    A reader gives the rows of each part: a split, or `all`, which `divide` divides. Only `files`
    and `rows`, and the methods that call them, need the data. `files` downloads it if necessary,
    and is called before `rows`. They raise CorpusError.
    """

    name: str
    languages: tuple[str, ...]  # of the columns of a row, such as ("pt", "en"), ("text", "label")
    files: Callable[[], dict[str, list[Path]]]  # returns the files of each part
    rows: Callable[[str], Iterator[Row]]  # yields the rows of a part
    task: str = "translation"  # what it is for: a value of `config.TASKS`
    local: bool = False  # whether the files are the user's own
    documents: bool = True  # of texts: whether they are separate, not the lines of one file
    # Set by `for_task`.
    columns: tuple[int, ...] = (0, 1)  # those that are used; the last one is the target
    held_out_share: float | None = None
    train_share: float | None = None

    @property
    def labelled(self) -> bool:
        """Whether the targets are labels."""
        return self.task == "classification"

    @property
    def divided(self) -> str | None:
        """The part that is divided into splits: `all`, or `train` if no other part validates."""
        files = self.files()
        if "all" in files:
            return "all"
        held_out = self.documents and "train" in files and "validation" not in files
        return "train" if held_out else None

    @property
    def splits(self) -> list[str]:
        """The names of the splits, which `read` reads. It also reads `all`, if that is divided."""
        return [x for x in dict.fromkeys([*DIVIDED[self.divided], *self.files()]) if x != "all"]

    @cached_property
    def size(self) -> int:
        """Number of rows to hold some out of, or of characters to divide: needs another pass."""
        if self.documents:
            return sum(1 for _ in self.rows("train"))
        return sum(len(text) for (text,) in self.rows("all"))

    def read(self, split: str) -> Iterator[Row]:
        """Read the pairs of a split, always in the same order. Those with an empty text are left
        out. A text of a language model has the source "".

        Texts are in Unicode's form NFC (a text that is divided into lines or parts, each of them).
        Sources have no other white space than single spaces, translations are one line, as outputs
        are, and labels are stripped. Raises CorpusError if the split does not exist.
        """
        if split not in self.splits and split not in self.files():
            raise CorpusError(f"{self.name} has no {split} split; it has {', '.join(self.splits)}")
        share = self.train_share if split == "train" else None
        texts, empty = self.task == TEXT, 0
        for row in divide(self, split) if split in DIVIDED[self.divided] else self.rows(split):
            source = "" if texts else normalize_source(row[self.columns[0]])
            target = row[self.columns[-1]]
            target = to_nfc(target) if texts else to_line(target)
            target = target.strip() if self.labelled else target
            if self.documents and not ((texts or source) and target.strip()):
                empty += 1
            elif share is None or hash_share(source or target) < share:
                yield source, target, *(() if texts else row[2:])
        if empty:
            pairs = amount(empty, "pair")
            warn(f"{self.name}: skipped {pairs} of the {split} split that had an empty text")

    def load(self, split: str) -> Split:
        """Load a split into memory. Raises CorpusError if it does not exist."""
        return Split.of(self.read(split))

    def summarize(
        self, split: str, limit: int, sources: Container[int] | None = frozenset()
    ) -> Summary:
        """Read a split once, keeping at most `limit` of its pairs in memory.

        If there are more, keeps every second, fourth, … pair: between limit / 2 and limit. Of texts
        other than those of the training split, keeps the first ones, because they belong together.
        sources: the hashes of the sources to look for; None collects all.
        """
        in_order = self.task == TEXT and split != "train"
        digest, pairs, sample, step, labels, found = hashlib.sha256(), 0, [], 1, set(), set()
        for pair in progress_bar(self.read(split), f"reading {split}"):
            digest.update(json.dumps(pair[:2]).encode())
            if pairs % step == 0 and not (in_order and pairs >= limit):
                sample.append(pair)
            if len(sample) > limit:
                sample, step = sample[::2], 2 * step
            if self.labelled:
                labels.add(pair[1])
            if sources is None or hash(pair[0]) in sources:
                found.add(hash(pair[0]))
            pairs += 1
        return Summary(pairs, digest.hexdigest(), sample, labels, found)

    def fingerprint(self) -> str:
        """Hex digest of the corpus' files. Does not depend on where they are."""
        digest = hashlib.sha256(os.fsencode(Path(self.name).name))  # `mini` has no files
        for file in sorted({file for files in self.files().values() for file in files}):
            path = file.relative_to(self.name) if file.is_relative_to(self.name) else file.name
            with file.open("rb") as opened:  # may be too large for the memory
                content = hashlib.file_digest(opened, "sha256").digest()
            digest.update(os.fsencode(path) + content)
        return digest.hexdigest()


def divide(corpus: Corpus, split: str) -> Iterator[Row]:
    """Yield the rows of a split from the part that is divided. Raises CorpusError if a split of it
    is empty.
    """
    counts = dict.fromkeys(DIVIDED[corpus.divided], 0)
    for assigned, row in assign_rows(corpus):
        counts[assigned] += 1
        if assigned == split:
            yield row
    for name, count in counts.items():
        if not count:
            raise CorpusError(
                f"{corpus.name}: none of its {sum(counts.values())} lines is in the {name} split: "
                "add text, use a larger --held-out-share, or a directory with files for each split"
            )


def assign_rows(corpus: Corpus) -> Iterator[tuple[str, Row]]:
    """Yield each row of the part that is divided, and its split.

    One text is divided by position: a line is in the split of its first character. Other rows are
    divided by a hash of their first column, in both directions of translation, or of the text of a
    language model. If no part validates, random rows of the training split do: by default a fifth,
    and without labels, where there can be millions of texts, at most 5,000.
    """
    share, part = corpus.held_out_share, corpus.divided
    if part == "train":
        most = sys.maxsize if corpus.labelled or share else 5_000
        held_out = np.zeros(corpus.size, bool)
        size = min(int(corpus.size * (share or 0.2)), most)
        held_out[np.random.default_rng(0).permutation(corpus.size)[:size]] = True
        for is_held_out, row in zip(held_out, corpus.rows(part), strict=True):
            yield ("validation" if is_held_out else "train"), row
    elif corpus.documents:
        column = corpus.columns[0] if corpus.task == TEXT else 0
        for row in corpus.rows(part):
            yield assign_split(row[column], share or 0.02), row
    else:
        position = 0
        for row in corpus.rows(part):
            yield split_at(10_000 * position / corpus.size, share or 0.05), row
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


# What rows are, by task.
CONTENTS = {"translation": "translations", "classification": "texts with labels", TEXT: "texts"}


def for_task(corpus: Corpus, config: Config) -> Corpus:
    """Choose the columns of a corpus and their order, and its shares. Raises CorpusError.

    A language model gets the target side of translations, or texts without their labels.
    """
    columns = [*range(len(corpus.languages))]
    if config.languages:
        names = config.languages.split(",")
        if {*names} != {*corpus.languages}:
            raise CorpusError(
                f"{corpus.name} has {', '.join(corpus.languages)}, not {config.languages}: change "
                "or remove --languages"
            )
        columns = columns if corpus.labelled else [corpus.languages.index(name) for name in names]
    if config.reverse and not corpus.labelled:
        columns.reverse()
    if config.task == TEXT:
        columns = columns[:1] if corpus.labelled else columns[-1:]
    elif config.task != corpus.task:
        model = next(model for model, task in TASKS.items() if task == corpus.task)
        raise CorpusError(
            f"{corpus.name} has {CONTENTS[corpus.task]}, not {CONTENTS[config.task]}: train with "
            f"--model {model}, or choose another corpus"
        )
    if config.train_share is not None and not corpus.documents:
        raise CorpusError(
            f"--train-share {config.train_share}: {corpus.name} is one text, of which no lines can "
            "be left out: shorten the file"
        )
    return replace(
        corpus,
        languages=tuple(corpus.languages[i] for i in columns),
        task=config.task,
        columns=tuple(columns),
        held_out_share=config.held_out_share,
        train_share=config.train_share,
    )


def progress_bar(pairs: Iterable[Row], label: str, total: int | None = None) -> tqdm:
    """Show the progress on standard error if it takes more than two seconds."""
    interval = 0.5 if sys.stderr.isatty() else 30
    options = {"leave": False, "delay": 2, "mininterval": interval, "unit": "pair"}
    return tqdm(pairs, label, total, **options)
