"""`Corpus` and `Split`, and how a corpus without splits is split."""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import UserError

SPLITS = ("train", "validation", "test")
SUPPORTED = (
    "mini, mini:SIZE, spa-eng, a translation dataset of tensorflow_datasets such as "
    "ted_hrlr_translate/pt_to_en, a directory with train.SRC and train.TGT, or a .tsv file; with "
    "--model classifier a dataset such as imdb_reviews, a directory with train/LABEL/*.txt, or a "
    ".tsv file"
)


class CorpusError(UserError):
    """A corpus cannot be used. The message names the place, the reason and the remedy."""


class Split(NamedTuple):
    """Texts in a fixed order, with their translations or labels."""

    sources: list[str]
    targets: list[str]  # targets[i] is the translation or the label of sources[i]
    tags: list[str] | None = None  # the phenomenon that each pair tests; `mini` only

    def sha256(self) -> str:
        """Hex digest of the texts. Depends on their order and on the direction."""
        return hashlib.sha256(json.dumps([self.sources, self.targets]).encode()).hexdigest()

    def take(self, indices: Iterable[int]) -> "Split":
        """Return the pairs at these indices."""
        indices = list(indices)
        return Split(*(column and [column[i] for i in indices] for column in self))

    def swap(self) -> "Split":
        """Exchange sources and targets."""
        return self._replace(sources=self.targets, targets=self.sources)


@dataclass(frozen=True)
class Corpus:
    """A corpus of translations, or of texts with labels.

    Only `files` and `read`, and the methods that call them, need the data: they download it if
    necessary. They raise CorpusError.
    """

    name: str
    languages: tuple[str, str]  # source and target, such as ("pt", "en")
    files: Callable[[], dict[str, list[Path]]]  # returns the files of each existing split
    read: Callable[[str], Split]  # reads an existing split
    labelled: bool = False  # whether the targets are labels instead of translations
    local: bool = False  # whether it consists of files of the user

    def splits(self) -> list[str]:
        """Names of the existing splits."""
        return list(self.files())

    def all_files(self) -> list[Path]:
        """The files of all splits, sorted."""
        return sorted(set(itertools.chain(*self.files().values())))

    def load(self, split: str) -> Split:
        """Load a split, always in the same order. Raises CorpusError if it does not exist."""
        existing = self.splits()
        if split not in existing:
            raise CorpusError(f"{self.name} has no {split!r} split: use {', '.join(existing)}")
        return self.read(split)

    def swap(self) -> "Corpus":
        """Exchange source and target language."""
        languages = self.languages[::-1]
        return replace(self, languages=languages, read=lambda split: self.read(split).swap())

    def fingerprint(self) -> str:
        """Hex digest of the corpus' files. Does not depend on the directory they are in."""
        digest = hashlib.sha256(Path(self.name).name.encode())  # mini:9 has the files of mini
        for file in self.all_files():
            inside = file.is_relative_to(self.name)
            path = file.relative_to(self.name).as_posix() if inside else file.name
            digest.update(path.encode() + hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()


def strip_markup(text: str) -> str:
    """Replace line breaks, also HTML's, and runs of white space with single spaces."""
    return re.sub(r"(<br\s*/?>|\s)+", " ", text).strip()


def assign_split(text: str) -> str:
    """Assign a text to a split by its hash: 96 % train, 2 % validation, 2 % test.

    Equal texts are in the same split, and adding texts to a corpus moves no other.
    """
    percent = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "train" if percent < 96 else "validation" if percent < 98 else "test"


def split_by_hash(name: str, pairs: Sequence[Sequence[str]]) -> dict[str, Split]:
    """Split (source, target, …) rows by the hash of the source.

    name: used in error messages. Raises CorpusError if a split is empty.
    """
    splits = {split: Split([], []) for split in SPLITS}
    for source, target, *_ in pairs:
        split = splits[assign_split(source)]
        split.sources.append(source)
        split.targets.append(target)
    for split_name, split in splits.items():
        if not split.sources:
            raise CorpusError(
                f"{name}: none of its {len(pairs)} lines is in the {split_name} split; use at "
                "least 300 different sources, or a directory with one file per split"
            )
    return splits


def hold_out(corpus: Corpus) -> Corpus:
    """Use a random fifth of the training split for validation if there is no such split."""

    train = functools.cache(lambda: corpus.read("train"))

    def files() -> dict[str, list[Path]]:
        existing = corpus.files()
        if "validation" in existing or "train" not in existing:
            return existing
        return {"train": existing["train"], "validation": existing["train"]} | existing

    def read(split: str) -> Split:
        if split not in ("train", "validation") or "validation" in corpus.files():
            return corpus.read(split)
        texts = train()
        order = np.random.default_rng(0).permutation(len(texts.sources))
        fifth = len(order) // 5
        return texts.take(np.sort(order[:fifth] if split == "validation" else order[fifth:]))

    return replace(corpus, files=files, read=read)
