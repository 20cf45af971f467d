"""Readers of corpora in files, and of the built-in one. Each returns a `Corpus`."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from config import Config
from data import mini
from data.splits import SPLITS, TEXT, Corpus, CorpusError, Row
from data.text import read_lines, without_markup
from utils import amount, first_few, first_line, warn

if TYPE_CHECKING:
    import pyarrow

TABLES, TEXTS, PARQUET = (".tsv", ".tsv.gz"), (".txt", ".txt.gz"), ".parquet"
FILES = (*TABLES, *TEXTS, PARQUET)
LONGEST = 1 << 12  # bytes of a line of text: text without line feeds is divided

Files = dict[str, list[Path]]  # of each part


def built_in(size: int | None = None) -> Corpus:
    """Open the corpus `mini`. size: that of its training split."""
    name = f"mini:{size}" if size else "mini"

    def rows(part: str) -> Iterator[Row]:
        return iter(mini.generate(part, size if part == "train" else None))

    return Corpus(name, ("pt", "en"), lambda: {split: [] for split in mini.SIZES}, rows)


def file(path: Path, config: Config) -> Corpus:
    """Open a single file, whose rows are divided: a table, a text or a Parquet file."""
    files = {"all": [path]}
    if path.name.endswith(PARQUET):
        return parquet(path, files, config)
    if path.name.endswith(TEXTS):
        return text(str(path), files)
    if not path.name.endswith(TABLES):
        raise CorpusError(f"{path}: not a .tsv (source TAB target), .txt or .parquet file")
    if config.task != "classification":
        columns = ("source", "target")
        return Corpus(str(path), columns, lambda: files, lambda _: read_table(path), local=True)

    def rows(part: str) -> Iterator[Row]:
        return ((text, label) for label, text in read_table(path, rest=True))

    return Corpus(str(path), ("text", "label"), lambda: files, rows, config.task, local=True)


def directory(path: Path, config: Config) -> Corpus:
    """Open a directory with files for each split: Parquet files, texts with labels, or texts.

    Parquet files without the name of a split, or of `train` only, are divided.
    """
    tables = [entry for entry in visible(path) if entry.name.endswith(PARQUET)]
    files = by_split(tables or visible(path))
    is_labelled = "train" in files and all(entry.is_dir() for entry in files["train"])
    if tables:
        files = files or {"train": tables}
        corpus = parquet(path, {"all": files["train"]} if {*files} == {"train"} else files, config)
    elif config.task == "classification" or is_labelled:
        corpus = labelled_folder(path, {split: path / split for split in files})
        files = {split: [path / split] for split in files}
    else:
        corpus = parallel(path, files, config)
        files = corpus.files()
    used = {entry for entries in files.values() for entry in entries}
    if ignored := [entry.name for entry in visible(path) if entry not in used]:
        count = amount(len(ignored), "file")
        warn(f"{path}: ignoring {count} that no split includes: {first_few(ignored, 3)}")
    return corpus


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
    by_extension = {
        split: {entry.name.removesuffix(".gz").partition(".")[2]: entry for entry in entries[::-1]}
        for split, entries in files.items()
    }
    extensions = sorted(set().union(*by_extension.values()))
    if config.task == TEXT and "txt" in extensions:
        extensions = ["txt"]
    elif len(extensions) != 2:
        names = first_few([entry.name for entry in visible(path)], 12) or "none"
        raise CorpusError(
            f"{path}: needs train.SRC and train.TGT with exactly two extensions, of which the "
            "alphabetically first is the source, or, with --model language_model, train.txt and "
            f"validation.txt; found {names} (a file of lines with source TAB target needs a name "
            "that ends in .tsv)"
        )
    for split, entries in by_extension.items():
        for extension in extensions:
            if extension not in entries:
                raise CorpusError(f"{path / split}.{extension}: missing; add it")
    files = {split: [x[e] for e in extensions] for split, x in by_extension.items()}
    if len(extensions) == 1:
        return text(str(path), files)
    return Corpus(
        str(path), tuple(extensions), lambda: files, lambda p: read_parallel(*files[p]), local=True
    )


def text(name: str, files: Files) -> Corpus:
    """Open the text of a language model: each part is the lines of one file."""
    return Corpus(
        name, ("text",), lambda: files, lambda p: read_text(*files[p]), TEXT, True, documents=False
    )


def labelled_folder(path: Path, splits: dict[str, Path]) -> Corpus:
    """Open a directory with train/LABEL/*.txt, and likewise test and validation, as in `aclImdb`.

    The labels are the directories that all splits have: not `aclImdb/train/unsup`. Raises
    CorpusError.
    """
    names = [
        {x.name for x in visible(each)} if each.is_dir() else set() for each in splits.values()
    ]
    labels = sorted(set.intersection(*names)) if names else []
    if ignored := sorted(set().union(*names) - {*labels}):
        warn(f"{path}: ignoring {first_few(ignored, 3)}, which is not a label of every split")
    if len(labels) < 2:
        raise CorpusError(
            f"{path}: needs train/LABEL/*.txt with at least two labels, the same ones in every "
            f"split; all splits have {', '.join(labels) or 'none'}"
        )

    @functools.cache  # there may be many
    def files() -> Files:
        return {
            split: [x for label in labels for x in visible(each / label) if x.suffix == ".txt"]
            for split, each in splits.items()
        }

    def rows(part: str) -> Iterator[Row]:
        texts = files()[part]
        for i in np.random.default_rng(0).permutation(len(texts)):
            yield without_markup("".join(read_lines(texts[i]))), texts[i].parent.name

    return Corpus(str(path), ("text", "label"), files, rows, "classification", local=True)


def visible(folder: Path) -> list[Path]:
    """Return what a directory contains, sorted, without hidden files and backups of editors."""
    return sorted(x for x in folder.iterdir() if x.name[0] != "." and x.name[-1] != "~")


# ---- Rows ----------------------------------------------------------------------------------------


def read_parallel(source: Path, target: Path) -> Iterator[Row]:
    """Read two files, line by line. Raises CorpusError if one is longer."""
    for row in itertools.zip_longest(read_lines(source), read_lines(target)):
        if None in row:
            counts = [sum(1 for _ in read_lines(file)) for file in (source, target)]
            raise CorpusError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}: line n of one must "
                "be the translation of line n of the other"
            )
        yield row[0].rstrip("\n"), row[1].rstrip("\n")


def read_text(path: Path) -> Iterator[Row]:
    """Read the lines of a text, each with its line feed."""
    return ((line,) for line in read_lines(path, LONGEST))


def read_table(path: Path, columns: int = 2, rest: bool = False) -> Iterator[Row]:
    """Read the first columns of a table, separated by TAB. An empty line has empty columns.

    rest: whether the last column is the rest of the line. Raises CorpusError if a line has fewer
    columns.
    """
    longer = 0
    for number, line in enumerate(read_lines(path), 1):
        cells = line.rstrip("\n").split("\t", columns - 1 if rest else -1)
        cells = cells if line.strip() else [""] * columns
        if len(cells) < columns:
            raise CorpusError(f"{path}:{number}: add a TAB between its {columns} columns")
        longer += len(cells) > columns
        yield tuple(cells[:columns])
    if longer:
        warn(f"{path}: using only the first {columns} columns of {amount(longer, 'line')}")


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
    if names and config.task != "classification":
        # In the order of the file, so that a hash of the same column decides in both directions.
        names = [name for name in paths if name in names]
    names = names or [name for name in ("text", "label") if name in paths]
    names = names or [name for name in paths if paths[name] != name] or [*paths]  # `translation`
    if len(names) > 2:
        raise CorpusError(f"{path}: choose --languages SOURCE,TARGET from {', '.join(paths)}")
    labelled = config.task == "classification" or names == ["text", "label"]
    task = TEXT if len(names) == 1 else "classification" if labelled else "translation"

    def rows(part: str) -> Iterator[Row]:
        for file in files[part]:
            yield from read_parquet(file, [paths[name] for name in names])

    return Corpus(str(path), tuple(names), lambda: files, rows, task, local=True)


def read_parquet(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read columns of a Parquet file as text. Raises CorpusError, also at a row without a value.

    Numbers of labels are replaced by their names if the file has them, as hubs of datasets write.
    """
    import pyarrow

    opened, number = open_parquet(file), 0
    try:
        for batch in opened.iter_batches(1024, columns=[*columns]):
            table = pyarrow.Table.from_batches([batch]).flatten()
            values = []
            for name in columns:
                values.append(table[name].to_pylist())
                if names := label_names(opened.schema_arrow, name):  # -1: without a label
                    values[-1] = [names[x] if x in range(len(names)) else None for x in values[-1]]
                if None in values[-1]:
                    row = number + values[-1].index(None) + 1
                    raise CorpusError(f"{file}: row {row:,} has no value in {name}: remove it")
            yield from zip(*(map(str, column) for column in values), strict=True)
            number += len(table)
    except (OSError, KeyError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{file}: cannot be read: {first_line(error)}") from error


def label_names(schema: "pyarrow.Schema", column: str) -> list[str] | None:
    """Return the names of the labels of a column of integers, if the file has them."""
    about = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    features = about.get("info", {}).get("features", {})
    is_integer = column in schema.names and str(schema.field(column).type).startswith("int")
    return features.get(column, {}).get("names") if is_integer else None


def open_parquet(file: Path):
    """Open a Parquet file. Raises CorpusError if it is not one."""
    import pyarrow.parquet  # late, because most corpora do not need it

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{file}: cannot be read: {first_line(error)}") from error
