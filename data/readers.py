"""Readers of corpora in files, and of the built-in one. Each returns a `Corpus`."""

import csv
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from config import Config
from data import mini
from data.splits import SPLITS, TEXT, Corpus, CorpusError, Files, Row
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


def file(path: Path, config: Config) -> Corpus:
    """Open a single file, whose rows are divided: a table, a text or a Parquet file."""
    files = {"all": [path]}
    if path.name.endswith(PARQUET):
        return parquet(path, files, config)
    if path.name.endswith(TEXTS):
        return of_files(path, ("text",), files, read_text, TEXT)
    if not path.name.endswith(TABLES):
        raise CorpusError(f"{path}: not a .tsv (source TAB target), .csv, .txt or .parquet file")
    labelled = config.task == "classification"
    columns = ("text", "label") if labelled else ("source", "target")
    if config.languages and ".csv" in path.suffixes:
        columns = config.languages.split(",")
    read = functools.partial(read_table, columns=columns, labelled=labelled)
    return of_files(path, columns, files, read, config.task if labelled else "translation")


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
    documents = read is not read_text  # otherwise the lines of one text
    return Corpus(
        str(name),
        tuple(columns),
        parts,
        lambda part: read(*parts()[part]),
        task,
        local=not callable(files),
        documents=documents,
    )


def directory(path: Path, config: Config) -> Corpus:
    """Open a directory with files for each split: Parquet files, texts with labels, or texts.

    Parquet files without the name of a split, or of `train` only, are divided.
    """
    entries = visible(path)
    tables = [entry for entry in entries if entry.name.endswith(PARQUET)]
    files = by_split(tables or entries)
    if tables and {*files} <= {"train"}:
        files = {"all": files.get("train", tables)}
    if ignored := [x.name for x in entries if x not in itertools.chain(*files.values())]:
        count = amount(len(ignored), "file")
        warn(f"{path}: ignoring {count} that no split includes: {', '.join(ignored[:3])}")
    if tables:
        return parquet(path, files, config)
    if config.task == "classification" or any(x.is_dir() for x in files.get("train", [])):
        return labelled_folder(path, [*files])
    return parallel(path, files, config)


def by_split(entries: Sequence[Path]) -> Files:
    """Group files by the split that their names begin with. Without `validation`, `dev` is it."""
    files = {split: [] for split in (*SPLITS, "dev")}
    for entry in entries:
        files.get(re.split(r"[^a-z]", entry.name)[0], []).append(entry)
    files["validation"] = files["validation"] or files["dev"]
    return {split: files[split] for split in SPLITS if files[split]}


def parallel(path: Path, files: Files, config: Config) -> Corpus:
    """Open a directory with train.SRC and train.TGT, and likewise validation.* and test.*, or one
    with train.txt and so on: the texts of a language model.

    Line n of one file is the translation of line n of the other. Files may be compressed (.gz);
    an uncompressed one takes precedence. Raises CorpusError.
    """
    sides = {
        split: {entry.name.removesuffix(".gz").partition(".")[2]: entry for entry in entries[::-1]}
        for split, entries in files.items()
    }
    extensions = sorted(set().union(*sides.values()))
    if config.task == TEXT and "txt" in extensions:
        extensions, sides = ["txt"], {name: x for name, x in sides.items() if "txt" in x}
    elif len(extensions) != 2 or any({*side} != {*extensions} for side in sides.values()):
        names = [entry.name for entries in files.values() for entry in entries]
        raise CorpusError(
            f"{path}: needs train.SRC and train.TGT with two extensions, also of other splits, "
            f"or, with --model language_model, train.txt and so on; found {', '.join(names[:9])}"
        )
    files = {split: [side[x] for x in extensions] for split, side in sides.items()}
    if len(extensions) == 1:
        return of_files(path, ("text",), files, read_text, TEXT)
    return of_files(path, extensions, files, read_parallel)


def labelled_folder(path: Path, splits: Sequence[str]) -> Corpus:
    """Open a directory with train/LABEL/*.txt, and likewise test and validation, as in `aclImdb`.

    The labels are the directories that all splits have: not `aclImdb/train/unsup`. The texts are
    shuffled. Raises CorpusError.
    """
    names = [{x.name for x in visible(path / split) if x.is_dir()} for split in splits]
    labels = sorted(set.intersection(*names)) if names else []
    if len(labels) < 2:
        raise CorpusError(
            f"{path}: needs train/LABEL/*.txt with at least two labels, the same ones in every "
            f"split; all splits have {', '.join(labels) or 'none'}"
        )
    if ignored := sorted(set.union(*names) - {*labels}):
        warn(f"{path}: ignoring {', '.join(ignored[:3])}, which is not a label of every split")
    files = {
        split: [x for y in labels for x in visible(path / split / y) if x.suffix == ".txt"]
        for split in splits
    }
    return of_files(path, ("text", "label"), files, read_labelled_files, "classification")


def visible(folder: Path) -> list[Path]:
    """Return what a directory contains, sorted, without hidden files and backups of editors."""
    return sorted(x for x in folder.iterdir() if x.name[0] != "." and x.name[-1] != "~")


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


def read_table(
    path: Path, columns: Sequence[str] = ("source", "target"), labelled: bool = False
) -> Iterator[Row]:
    """Read two columns of a table: separated by TAB, or, as spreadsheets write .csv files, by
    commas and with quotes. An empty line has empty columns.

    columns: those of a .csv file, if its first line has these names. Otherwise, the first two
    columns are read, of which a label is the first; with TAB, all that follows it is its text.
    Raises CorpusError if a line has only one column.
    """
    csv.field_size_limit(1 << 30)
    commas = ".csv" in path.suffixes
    form = {} if commas else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    separator = "comma" if commas else "TAB"
    lines, places, longer, quoted = csv.reader(read_lines(path), **form), [0, 1], 0, False
    head, again = [], False  # the first two lines; whether another line begins like the first
    for number, cells in enumerate(lines):
        if number == 0 and commas and {*columns} <= {*cells}:
            places, labelled = [cells.index(name) for name in columns], False
            continue
        if not any(map(str.strip, cells)):
            cells = ["", ""]
        elif len(cells) <= max(places):
            raise CorpusError(f"{path}:{lines.line_num}: add a {separator} between its 2 columns")
        again |= bool(head) and cells[0] == head[0][0]
        head += [cells] if len(head) < 2 else []
        if labelled:
            cells = ["\t".join(cells[1:]) if not commas else cells[1], cells[0]]
        longer += len(cells) > 2
        if not (commas or quoted) and any(re.match('"(.*""|[^"]*$)', cell) for cell in cells[:2]):
            quoted = True
            warn(f"{path}:{lines.line_num}: quotes are read as text: save a spreadsheet as .csv")
        yield cells[places[0]], cells[places[1]]
    if longer and places == [0, 1]:
        warn(f"{path}: using only the first 2 columns of {amount(longer, 'line')}")
    words = [all(cell.strip('" ').isidentifier() for cell in cells) for cells in head]
    if words == [True, False] or (labelled and head and not again):
        warn(f"{path}: remove the first line if it is a header: {' '.join(head[0])[:80]}")


# ---- Parquet -------------------------------------------------------------------------------------


def parquet(path: Path, files: Files, config: Config) -> Corpus:
    """Open Parquet files with columns of texts, or with a struct `translation` of two languages.

    `--languages` names the columns, or else they are `text` and `label`, `text`, the languages of
    `translation`, or the only two columns. Raises CorpusError.
    """
    schema = open_parquet(next(iter(files.values()))[0]).schema_arrow.empty_table().flatten().schema
    paths = {name.removeprefix("translation."): name for name in schema.names}
    names = config.languages.split(",") if config.languages else []
    if unknown := {*names} - {*paths}:
        raise CorpusError(f"{path} has no column {unknown.pop()}: choose from {', '.join(paths)}")
    if config.task != "classification":
        # In the order of the file, so that a hash of the same column decides in both directions.
        names = [name for name in paths if name in names]
    names = names or [name for name in ("text", "label") if name in paths]
    names = names or [name for name in paths if paths[name] != name] or [*paths]  # `translation`
    if len(names) > 2:
        raise CorpusError(f"{path}: choose --languages SOURCE,TARGET from {', '.join(paths)}")
    labelled = config.task == "classification" or names == ["text", "label"]
    task = TEXT if len(names) == 1 else "classification" if labelled else "translation"
    read = functools.partial(read_parquet, columns=[paths[name] for name in names])
    return of_files(path, names, files, read, task)


def read_parquet(*paths: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read columns of Parquet files as text, in which a missing value is empty.

    Numbers of labels are replaced by their names if the file has them, as hubs of datasets write.
    """
    import pyarrow

    for file in map(open_parquet, paths):
        about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", "{}"))
        features = about.get("info", {}).get("features", {})
        names = [features.get(column, {}).get("names") for column in columns]
        for batch in file.iter_batches(1024, columns=columns):
            cells = pyarrow.Table.from_batches([batch]).flatten().select(columns).to_pydict()
            yield from zip(*map(as_text, cells.values(), names), strict=True)


def as_text(column: Sequence, names: Sequence[str] | None) -> list[str]:
    """Convert a column to text. names: those of its labels; -1 is a missing label."""
    if names:
        column = [None if label in (None, -1) else names[label] for label in column]
    return ["" if value is None else str(value) for value in column]


def open_parquet(path: Path):
    """Open a Parquet file. Raises CorpusError if it is not one."""
    import pyarrow.parquet  # late, because most corpora do not need it

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read: {first_line(error)}") from error
