"""Corpora in local files: directories and tables, with translations or labels."""

import codecs
import functools
import itertools
from pathlib import Path

import numpy as np

from config import warn
from data.splits import SPLITS, Corpus, CorpusError, Split, hold_out, split_by_hash, strip_markup


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

    def read(split: str) -> Split:
        sources, targets = map(read_lines, files[split])
        if len(sources) != len(targets):
            raise CorpusError(
                f"{files[split][0]} has {len(sources)} lines but {files[split][1]} has "
                f"{len(targets)}: line n of one must be the translation of line n of the other"
            )
        for file, texts in zip(files[split], (sources, targets), strict=True):
            check_not_empty(file, texts)
        return Split(sources, targets)

    return Corpus(str(path), (source, target), lambda: files, read, local=True)


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

    def text_files(split: str, label: str) -> list[Path]:
        files = sorted((path / split / label).glob("*.txt"))
        if not files:
            raise CorpusError(f"{path / split / label}: contains no .txt file; add some")
        return files

    def read(split: str) -> Split:
        texts = Split([], [])
        for label in labels:
            for file in text_files(split, label):
                text = strip_markup("\n".join(read_lines(file)))
                if not text:
                    raise CorpusError(f"{file}: empty text; delete the file")
                texts.sources.append(text)
                texts.targets.append(label)
        return texts.take(np.random.default_rng(0).permutation(len(texts.sources)))

    def files() -> dict[str, list[Path]]:
        return {
            split: [f for label in labels for f in text_files(split, label)] for split in splits
        }

    return hold_out(Corpus(str(path), ("text", "label"), files, read, labelled=True, local=True))


def table(path: Path, labelled: bool = False) -> Corpus:
    """Open a .tsv file with source TAB target, or with label TAB text. Blank lines are skipped.

    Raises CorpusError.
    """
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    columns = ("label", "text") if labelled else ("source", "target")

    @functools.cache
    def splits() -> dict[str, Split]:
        rows, blank = [], []
        for number, line in enumerate(read_lines(path), 1):
            row = line.split("\t")
            if not line.strip():
                blank.append(number)
            elif len(row) < 2:
                raise CorpusError(f"{path}:{number}: add a TAB between {' and '.join(columns)}")
            elif not row[0].strip() or not row[1].strip():
                raise CorpusError(f"{path}:{number}: empty text; remove the line")
            else:  # further columns belong to the text, if there are labels
                rows.append((" ".join(row[1:]), row[0]) if labelled else row)
        if blank:
            warn(f"{path}: blank lines skipped: {len(blank):,}, the first is line {blank[0]:,}")
        return split_by_hash(str(path), rows)

    files = dict.fromkeys(SPLITS, [path])
    languages = ("text", "label") if labelled else columns
    return Corpus(
        str(path), languages, lambda: files, lambda split: splits()[split], labelled, local=True
    )


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file. Raises CorpusError."""
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        text = raw.decode()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{path}:{line}: not UTF-8; convert the file") from error
    if not text:
        raise CorpusError(f"{path}: the file is empty")
    # str.splitlines would also split at U+2028, for example, and misalign the two files.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def check_not_empty(path: Path, texts: list[str]) -> None:
    """Raise CorpusError if a text is empty. The text with index i is in line i + 1 of the file."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise CorpusError(f"{path}:{number}: empty text; remove it and its counterpart")
