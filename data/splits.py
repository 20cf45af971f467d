"""`Corpus` and `Split`, and how a corpus without splits is split."""

import functools
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data.text import normalize_source, to_line, to_nfc
from same_code import file_hash
from utils import UserError, amount, did_you_mean, first_few, progress_bar, warn

if TYPE_CHECKING:
    from data.tokenizer import Labels, Tokenizer

SPLITS = ("train", "validation", "test")
TABLES, TEXTS, PARQUET = (".tsv", ".tsv.gz"), (".txt", ".txt.gz"), ".parquet"
SUPPORTED = (
    "mini, mini:SIZE, spa-eng, a translation dataset of tensorflow_datasets such as "
    "ted_hrlr_translate/pt_to_en, a directory with train.SRC and train.TGT, a .tsv file, or one or "
    "more .parquet files; with --model classifier a dataset such as imdb_reviews, a directory with "
    "train/LABEL/*.txt, or a .tsv file; with --model language_model also shakespeare, a dataset "
    "with texts such as lm1b, a directory with train.txt and validation.txt, or a .txt file"
)


class CorpusError(UserError):
    """A corpus cannot be used. The message names the place, the reason and the remedy."""


def is_one_file(name: str) -> bool:
    """Return whether a corpus is a single file, which has a split `all`: see `Corpus.read`."""
    return name.endswith((*TABLES, *TEXTS, PARQUET)) and not Path(name).is_dir()


# A source and a target; in `mini` also a tag. A text of a language model has the source "".
TextPair = tuple[str, ...]


class Split(NamedTuple):
    """Texts in a fixed order, with their translations or labels."""

    sources: list[str]
    targets: list[str]  # targets[i] is the translation or the label of sources[i]
    tags: list[str] | None = None  # the phenomenon that each pair tests; `mini` only

    def match_case(self, tokenizer: "Tokenizer | Labels") -> "Split":
        """Return the split with targets in lower case if the tokenizer decodes to lower case."""
        if tokenizer.lowercase:
            return self._replace(targets=[text.lower() for text in self.targets])
        return self

    @classmethod
    def of(cls, pairs: Iterable[TextPair]) -> "Split":
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
    sample: list[TextPair]  # all pairs, or evenly spaced ones if there are too many
    labels: set[str]  # the targets, in labelled corpora
    sources: set[int]  # hashes of the different sources that were asked for


@dataclass(frozen=True)
class Corpus:
    """A corpus of translations, of texts with labels, or of texts.

    Only `files` and `pairs`, and the methods that call them, need the data. `files` downloads it if
    necessary, and is called before `pairs`. They raise CorpusError.
    """

    name: str
    languages: tuple[str, ...]  # source and target, such as ("pt", "en"); one of texts
    files: Callable[[], dict[str, list[Path]]]  # returns the files of each existing split
    pairs: Callable[[str], Iterator[TextPair]]  # yields the pairs of an existing split
    task: str = "translation"  # what it is for: a value of `config.TASKS`
    local: bool = False  # whether the files are the user's own
    documents: bool = True  # of texts: whether they are separate, not the lines of one file
    # If hashes divide the corpus: `select_by_hash` with its name and share. `pairs` reads "all".
    select: Callable[..., Iterator[TextPair]] | None = None

    @property
    def labelled(self) -> bool:
        """Whether the targets are labels."""
        return self.task == "classification"

    def read(self, split: str) -> Iterator[TextPair]:
        """Read a split, always in the same order. Pairs with an empty text are left out.

        Texts are in Unicode's form NFC (a text that is divided into lines or parts, each of them).
        Sources have no other white space than single spaces, translations are one line, as outputs
        are, and labels are stripped.

        split: one of `files()`, or `all`, which is every line of a file. Raises CorpusError if it
        does not exist.
        """
        if split not in self.files() and not (split == "all" and is_one_file(self.name)):
            raise CorpusError(f"{self.name} has no {split} split; {self.found(split)}")
        empty = 0
        texts = self.task == "language modeling"
        for source, target, *tag in self.pairs(split):
            source = normalize_source(source)
            target = to_nfc(target) if texts else to_line(target)
            target = target.strip() if self.labelled else target
            if not self.documents or ((texts or source) and target.strip()):
                yield source, target, *tag
            else:
                empty += 1
        if empty:
            pairs = amount(empty, "pair")
            warn(f"{self.name}: skipped {pairs} of the {split} split that had an empty text")

    def found(self, split: str) -> str:
        """Return what the corpus has instead of this split: files of a directory, or splits."""
        folder = Path(self.name)
        if not self.local or not folder.is_dir() or any(folder.glob("*" + PARQUET)):
            return f"it has {', '.join(self.files())}"
        expected = [f"{split}.{language}" for language in self.languages]
        if self.labelled or not self.documents:
            expected = [f"{split}/" if self.labelled else f"{split}.txt"]
        names = sorted(file.name for file in visible(folder))
        return f"expected {' and '.join(expected)}, found {first_few(names, 12)}"

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
        in_order = self.task == "language modeling" and split != "train"
        digest, pairs, sample, step, labels, found = hashlib.sha256(), 0, [], 1, set(), set()
        for pair in progress_bar(self.read(split), desc=f"reading {split}", unit="pair"):
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

    def texts_only(self) -> "Corpus":
        """Return the targets of translations, or the texts without their labels, as texts.

        If hashes divide the corpus, equal texts are in the same split, whatever their sources.
        """
        column = 0 if self.labelled else 1

        def texts(split: str) -> Iterator[TextPair]:
            return (("", pair[column]) for pair in self.pairs(split))

        def pairs(split: str) -> Iterator[TextPair]:
            return self.select(texts("all"), split, column=1) if self.select else texts(split)

        languages = (self.languages[column],)
        return replace(self, languages=languages, pairs=pairs, task="language modeling")

    def swap(self) -> "Corpus":
        """Exchange source and target language."""

        def pairs(split: str) -> Iterator[TextPair]:
            return ((target, source, *tag) for source, target, *tag in self.pairs(split))

        return replace(self, languages=self.languages[::-1], pairs=pairs)

    def fingerprint(self) -> str:
        """Hex digest of the corpus' files. Does not depend on where they are."""
        digest = hashlib.sha256(os.fsencode(Path(self.name).name))  # mini:9 has the files of mini
        for file in sorted(set(itertools.chain(*self.files().values()))):
            inside = file.is_relative_to(self.name)
            path = file.relative_to(self.name).as_posix() if inside else file.name
            if file.suffix == ".py":  # the generator of `mini`
                content = file_hash(file)
            else:
                with file.open("rb") as opened:  # may be too large for the memory
                    content = hashlib.file_digest(opened, "sha256").hexdigest()
            digest.update(os.fsencode(path) + content.encode())
        return digest.hexdigest()


def strip_markup(text: str) -> str:
    """Replace line breaks, including <br>, and runs of white space with single spaces."""
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def markup_to_text(text: str) -> str:
    """Replace <br /> with line feeds, and remove those at the ends."""
    return text.replace("<br />", "\n").strip("\n")


def visible(folder: Path) -> list[Path]:
    """Return what a directory contains, sorted, without names that begin with a dot."""
    return sorted(path for path in folder.iterdir() if path.name[0] != ".")


def assign_split(text: str, share: float = 0.02) -> str:
    """Assign a text to a split by its hash: this share to validation, the same to test.

    share: a multiple of 0.0001. Texts that `normalize_source` makes equal are in the same split,
    and adding texts to a corpus does not move the others.
    """
    digest = hashlib.sha256(normalize_source(text).encode()).digest()
    number, size = int.from_bytes(digest[:8], "big"), round(share * 10_000)
    place = number % 100 * 100 + number // 100 % 100  # from 0 to 9,999
    if place < 10_000 - 2 * size:
        return "train"
    return "validation" if place < 10_000 - size else "test"


def keep_share(corpus: Corpus, share: float) -> Corpus:
    """Keep this share of the training split, chosen by the hashes of the sources.

    Equal sources are kept or left out together, and a larger share includes all of a smaller one.
    Raises CorpusError for the lines of one text.
    """
    if not corpus.documents:
        raise CorpusError(
            f"--train-share {share}: {corpus.name} is one text, of which no lines can "
            "be left out: shorten the file"
        )

    def pairs(split: str) -> Iterator[TextPair]:
        if split != "train":
            return corpus.pairs(split)
        return (pair for pair in corpus.pairs(split) if hash_share(pair[0] or pair[1]) < share)

    return replace(corpus, pairs=pairs)


def hash_share(text: str) -> float:
    """Map a text to a number from 0 to 1, independent of its split in `assign_split`."""
    digest = hashlib.sha256(normalize_source(text).encode()).digest()
    return int.from_bytes(digest[8:16], "big") / 2**64


def suggestion(name: str) -> str:
    """Return a hint for a name that is nearly that of a corpus with a short name."""
    return did_you_mean(name, ("mini", "spa-eng", "shakespeare"))


def select_by_hash(
    name: str, pairs: Iterable[TextPair], split: str, column: int = 0, share: float | None = None
) -> Iterator[TextPair]:
    """Yield the pairs whose source, or the text in another column, is assigned to `split`.

    split: "all" yields every pair. name: used in error messages. share: see `assign_split`; by
    default 0.02. Raises CorpusError if one of the splits is empty.
    """
    if split == "all":
        yield from pairs
        return
    counts = dict.fromkeys(SPLITS, 0)
    for pair in pairs:
        assigned = assign_split(pair[column], share or 0.02)
        counts[assigned] += 1
        if assigned == split:
            yield pair
    for each, count in counts.items():
        if not count:
            raise CorpusError(
                f"{name}: none of its {sum(counts.values())} lines is in the {each} split; use at "
                "least 300 different sources, a larger --held-out-share, or a directory with one "
                "file per split"
            )


def hold_out(corpus: Corpus, share: float | None = None) -> Corpus:
    """Use a random part of the training split for validation if there is no such split.

    share: that part; by default a fifth, and without labels, where there can be millions of texts,
    at most 5,000 of them.
    """
    count = functools.cache(lambda: sum(1 for _ in corpus.pairs("train")))
    most = sys.maxsize if corpus.labelled or share else 5_000

    def files() -> dict[str, list[Path]]:
        existing = corpus.files()
        if "validation" in existing or "train" not in existing:
            return existing
        return {"train": existing["train"], "validation": existing["train"]} | existing

    def pairs(split: str) -> Iterator[TextPair]:
        if split not in ("train", "validation") or "validation" in corpus.files():
            return corpus.pairs(split)
        held_out = np.zeros(count(), bool)
        size = min(int(count() * (share or 0.2)), most)
        held_out[np.random.default_rng(0).permutation(count())[:size]] = True
        kept = held_out if split == "validation" else ~held_out
        return itertools.compress(corpus.pairs("train"), kept)

    return replace(corpus, files=files, pairs=pairs)
