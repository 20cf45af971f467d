"""Readers of corpora that are downloaded. Each returns a `Corpus`."""

import contextlib
import hashlib
import http.client
import os
import shutil
import sys
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data.readers import of_files, read_table, read_text
from data.splits import LABELS, SPLITS, TEXT, Corpus, CorpusError, Files, Row
from data.text import read_lines, without_markup
from utils import first_line, lock, print_line

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

TIMEOUT = 30  # seconds without a response
# The host of the TED talks is often down. The second URL is an archived copy of the same file.
TED_URL = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
TED_URLS = (TED_URL, "https://web.archive.org/web/20240301220426if_/" + TED_URL)

ANKI_URL = "https://storage.googleapis.com/download.tensorflow.org/data/spa-eng.zip"
ANKI_TEXT = "spa-eng/spa.txt"  # English TAB Spanish
ANKI_SHA256 = "6ec60e212f812ee3430f7568ea6f33b6fb080e32193c5952e8da0ee8ba45574c"  # of the text

SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# With the 51 rows of `obj_pp_to_subj_pp` that were corrected in 2022.
COGS_URL = "https://raw.githubusercontent.com/najoungkim/COGS/main/data/"
COGS_SHA256 = {
    "train": "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78",
    "dev": "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21",
    "test": "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035",
    "gen": "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361",
}


# ---- Downloaded files ----------------------------------------------------------------------------


def data_folder() -> Path:
    """Return the directory of tensorflow_datasets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets")


def download(name: str, urls: Sequence[str], sha256: str | None = None) -> Path:
    """Return the path of a file in `downloads/manual`, and download it if it is not there.

    urls: the first one that works is used. sha256: verified if it is given. Raises CorpusError.
    """
    path = data_folder() / "downloads" / "manual" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{name}.{os.getpid()}.part")
    for url in urls if not path.exists() else ():
        print_line(f"downloading {url}")
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response, part.open("wb") as file:
                shutil.copyfileobj(response, file)
            verify(part, sha256)
            part.replace(path)
            break
        except (OSError, http.client.HTTPException, CorpusError) as error:
            print_line(f"failed: {first_line(error)}")
        finally:
            part.unlink(missing_ok=True)
    if not path.exists():
        raise CorpusError(f"{name} cannot be downloaded: save {urls[0]} as {path}")
    verify(path, sha256)
    return path


def verify(path: Path, sha256: str | None) -> None:
    """Raise CorpusError if a file has another hash."""
    with path.open("rb") as file:
        if sha256 and hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise CorpusError(
                f"{path} is truncated or altered: its sha256 differs; download it again"
            )


def spa_eng() -> Corpus:
    """Open the English-Spanish sentence pairs of TensorFlow's tutorials: 118,964 pairs."""
    file = "spa-eng.zip", [ANKI_URL]
    return of_files("spa-eng", ("en", "es"), lambda: {"all": [download(*file)]}, read_anki)


def read_anki(archive: Path) -> Iterator[Row]:
    """Read the pairs in the archive of `spa-eng`. Raises CorpusError if their hash differs."""
    table, content = None, b""
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile, zlib.error):
        table = zipfile.Path(archive, ANKI_TEXT)
        content = table.read_bytes()
    if hashlib.sha256(content).hexdigest() != ANKI_SHA256:
        raise CorpusError(f"{archive} is truncated or altered: delete it and try again")
    return read_table(table)


def shakespeare() -> Corpus:
    """Open Karpathy's tiny Shakespeare, one text of 1,115,394 characters (Karpathy 2015)."""
    file = "tinyshakespeare.txt", [SHAKESPEARE_URL], SHAKESPEARE_SHA256
    return of_files("shakespeare", ("text",), lambda: {"all": [download(*file)]}, read_text, TEXT)


def cogs() -> Corpus:
    """Open COGS: 24,155 English sentences and their logical forms, and, in the split
    `generalization`, 21 kinds of new combinations (Kim & Linzen 2020, table 1). The tags are the
    kinds.
    """

    def files() -> Files:
        splits = zip((*SPLITS, "generalization"), COGS_SHA256.items(), strict=True)
        return {
            split: [download(f"cogs-{name}.tsv", [f"{COGS_URL}{name}.tsv"], sha256)]
            for split, (name, sha256) in splits
        }

    return of_files("cogs", ("en", "lf"), files, read_tagged)


def read_tagged(path: Path) -> Iterator[Row]:
    """Read pairs with a tag, separated by TAB."""
    return (tuple(line.rstrip("\n").split("\t")) for line in read_lines(path))


# ---- tensorflow_datasets -------------------------------------------------------------------------


def dataset(name: str) -> Corpus:
    """Open a dataset of tensorflow_datasets: translations, texts with labels, or texts.

    Raises CorpusError.
    """
    import tensorflow_datasets as tfds  # imports TensorFlow only to read or write data

    folder = data_folder()  # tfds itself reads TFDS_DATA_DIR only once, when it is imported
    try:
        builder = tfds.builder(name, data_dir=folder)
    except Exception as error:  # tfds documents none: ValueError, AssertionError, ParseError, …
        # The reason is between the arguments and a long list of names.
        reason = first_line(error).rpartition('": ')[2].partition(". ")[0].partition(" with ")[0]
        text = f"{name!r}: neither a file, a directory nor a dataset ({reason})"
        raise CorpusError(text) from None
    features, keys = builder.info.features, builder.info.supervised_keys

    def decode(text: bytes) -> str:
        return without_markup(text.decode())

    kinds = [type(features[key]) for key in keys or ()]
    if isinstance(features, tfds.features.Translation) and len(features) == 2:
        # The features of a dataset that is read from disk are sorted; `supervised_keys` are not.
        task, keys = "translation", keys or tuple(features)
        columns, decoders = keys, (bytes.decode, bytes.decode)
    elif kinds == [tfds.features.Text, tfds.features.ClassLabel]:
        task, columns = LABELS, ("text", "label")
        decoders = decode, features[keys[-1]].int2str
    elif "text" in features:
        task, keys, columns, decoders = TEXT, ("text",), ("text",), (decode,)
    else:
        raise CorpusError(f"{name}: has no translations, labels or texts")

    def files() -> Files:
        prepare(name, builder)
        # Other splits of labelled datasets have no labels, such as `unsupervised` of imdb_reviews.
        return {
            split: [Path(file) for file in info.filepaths]
            for split, info in builder.info.splits.items()
            if split in SPLITS or task == "translation"
        }

    def rows(part: str) -> Iterator[Row]:
        # Always in the same order.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = builder.as_dataset(split=part, shuffle_files=False, read_config=config)
        for batch in examples.batch(1024).as_numpy_iterator():  # 60 times as fast as row by row
            texts = [map(f, batch[key]) for f, key in zip(decoders, keys, strict=True)]
            yield from zip(*texts, strict=True)

    return Corpus(name, columns, files, rows, task)


def prepare(name: str, builder: "DatasetBuilder") -> None:
    """Download a dataset and write it to the data directory, unless it is there already.

    One process at a time; the others then read what it wrote. Raises CorpusError.
    """
    if builder.data_path.exists() and builder.info.splits:
        return
    data_folder().mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another process that prepares {name}"
    with (
        contextlib.redirect_stdout(sys.stderr),  # to which tfds prints
        lock(data_folder() / f".{builder.name}.lock", wait=waiting),
    ):
        if builder.data_path.exists():
            builder.info.read_from_directory(builder.data_path)
            return
        if builder.name == "ted_hrlr_translate":
            (expected,) = builder.url_infos.values()
            download(Path(TED_URL).name, TED_URLS, expected.checksum)
        try:
            builder.download_and_prepare()
        except Exception as error:  # the code of a dataset may raise anything
            reason = f"{name} cannot be prepared: {first_line(error)}"
            raise CorpusError(f"{reason}; set TFDS_DATA_DIR to prepared data") from error
