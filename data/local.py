"""Corpora in local files: directories, tables and texts."""

import codecs
import functools
import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.splits import (
    SPLITS,
    TEXTS,
    Corpus,
    CorpusError,
    TextPair,
    hold_out,
    select_by_hash,
    strip_markup,
    visible,
)
from utils import amount, first_few, first_line, is_utf8, warn

PART = 1 << 12  # maximum bytes of a line of text: text without line feeds is divided
MOST_LABELS = 1000  # a column of a table with more different texts does not hold labels
HEADERS = ("category", "class", "label", "sentiment")  # names of a column of labels


def folder(path: Path) -> Corpus:
    """Open a directory with train.SRC and train.TGT, and likewise validation.* and test.*.

    Line n of one file is the translation of line n of the other. Files may be compressed (.gz).
    Raises CorpusError.
    """
    # An uncompressed file takes precedence. Editors call their backups train.en~.
    present = {file.name.removesuffix(".gz"): file for file in visible(path)[::-1]}
    names = [n for n in present if n.partition(".")[0] in SPLITS and "." in n and n[-1] != "~"]
    extensions = sorted({name.partition(".")[2] for name in names})
    if len(extensions) != 2:
        raise CorpusError(
            f"{path}: needs train.SRC and train.TGT with exactly two extensions, of which the "
            "alphabetically first is the source, or, with --model language_model, train.txt and "
            f"validation.txt; found {first_few(sorted(present), 12) or 'none'} (a file of lines "
            "with source TAB target needs a name that ends in .tsv)"
        )
    warn_of_ignored(path, [present[name] for name in sorted({*present} - {*names})])
    files = {}
    for split in SPLITS:
        pair = [f"{split}.{extension}" for extension in extensions]
        missing = [name for name in pair if name not in names]
        if len(missing) == 1:
            raise CorpusError(f"{path / missing[0]}: missing; add it or remove the other file")
        if not missing:
            files[split] = [present[name] for name in pair]

    def pairs(split: str) -> Iterator[TextPair]:
        for pair in itertools.zip_longest(*map(read_lines, files[split])):
            if None in pair:
                counts = [sum(1 for _ in read_lines(file)) for file in files[split]]
                raise CorpusError(
                    f"{files[split][0]} has {counts[0]} lines but {files[split][1]} has "
                    f"{counts[1]}: line n of one must be the translation of line n of the other"
                )
            yield pair

    return Corpus(str(path), tuple(extensions), lambda: files, pairs, local=True)


def warn_of_ignored(folder: Path, files: list[Path]) -> None:
    """Warn of files in the directory of a corpus that are not part of it."""
    if files:
        ignored, names = amount(len(files), "file"), first_few([file.name for file in files], 3)
        warn(f"{folder}: ignoring {ignored} that the corpus does not include: {names}")


def labelled_folder(
    path: Path, clean: Callable[[str], str] = strip_markup, share: float | None = None
) -> Corpus:
    """Open a directory with train/LABEL/*.txt, and likewise test and validation, as in `aclImdb`.

    The labels are the directories that all splits have: not `aclImdb/train/unsup`. clean: applied
    to each text. share: see `hold_out`. Raises CorpusError.
    """
    splits = [split for split in SPLITS if (path / split).is_dir()]
    if others := [f.name for f in visible(path) if f.is_dir() and f.name not in SPLITS]:
        warn(f"{path}: ignoring {first_few(others, 3)}: splits are named {', '.join(SPLITS)}")
    present = {split: visible(path / split) for split in splits}
    for split, found in present.items():
        warn_of_ignored(path / split, [file for file in found if not file.is_dir()])
    folders = [{file.name for file in found if file.is_dir()} for found in present.values()]
    labels = sorted(set.intersection(*folders)) if folders else []
    if ignored := sorted(set().union(*folders) - {*labels}):
        warn(f"{path}: ignoring {', '.join(ignored)}, missing in a split")
    if odd := [label for label in labels if not is_utf8(label)]:
        raise CorpusError(f"{path}: the label {odd[0]!r} is not UTF-8: rename its directories")
    if len(labels) < 2:
        raise CorpusError(
            f"{path}: needs train/LABEL/*.txt with at least two labels, the same ones in every "
            f"split; all splits have {', '.join(labels) or 'none'}"
        )

    def text_files(split: str, label: str) -> list[Path]:
        files, others = [], []
        for file in visible(path / split / label):
            (files if file.suffix == ".txt" else others).append(file)
        if not files:
            raise CorpusError(f"{path / split / label}: contains no .txt file; add some")
        warn_of_ignored(path / split / label, others)
        return files

    def pairs(split: str) -> Iterator[TextPair]:
        files = [(file, label) for label in labels for file in text_files(split, label)]
        for i in np.random.default_rng(0).permutation(len(files)):
            file, label = files[i]
            yield clean("\n".join(read_lines(file, may_be_empty=True))), label

    def files() -> dict[str, list[Path]]:
        return {
            split: [f for label in labels for f in text_files(split, label)] for split in splits
        }

    corpus = Corpus(str(path), ("text", "label"), files, pairs, "classification", local=True)
    return hold_out(corpus, share)


def table(
    path: Path, labelled: bool = False, any_columns: bool = False, share: float | None = None
) -> Corpus:
    """Open a .tsv or .tsv.gz file with source TAB target, or with label TAB text.

    Its split `all` is every line. any_columns: whether one column may have labels, because only the
    other is used. share: see `select_by_hash`. Raises CorpusError.
    """
    languages = ("text", "label") if labelled else ("source", "target")

    def all_pairs() -> Iterator[TextPair]:
        longer, header, repeated, different = 0, "", 0, (set(), set())
        for number, line in enumerate(read_lines(path), 1):
            columns = line.split("\t") if line.strip() else ["", ""]
            if len(columns) == 1:
                order = "label and text" if labelled else "source and target"
                raise CorpusError(f"{path}:{number}: add a TAB between {order}")
            longer += len(columns) > 2
            header = columns[0] if number == 1 else header
            repeated += number > 1 and columns[0] == header
            for texts, text in zip(different, columns, strict=False):
                if len(texts) <= MOST_LABELS:
                    texts.add(text)
            # With labels, further columns belong to the text.
            yield (" ".join(columns[1:]), columns[0]) if labelled else tuple(columns[:2])
        if not any_columns:
            check_columns(path, labelled, number, *map(len, different))
        if longer and not labelled:
            warn(f"{path}: using only the first two columns of {amount(longer, 'line')}")
        if labelled and header.lower() in HEADERS and not repeated:
            warn(f"{path}: the first line looks like a header but is used as a text: remove it")

    def pairs(split: str) -> Iterator[TextPair]:
        return select(all_pairs(), split)

    select = functools.partial(select_by_hash, str(path), share=share)
    files, task = dict.fromkeys(SPLITS, [path]), "classification" if labelled else "translation"
    return Corpus(str(path), languages, lambda: files, pairs, task, local=True, select=select)


def text_folder(path: Path) -> Corpus:
    """Open a directory with train.txt, validation.txt and, optionally, test.txt: one text each.

    Files may be compressed (.gz). Raises CorpusError.
    """
    found = {split: [path / f"{split}{ending}" for ending in TEXTS] for split in SPLITS}
    files = {split: [f for f in each if f.is_file()][:1] for split, each in found.items()}
    files = {split: each for split, each in files.items() if each}
    for split in ("train", "validation"):
        if split not in files:
            raise CorpusError(f"{path / split}.txt: missing; add it, or give one .txt file instead")

    used = [file for each in files.values() for file in each]
    warn_of_ignored(path, [file for file in visible(path) if file not in used])

    def pairs(split: str) -> Iterator[TextPair]:
        return (("", text) for text in read_text(files[split][0]))

    return Corpus(
        str(path), ("text",), lambda: files, pairs, "language modeling", True, documents=False
    )


def text(path: Path, share: float | None = None) -> Corpus:
    """Open a .txt or .txt.gz file: see `split_by_position`. The split `all` is the whole file."""
    return replace(split_by_position(str(path), lambda: read_text(path), path, share), local=True)


def split_by_position(
    name: str, read: Callable[[], Iterator[str]], path: Path, share: float | None = None
) -> Corpus:
    """Divide one text: the last part of its characters test, an equal part before it validates.

    A line is in the split of its first character. read: returns the lines. share: that part, by
    default 0.05. Raises CorpusError if a split is empty.
    """
    share = share or 0.05
    length = functools.cache(lambda: sum(map(len, read())))

    def pairs(split: str) -> Iterator[TextPair]:
        if split == "all":
            yield from (("", line) for line in read())
            return
        position, counts = 0, dict.fromkeys(SPLITS, 0)
        for line in read():
            place = position / length()
            own = "validation" if place < 1 - share else "test"
            own = "train" if place < 1 - 2 * share else own
            counts[own] += 1
            position += len(line)
            if split == own:
                yield "", line
        if not all(counts.values()):
            raise CorpusError(
                f"{name}: its {sum(counts.values())} lines are too few for three splits: add text, "
                "or use a directory with one file per split"
            )

    files = dict.fromkeys(SPLITS, [path])
    return Corpus(name, ("text",), lambda: files, pairs, "language modeling", documents=False)


def read_text(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 file, each with its line feed. Raises CorpusError.

    A line of more than PART bytes is divided. Carriage returns before a line feed are removed.
    """
    decoder, number, empty = codecs.getincrementaldecoder("utf-8-sig")(), 1, True
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while part := file.readline(PART):
                while part.endswith(b"\r") and (following := file.readline(1)):
                    part += following
                if line := decoder.decode(part).replace("\r\n", "\n"):
                    empty = False
                    yield line
                number += part.endswith(b"\n")
            decoder.decode(b"", final=True)
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read: {first_line(error)}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}:{number}: not UTF-8; convert the file") from error
    if empty:
        raise CorpusError(f"{path}: the file is empty")


def check_columns(path: Path, labelled: bool, lines: int, first: int, second: int) -> None:
    """Warn if a table seems to have labels where translations or texts are expected.

    first, second: number of different texts in each column. Few of them may be labels.
    """
    labels_first, labels_second = (n <= min(MOST_LABELS, lines / 20) for n in (first, second))
    counts = f"{first:,} and {second:,} different texts in its two columns of {lines:,} lines"
    if labelled and labels_second and not labels_first:
        warn(f"{path} has {counts}: the label must be first, then a TAB, then the text")
    if not labelled and (labels_first or labels_second):
        order = "" if labels_first else " and put the label first"
        warn(f"{path} has {counts}: for labels, train with --model classifier{order}")


def read_lines(path: Path, may_be_empty: bool = False) -> Iterator[str]:
    """Read the lines of a UTF-8 file, compressed if its name ends in .gz. Raises CorpusError."""
    number = 0
    try:
        # str.splitlines would also split at U+2028, for example, and misalign the two files.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read: {first_line(error)}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}:{number}: not UTF-8; convert the file") from error
    if not number and not may_be_empty:
        raise CorpusError(f"{path}: the file is empty")
