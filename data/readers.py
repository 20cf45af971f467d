"""Readers of corpora in files, and of the built-in one. Each returns a `Corpus`."""

import contextlib
import csv
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from config import Config
from data import mini
from data.splits import LABELS, SPLITS, TEXT, Corpus, CorpusError, Files, Row
from data.text import read_lines, without_markup
from utils import amount, first_line, warn

TABLES, TEXTS = (".tsv", ".csv", ".tsv.gz", ".csv.gz"), (".txt", ".txt.gz")
PARQUET = ".parquet"
FILES = (*TABLES, *TEXTS, PARQUET)
LONGEST = 1 << 12  # characters of a line of text: text without line feeds is divided


def built_in(size: int | None = None) -> Corpus:
    """Open the corpus `mini`. size: that of its training split."""

    def rows(part: str) -> Iterator[Row]:
        return iter(mini.generate(part, size if part == "train" else None))

    name = f"mini:{size}" if size else "mini"
    return Corpus(name, ("pt", "en"), lambda: {split: [] for split in mini.SIZES}, rows)


def local(path: Path, config: Config) -> Corpus:
    """Open a file, whose rows are divided, or a directory with files of each split.

    Both are tables, texts or Parquet files. A directory may also have train/LABEL/*.txt, as in
    `aclImdb`, or train.SRC and train.TGT. Raises CorpusError.
    """
    files = by_split(path) if path.is_dir() else {"all": [path]}
    if config.task == TEXT:  # train.txt, and not another file next to it
        texts = {x: [y for y in files[x] if has_ending(path, y, TEXTS)] for x in files}
        files = texts if all(texts.values()) else files
    first = next(iter(files.values()))[0]
    if first.name.endswith(PARQUET):
        return parquet(path, files, config)
    if has_ending(path, first, TEXTS + TABLES):
        for entry, *others in files.values():
            if others:
                warn(f"{path}: reading {entry.name}, not {others[0].name}")
        files = {split: entries[:1] for split, entries in files.items()}
    if has_ending(path, first, TEXTS):
        return of_files(path, ("text",), files, read_text, TEXT)
    if has_ending(path, first, TABLES):
        header = next(csv_rows(first), (1, []))[1] if ".csv" in first.suffixes else []
        default = header if "label" in header else []
        names, task = choose_columns(path, header, default, config)
        columns = names or (("text", "label") if task == LABELS else ("source", "target"))
        read = functools.partial(read_table, names=names, labelled=task == LABELS)
        return of_files(path, columns, files, read, task)
    if not path.is_dir():
        raise CorpusError(f"{path}: not a .tsv (source TAB target), .csv, .txt or .parquet file")
    return labelled_folder(path, files) if first.is_dir() else parallel(path, files)


def has_ending(path: Path, entry: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a file at `path`, or in the directory `path`, has one of these endings.

    In a directory, train.en.txt has the ending .en.txt: it is one side of a parallel text.
    """
    if path.is_dir():
        return "." + entry.name.partition(".")[2] in endings
    return entry.name.endswith(endings)


def choose_columns(
    path: Path, names: Sequence[str], default: list[str], config: Config
) -> tuple[list[str], str]:
    """Return which columns of a table to read, and the task that they are for.

    They are those of `--languages`, or else the first of these that the table has: `text` and
    `label`; for a language model, `text`; `source` and `target`; or else `default`. A label is the
    last of them. Raises CorpusError.

    names: those of the table's columns, empty if they have none. Of translations, `source` is the
    first, or else that of the table, so that a hash of the same column decides in both directions.
    """
    known = [["text", "label"]]
    known += [["text"]] if config.task == TEXT else []
    known += [["source", "target"]] if config.task != LABELS else []
    columns = next((x for x in known if {*x} <= {*names}), default)
    if config.languages and names:
        columns = config.languages.split(",")
    if len(columns) > 2 or not {*columns} <= {*names}:
        text = f"{path}: choose --languages SOURCE,TARGET from its columns:"
        raise CorpusError(f"{text} {', '.join(names)[:200]}")
    if len(columns) == 1:
        return columns, TEXT
    if config.task == LABELS or "label" in columns:
        return sorted(columns, key=lambda x: (x == "label") - (x == "text")), LABELS
    return sorted(columns, key=["source", *names].index), "translation"


def of_files(
    name: str | Path,
    columns: Sequence[str],
    files: Files | Callable[[], Files],
    read: Callable[..., Iterator[Row]],
    task: str = "translation",
) -> Corpus:
    """Return a corpus of files. files: of each part, or a function that downloads them.

    read: yields the rows of the files of a part.
    """
    parts = files if callable(files) else lambda: files

    def rows(part: str) -> Iterator[Row]:
        return read(*parts()[part])

    documents = read is not read_text  # otherwise the lines of one text
    return Corpus(str(name), tuple(columns), parts, rows, task, documents)


def visible(folder: Path) -> list[Path]:
    """Return what a directory contains, sorted, without hidden files and backups of editors."""
    return sorted(x for x in folder.iterdir() if x.name[0] != "." and x.name[-1] != "~")


def by_split(path: Path) -> Files:
    """Group the files of a directory by the split that their names begin with. Without files of
    `validation`, those of `dev` are it. Parquet files without the name of a split, or of `train`
    only, are divided.
    """
    entries = visible(path)
    tables = [entry for entry in entries if entry.name.endswith(PARQUET)]
    files = {split: [] for split in (*SPLITS, "dev")}
    for entry in tables or entries:
        files.get(re.split(r"[^a-z]", entry.name)[0], []).append(entry)
    files["validation"] = files["validation"] or files["dev"]
    files = {split: files[split] for split in SPLITS if files[split]}
    ignored = [x.name for x in entries if x not in itertools.chain(*files.values())]
    if tables and {*files} <= {"train"}:
        ignored = ignored if files else []
        files = {"all": files.get("train", tables)}
    if not files:
        raise CorpusError(f"{path}: no file of a split, such as train.SRC (see docs/data.md)")
    if ignored:
        warn(f"{path}: ignoring {amount(len(ignored), 'file')} of no split: {ignored[0]}")
    return files


def labelled_folder(path: Path, files: Files) -> Corpus:
    """Open a directory with train/LABEL/*.txt, and likewise test and validation.

    The labels are the directories that all splits have: not `aclImdb/train/unsup`. The texts are
    shuffled. Raises CorpusError.
    """
    names = [{x.name for x in visible(folder) if x.is_dir()} for folder, *_ in files.values()]
    labels = sorted(set.intersection(*names))
    if len(labels) < 2:
        raise CorpusError(f"{path}: needs train/LABEL/*.txt with two labels, also in other splits")
    texts = {
        split: [x for label in labels for x in visible(folder / label) if x.suffix == ".txt"]
        for split, (folder, *_) in files.items()
    }
    return of_files(path, ("text", "label"), texts, read_labelled_files, LABELS)


def parallel(path: Path, files: Files) -> Corpus:
    """Open a directory with train.SRC and train.TGT, and likewise validation.* and test.*.

    Line n of one file is the translation of line n of the other. Files may be compressed (.gz);
    an uncompressed one takes precedence. Raises CorpusError.
    """
    for entries in files.values():
        names = sorted({entry.name.partition(".")[0] for entry in entries})
        if len(names) > 1:
            raise CorpusError(f"{path}: {' and '.join(names)} are names of one split: keep one")
    sides = {
        split: {entry.name.removesuffix(".gz").partition(".")[2]: entry for entry in entries[::-1]}
        for split, entries in files.items()
    }
    extensions = sorted(set().union(*sides.values()))
    if len(extensions) != 2 or any(len(side) != 2 for side in sides.values()):
        names = ", ".join(extensions[:9])
        raise CorpusError(
            f"{path}: needs two files of each split, SPLIT.SRC and SPLIT.TGT: {names}"
        )
    files = {split: [side[x] for x in extensions] for split, side in sides.items()}
    return of_files(path, extensions, files, read_parallel)


# ---- Rows ----------------------------------------------------------------------------------------


def read_parallel(source: Path, target: Path) -> Iterator[Row]:
    """Read two files, line by line. Raises CorpusError if one is longer."""
    for row in itertools.zip_longest(read_lines(source), read_lines(target)):
        if None in row:
            raise CorpusError(
                f"{source} and {target} have different numbers of lines: line n of one must be the "
                "translation of line n of the other"
            )
        yield row[0].rstrip("\n"), row[1].rstrip("\n")


def read_text(path: Path) -> Iterator[Row]:
    """Read the lines of a text, each with its line feed."""
    return ((line,) for line in read_lines(path, LONGEST))


def read_labelled_files(*texts: Path) -> Iterator[Row]:
    """Read texts in random order, with the names of their directories as labels."""
    for i in np.random.default_rng(0).permutation(len(texts)):
        yield without_markup("".join(read_lines(texts[i]))), texts[i].parent.name


def read_table(path: Path, names: Sequence[str] = (), labelled: bool = False) -> Iterator[Row]:
    """Read columns of a table: separated by TAB, or, as spreadsheets write .csv files, by commas
    and with quotes. An empty line has empty columns.

    names: the columns, which the first line of a .csv file names. Without them, the first two are
    read, of which a label is the first; with TAB, all that follows it is its text. Raises
    CorpusError if the first line lacks a name, or another line a column.
    """
    commas, places = ".csv" in path.suffixes, [1, 0] if labelled else [0, 1]
    if commas:
        rows = csv_rows(path)
    else:
        lines = (line.rstrip("\n").split("\t", 1 if labelled else -1) for line in read_lines(path))
        rows = enumerate(lines, 1)
    head = [*itertools.islice(rows, 1000)]
    if names and commas:
        _, header = head.pop(0) if head else (1, [])
        if not {*names} <= {*header}:
            raise CorpusError(f"{path}:1: must name the columns {' and '.join(names)}")
        places = [header.index(name) for name in names]
    else:
        check_head(path, [cells for _, cells in head], labelled, commas)
    for number, cells in itertools.chain(head, rows):
        if not any(map(str.strip, cells)):
            yield ("",) * len(places)
        elif len(cells) <= max(places):
            separator = "comma" if commas else "TAB"
            raise CorpusError(f"{path}:{number}: add a {separator} between its columns")
        else:
            yield tuple(cells[place] for place in places)


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a .csv file, each with the number of its first line."""
    csv.field_size_limit(1 << 30)
    start, reader = 1, csv.reader(read_lines(path))
    for cells in reader:
        yield start, cells
        start = reader.line_num + 1


def check_head(path: Path, rows: Sequence[Sequence[str]], labelled: bool, commas: bool) -> None:
    """Warn if the first of these rows seems to be a header, or if a .tsv file is quoted."""
    if not labelled and any(len(cells) > 2 for cells in rows):
        warn(f"{path}: using only the first 2 columns")
    words = [any(x) and all(y.strip('" ').isidentifier() for y in x) for x in rows[:2]]
    labels = [cells[0] for cells in rows if cells] if labelled else []
    if words == [True, False] or (labels and labels.count(labels[0]) == 1):
        warn(f"{path}: remove the first line if it is a header: {' '.join(rows[0])[:80]}")
    for number, cells in enumerate([] if commas else rows, 1):
        if any(re.match('"(.*""|[^"]*$)', cell) for cell in cells[:2]):
            warn(f"{path}:{number}: quotes are read as text: save a spreadsheet as .csv")
            break


# ---- Parquet -------------------------------------------------------------------------------------


def parquet(path: Path, files: Files, config: Config) -> Corpus:
    """Open Parquet files with columns of texts, or with a struct `translation` of two languages.

    See `choose_columns`; by default, the columns are these languages, or the only two. Raises
    CorpusError.
    """
    import pyarrow.parquet  # late, because most corpora do not need it

    first = next(iter(files.values()))[0]
    with readable(first):
        columns = pyarrow.parquet.read_schema(first).empty_table().flatten().column_names
    paths = {name.removeprefix("translation."): name for name in columns}
    default = [name for name in paths if paths[name] != name] or [*paths]  # `translation`
    names, task = choose_columns(path, [*paths], default, config)
    read = functools.partial(read_parquet, columns=[paths[name] for name in names])
    return of_files(path, names, files, read, task)


def read_parquet(*paths: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read columns of Parquet files as text, in which a missing value is empty."""
    import pyarrow.parquet

    for path in paths:
        with readable(path):
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=columns):
                cells = pyarrow.Table.from_batches([batch]).flatten().select(columns).to_pydict()
                for row in zip(*cells.values(), strict=True):
                    yield tuple(map(cell_text, row))


def cell_text(cell: object) -> str:
    """Return the text of a cell."""
    if isinstance(cell, bytes):  # of a column of strings that is not annotated as such
        return cell.decode()
    return "" if cell is None else str(cell)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise CorpusError if a Parquet file is damaged, lacks a column, or is not UTF-8."""
    import pyarrow

    try:
        yield
    except (OSError, KeyError, ValueError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read: {first_line(error)}") from error
