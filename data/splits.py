"""What every kind of corpus gives: texts by split. And how one is divided that comes undivided."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import UserError

SPLITS = ("train", "validation", "test")
WAYS = (
    "mini, mini:SIZE, spa-eng, a translation dataset of tensorflow_datasets such as "
    "ted_hrlr_translate/pt_to_en, a directory with train.SRC and train.TGT, or a .tsv file; with "
    "--model classifier a dataset such as imdb_reviews, a directory with train/LABEL/*.txt, or a "
    ".tsv file"
)


class CorpusError(UserError):
    """A corpus cannot be read: one sentence that says where, why and what to do."""


class Split(NamedTuple):
    """Texts in a fixed order, and what belongs to each: its translation, or its label."""

    sources: list[str]
    targets: list[str]  # targets[i] belongs to sources[i]
    tags: list[str] | None = None  # what each pair exercises, where the corpus knows

    def sha256(self) -> str:
        """Hex hash of the texts; their order, their boundaries and the direction all count."""
        return hashlib.sha256(json.dumps([self.sources, self.targets]).encode()).hexdigest()

    def take(self, indices) -> "Split":
        """The pairs of these numbers."""
        return Split(*(column and [column[i] for i in indices] for column in self))


class Source(NamedTuple):
    """What a kind of corpus answers; only `languages` must be known before the data is here."""

    languages: tuple[str, str]
    files: Callable[[], dict[str, list[Path]]]  # what each existing split is read from
    read: Callable[[str], Split]
    labelled: bool = False  # the targets are labels, not translations


def plain(text: str) -> str:
    """A text in one line, without the line breaks of the web page that it comes from."""
    return re.sub(r"(<br\s*/?>|\s)+", " ", text).strip()


def share(text: str) -> str:
    """The split a text belongs to, whatever else is in the file: duplicates stay together.

    96 % of all texts train, 2 % validate, 2 % test.
    """
    percent = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "train" if percent < 96 else "validation" if percent < 98 else "test"


def divided(name: str, pairs) -> dict[str, Split]:
    """(source, target) pairs → their splits, by `share` of the source. Raises CorpusError."""
    splits = {split: Split([], []) for split in SPLITS}
    for source, target, *_ in pairs:
        split = splits[share(source)]
        split.sources.append(source)
        split.targets.append(target)
    for split_name, split in splits.items():
        if not split.sources:
            raise CorpusError(
                f"{name}: none of its {len(pairs)} lines falls to the {split_name} split; give 300 "
                "different sources or more, or a directory with splits of your own"
            )
    return splits


def hold_out(source: Source) -> Source:
    """A Source with a validation split: a fifth of the training split, drawn by a seeded shuffle,
    where it has none of its own.
    """

    def files():
        found = source.files()
        if "validation" not in found and "train" in found:
            found = {"train": found["train"], "validation": found["train"]} | found
        return found

    def read(split):
        if split not in ("train", "validation") or "validation" in source.files():
            return source.read(split)
        whole = source.read("train")
        order = np.random.default_rng(0).permutation(len(whole.sources))
        fifth = len(order) // 5
        return whole.take(np.sort(order[:fifth] if split == "validation" else order[fifth:]))

    return source._replace(files=files, read=read)
