"""Corpora in Parquet files, as hubs of datasets serve them."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data.local import warn_of_ignored
from data.splits import (
    PARQUET,
    SPLITS,
    Corpus,
    CorpusError,
    TextPair,
    hold_out,
    select_by_hash,
    visible,
)
from utils import first_line

if TYPE_CHECKING:
    import pyarrow

# How the names of the files of a split begin: validation-00000-of-00001.parquet, dev.parquet.
PREFIXES = {"train": "train", "validation": "validation", "dev": "validation", "test": "test"}


def corpus(path: Path, task: str, languages: Sequence[str], share: float | None) -> Corpus:
    """Open a Parquet file, or a directory of Parquet files such as train-00000-of-00002.parquet.

    A single file, or a directory with only a training split, is divided by hash.

    languages: the columns to use; if empty, `text` and `label`, `text`, the two languages of the
    struct `translation`, or the only columns of text. share: see `select_by_hash` and `hold_out`.
    Raises CorpusError.
    """
    files = find_files(path) if path.is_dir() else {"train": [path]}
    paths = choose_columns(next(iter(files.values()))[0], task, languages)
    names = tuple(paths)
    if len(names) == 1:
        kind = "language modeling"
    else:
        labelled = task == "classification" or names == ("text", "label")
        kind = "classification" if labelled else "translation"

    def rows(split: str) -> Iterator[TextPair]:
        for file in files[split]:
            for row in read_rows(file, [*paths.values()]):
                yield row if len(row) > 1 else ("", *row)

    def divided(split: str) -> Iterator[TextPair]:
        return select(rows("train"), split)

    if {*files} == {"train"}:
        column = 1 if kind == "language modeling" else 0
        select = functools.partial(select_by_hash, str(path), column=column, share=share)
        same = dict.fromkeys(SPLITS, files["train"])
        return Corpus(str(path), names, lambda: same, divided, kind, local=True, select=select)
    return hold_out(Corpus(str(path), names, lambda: files, rows, kind, local=True), share)


def find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of each split in a directory. If no name has a split: all train."""
    every = [path for path in visible(folder) if path.name.endswith(PARQUET)]
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in every:
        if found := re.match(rf"({'|'.join(PREFIXES)})(?![a-z])", path.name):
            files[PREFIXES[found[1]]].append(path)
    files = {split: paths for split, paths in files.items() if paths} or {"train": every}
    used = [path for paths in files.values() for path in paths]
    warn_of_ignored(folder, [path for path in visible(folder) if path not in used])
    return files


def choose_columns(file: Path, task: str, languages: Sequence[str]) -> dict[str, str]:
    """Return the paths of the columns to read, such as `translation.en`, by name, such as `en`.

    Translations are in the order of the file, so that a hash of the same column decides the split
    in both directions. languages: the names; if empty, see `corpus`. Raises CorpusError.
    """
    from pyarrow import types

    schema = open_file(file).schema_arrow.empty_table().flatten().schema
    paths = {field.name.removeprefix("translation."): field.name for field in schema}
    if len(paths) < len(schema):
        raise CorpusError(f"{file} has two columns of one name: {', '.join(schema.names)}")
    kinds = dict(zip(paths, schema.types, strict=True))
    kinds = {n: k.value_type if types.is_dictionary(k) else k for n, k in kinds.items()}
    checks = [getattr(types, f"is_{k}", None) for k in ("string", "large_string", "string_view")]
    texts = [n for n, k in kinds.items() if any(check and check(k) for check in checks)]
    usable = texts + [name for name, kind in kinds.items() if types.is_integer(kind)]  # labels
    translation = [name for name in texts if paths[name] != name]
    if not texts:
        raise CorpusError(f"{file} has no column of text; its columns are {', '.join(paths)}")
    if languages and task == "classification":
        names = languages
    elif languages:
        names = [name for name in paths if name in languages]
    elif task == "classification" or (task == "translation" and {"text", "label"} <= {*usable}):
        names = ("text", "label")
    elif task == "language modeling" and "text" in texts:
        names = ("text",)
    else:
        names = translation if len(translation) == 2 else texts
    if unknown := [name for name in languages or names if name not in usable]:
        raise CorpusError(
            f"{file} has no column {unknown[0]} of text or labels: choose from "
            f"{', '.join(usable)} with --languages"
        )
    if len(names) > 2:
        raise CorpusError(
            f"{file} has {len(names)} columns of text: choose a source and a target from "
            f"{', '.join(names)} with --languages, such as --languages {names[0]},{names[1]}"
        )
    return {name: paths[name] for name in names}


def read_rows(file: Path, paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Read columns of a Parquet file as text. Raises CorpusError, also at a row without a value.

    An integer is a label; it is replaced by its name if the file has the names of its labels.
    """
    import pyarrow

    number, opened = 0, open_file(file)
    names = label_names(opened.schema_arrow)
    try:
        for batch in opened.iter_batches(1024, columns=[*paths]):
            table = pyarrow.Table.from_batches([batch]).flatten()
            columns = []
            for path in paths:
                labels = names.get(path)
                values = table[path].to_pylist()
                if None in values:
                    row = number + values.index(None) + 1
                    raise CorpusError(f"{file}: row {row:,} has no value in {path}: remove the row")
                if labels and not all(0 <= x < len(labels) for x in values):  # -1: without a label
                    raise CorpusError(f"{file}: {path} has numbers that are not those of a label")
                columns.append([labels[x] if labels else str(x) for x in values])
            yield from zip(*columns, strict=True)
            number += len(table)
    except (OSError, KeyError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{file}: cannot be read: {first_line(error)}") from error


def label_names(schema: "pyarrow.Schema") -> dict[str, list[str]]:
    """Return the names of the labels of each column of integers that has them, as hubs write."""
    from pyarrow import types

    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        about = {column: each for column, each in features.items() if isinstance(each, dict)}
        names = {column: each.get("names") for column, each in about.items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        return {}  # without metadata, or with others
    integers = {field.name for field in schema if types.is_integer(field.type)}
    return {column: each for column, each in names.items() if each and column in integers}


def open_file(file: Path):
    """Open a Parquet file. Raises CorpusError if it is not one."""
    import pyarrow.parquet  # late, because most corpora do not need it

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{file}: cannot be read: {first_line(error)}") from error
