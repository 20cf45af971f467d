"""Corpora in local files: directories and tables, with translations or labels."""

import codecs
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.splits import (
    SPLITS,
    Corpus,
    CorpusError,
    TextPair,
    hold_out,
    select_by_hash,
    strip_markup,
)
from utils import warn


def folder(path: Path) -> Corpus:
    """Open a directory with train.SRC and train.TGT, and likewise validation.* and test.*.

    Line n of one file is the translation of line n of the other. Raises CorpusError.
    """
    present = {file.name for split in SPLITS for file in path.glob(f"{split}.*")}
    extensions = sorted({name.partition(".")[2] for name in present})
    if len(extensions) != 2:
        raise CorpusError(
            f"{path}: needs train.SRC and train.TGT with exactly two extensions, of which the "
            f"alphabetically first is the source; found {', '.join(sorted(present)) or 'none'}"
        )
    source, target = extensions
    files = {
        split: [path / f"{split}.{source}", path / f"{split}.{target}"]
        for split in SPLITS
        if {f"{split}.{source}", f"{split}.{target}"} & present
    }
    for file in itertools.chain(*files.values()):
        if not file.exists():
            raise CorpusError(f"{file}: missing; add it or remove the other file of the split")

    def rows(split: str) -> Iterator[TextPair]:
        lines = itertools.zip_longest(*map(read_lines, files[split]))
        for number, row in enumerate(lines, 1):
            if None in row:
                counts = [sum(1 for _ in read_lines(file)) for file in files[split]]
                raise CorpusError(
                    f"{files[split][0]} has {counts[0]} lines but {files[split][1]} has "
                    f"{counts[1]}: line n of one must be the translation of line n of the other"
                )
            for file, text in zip(files[split], row, strict=True):
                if not text.strip():
                    raise CorpusError(f"{file}:{number}: empty text; remove it and its counterpart")
            yield row

    return Corpus(str(path), (source, target), lambda: files, rows, local=True)


def labelled_folder(path: Path) -> Corpus:
    """Open a directory with train/LABEL/*.txt, and likewise test and validation, as in `aclImdb`.

    The labels are the directories that all splits have: not `aclImdb/train/unsup`. Raises
    CorpusError.
    """
    splits = [split for split in SPLITS if (path / split).is_dir()]
    folders = [{f.name for f in (path / split).iterdir() if f.is_dir()} for split in splits]
    labels = sorted(set.intersection(*folders)) if folders else []
    if ignored := sorted(set().union(*folders) - {*labels}):
        warn(f"{path}: ignoring {', '.join(ignored)}, missing in a split")
    if len(labels) < 2:
        raise CorpusError(
            f"{path}: needs train/LABEL/*.txt with at least two labels, the same ones in every "
            f"split; all splits have {', '.join(labels) or 'none'}"
        )

    for label in labels:
        if label != label.encode("utf-8", "replace").decode():
            raise CorpusError(f"{path}: the directory name {label!r} is not UTF-8; rename it")

    def text_files(split: str, label: str) -> list[Path]:
        files = sorted((path / split / label).glob("*.txt"))
        if not files:
            raise CorpusError(f"{path / split / label}: contains no .txt file; add some")
        return files

    def rows(split: str) -> Iterator[TextPair]:
        files = [(file, label) for label in labels for file in text_files(split, label)]
        for i in np.random.default_rng(0).permutation(len(files)):
            file, label = files[i]
            text = strip_markup("\n".join(read_lines(file)))
            if not text:
                raise CorpusError(f"{file}: empty text; delete the file")
            yield text, label

    def files() -> dict[str, list[Path]]:
        return {
            split: [f for label in labels for f in text_files(split, label)] for split in splits
        }

    return hold_out(Corpus(str(path), ("text", "label"), files, rows, labelled=True, local=True))


def table(path: Path, labelled: bool = False) -> Corpus:
    """Open a .tsv file with source TAB target, or with label TAB text. Blank lines are skipped.

    Raises CorpusError.
    """
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    columns = ("label", "text") if labelled else ("source", "target")

    def all_rows() -> Iterator[TextPair]:
        blank = []
        for number, line in enumerate(read_lines(path), 1):
            row = line.split("\t")
            if not line.strip():
                blank.append(number)
            elif len(row) < 2:
                raise CorpusError(f"{path}:{number}: add a TAB between {' and '.join(columns)}")
            elif not row[0].strip() or not row[1].strip():
                raise CorpusError(f"{path}:{number}: empty text; remove the line")
            else:  # further columns belong to the text, if there are labels
                yield (" ".join(row[1:]), row[0]) if labelled else tuple(row[:2])
        if blank:
            warn(f"{path}: blank lines skipped: {len(blank):,}, the first is line {blank[0]:,}")

    def rows(split: str) -> Iterator[TextPair]:
        return select_by_hash(str(path), all_rows(), split)

    files = dict.fromkeys(SPLITS, [path])
    languages = ("text", "label") if labelled else columns
    return Corpus(str(path), languages, lambda: files, rows, labelled, local=True)


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 file. Raises CorpusError."""
    number = 0
    try:
        # str.splitlines would also split at U+2028, for example, and misalign the two files.
        with path.open("rb") as file:
            if file.read(3) != codecs.BOM_UTF8:
                file.seek(0)
            for line in file:
                number += 1
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}:{number}: not UTF-8; convert the file") from error
    if not number:
        raise CorpusError(f"{path}: the file is empty")
