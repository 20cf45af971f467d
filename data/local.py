"""Corpora in files of your own: folders and tables, of translations and of texts with labels."""

import codecs
import itertools
import sys
from pathlib import Path

import numpy as np

from data.splits import SPLITS, CorpusError, Source, Split, divided, hold_out, plain


def folder(path: Path) -> Source:
    """train.SRC and train.TGT, line by line translations of each other; likewise the others."""
    found = [file.name for split in SPLITS for file in path.glob(f"{split}.*")]
    extensions = sorted({file.partition(".")[2] for file in found})
    if len(extensions) != 2:
        raise CorpusError(
            f"{path}: needs train.SRC and train.TGT, and so on, with exactly two extensions, the "
            f"alphabetically first being the source; found {', '.join(sorted(found)) or 'none'}"
        )
    names = {split: [f"{split}.{extension}" for extension in extensions] for split in SPLITS}
    files = {s: [path / name for name in pair] for s, pair in names.items() if {*pair} & {*found}}

    def read(split):
        sources, targets = map(lines, files[split])
        if len(sources) != len(targets):
            raise CorpusError(
                f"{files[split][0]} has {len(sources)} lines but {files[split][1]} has "
                f"{len(targets)}: line n of one must translate line n of the other"
            )
        refuse_empty(files[split][0], sources)
        refuse_empty(files[split][1], targets)
        return Split(sources, targets)

    for file in itertools.chain(*files.values()):
        if not file.exists():
            raise CorpusError(f"{file}: missing, though the other half of the split is there")
    return Source((extensions[0], extensions[1]), lambda: files, read)


def labelled_folder(path: Path) -> Source:
    """train/LABEL/*.txt, a text a file, and likewise test and validation, as `aclImdb` has them.

    The labels are those of `train` that every other split has too: `aclImdb/train/unsup` is none.
    """
    splits = [split for split in SPLITS if (path / split).is_dir()]
    folders = [{f.name for f in (path / split).iterdir() if f.is_dir()} for split in splits]
    labels = sorted(set.intersection(*folders)) if folders else []
    if left_out := sorted(set().union(*folders) - {*labels}):
        print(f"{path}: not in every split, so no label: {', '.join(left_out)}", file=sys.stderr)
    if len(labels) < 2:
        raise CorpusError(
            f"{path}: needs train/LABEL/*.txt for two labels or more, the same ones in every "
            f"split; all splits have {', '.join(labels) or 'none'}"
        )

    def of(split, label):
        found = sorted((path / split / label).glob("*.txt"))
        if not found:
            raise CorpusError(f"{path / split / label}: holds no .txt file")
        return found

    def read(split):
        texts = Split([], [])
        for label in labels:
            for file in of(split, label):
                text = plain("\n".join(lines(file)))
                refuse_empty(file, [text])
                texts.sources.append(text)
                texts.targets.append(label)
        # Not label by label, as they were read.
        return texts.take(np.random.default_rng(0).permutation(len(texts.sources)))

    def files():
        return {split: [file for label in labels for file in of(split, label)] for split in splits}

    return hold_out(Source(("text", "label"), files, read, labelled=True))


def table(path: Path) -> Source:
    """source TAB target; further columns are ignored."""
    return _table(path, Source(("source", "target"), None, None))


def labelled_table(path: Path) -> Source:
    """label TAB text."""
    return _table(path, Source(("text", "label"), None, None, labelled=True))


def _table(path: Path, source: Source) -> Source:
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")

    def read(split):
        rows = [line.split("\t") for line in lines(path)]
        for number, row in enumerate(rows, 1):
            if len(row) < 2:
                columns = "label and text" if source.labelled else "source and target"
                raise CorpusError(f"{path}:{number}: no TAB between {columns}")
        for column in 0, 1:
            refuse_empty(path, [row[column] for row in rows])
        if source.labelled:
            # A text of tabs is a text: only the first one ends the label.
            rows = [(" ".join(row[1:]), row[0]) for row in rows]
        return divided(str(path), rows)[split]

    return source._replace(files=lambda: dict.fromkeys(SPLITS, [path]), read=read)


def lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends. Raises CorpusError."""
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
    # Not splitlines: it also splits at U+2028 and its kin, and the two files would lose step.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def refuse_empty(path: Path, texts: list[str]) -> None:
    """Raise CorpusError where a text is empty."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise CorpusError(f"{path}:{number}: an empty text; remove it and what belongs to it")
