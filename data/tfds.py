"""Corpora that are downloaded: tensorflow_datasets, Tatoeba's English-Spanish, and Shakespeare."""

import contextlib
import functools
import hashlib
import itertools
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data.download import TIMEOUT, fetch
from data.local import read_text, split_by_position
from data.splits import (
    SPLITS,
    SUPPORTED,
    Corpus,
    CorpusError,
    TextPair,
    hold_out,
    markup_to_text,
    select_by_hash,
    strip_markup,
    suggestion,
)
from utils import first_few, first_line, lock, warn

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow_datasets.core import DatasetBuilder

# The host of the TED talks is often down. The second URL is an archived copy of the same file.
TED_URL = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
TED_URLS = (TED_URL, "https://web.archive.org/web/20240301220426if_/" + TED_URL)

ANKI_URL = "https://storage.googleapis.com/download.tensorflow.org/data/spa-eng.zip"
ANKI_SIZE = 2_700_000  # bytes, approximately
ANKI_TEXT = "spa-eng/spa.txt"  # English TAB Spanish
ANKI_SHA256 = "6ec60e212f812ee3430f7568ea6f33b6fb080e32193c5952e8da0ee8ba45574c"  # of the text

SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SIZE = 1_115_394  # bytes
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Columns(NamedTuple):
    """The features of a dataset that are read."""

    task: str  # a value of `config.TASKS`
    keys: tuple[str, ...]  # of the source and the target, or of the texts
    languages: tuple[str, ...]
    decoders: tuple[Callable[[Any], str], ...]


def dataset(
    name: str, texts: bool = False, languages: Sequence[str] = (), share: float | None = None
) -> Corpus:
    """Open a dataset of tensorflow_datasets: translations, texts with labels, or texts.

    texts: whether only texts are needed, as in lm1b and wiki40b. languages: source and target in a
    dataset with more languages. share: see `hold_out`. Raises CorpusError.
    """
    from tensorflow_datasets import features  # 0.3 s; imports TensorFlow only to read or write data

    builder = make_builder(name)
    for key, feature in builder.info.features.items():
        if isinstance(feature, features.TranslationVariableLanguages):
            chosen = choose_languages(name, feature.languages, languages)
            return hold_out(variable_languages(name, builder, key, chosen), share)
    task, keys, languages, decoders = choose_columns(name, builder, texts, languages)

    def files() -> dict[str, list[Path]]:
        prepare(name, builder)
        # Other splits of labelled datasets have no labels, such as `unsupervised` of imdb_reviews.
        return {
            split: [Path(file) for file in info.filepaths]
            for split, info in builder.info.splits.items()
            if split in SPLITS or task == "translation"
        }

    def pairs(split: str) -> Iterator[TextPair]:
        examples = read_in_file_order(builder, split)
        for batch in examples.batch(1024).as_numpy_iterator():  # 60 times as fast as row by row
            # tfds' value for a missing label is -1.
            if task == "classification" and min(batch[keys[1]]) < 0:
                raise CorpusError(f"{name}: its {split} split has texts without a label")
            columns = [map(f, batch[key]) for f, key in zip(decoders, keys, strict=True)]
            if task == "language modeling":
                yield from (("", text) for text in columns[0])
            else:
                yield from zip(*columns, strict=True)

    return hold_out(Corpus(name, languages, files, pairs, task), share)


def choose_columns(
    name: str, builder: "DatasetBuilder", texts: bool, languages: Sequence[str]
) -> Columns:
    """Choose the features of a dataset to read: see `dataset`. Raises CorpusError."""
    from tensorflow_datasets import features

    present, keys = builder.info.features, builder.info.supervised_keys
    if isinstance(present, features.Translation):
        if "/" not in name and builder.builder_config:  # tfds would take the first language pair
            pairs = list(builder.builder_configs) or [builder.builder_config.name]
            choices = first_few([f"{name}/{pair}" for pair in pairs], 9)
            raise CorpusError(f"{name} has several language pairs: use {choices}")
        # The features of a dataset that is read from disk are sorted; `supervised_keys` are not.
        keys = keys or tuple(present)
        if len(present) != 2:
            keys = choose_languages(name, [*present], languages)
        return Columns("translation", keys, keys, (bytes.decode, bytes.decode))
    if texts:
        if "text" not in present or not isinstance(present["text"], features.Text):
            raise CorpusError(f"{name}: has no feature named text; use {SUPPORTED}")
        decoders = (lambda text: markup_to_text(text.decode()),)
        return Columns("language modeling", ("text",), ("text",), decoders)
    kinds = [type(present[key]) for key in keys] if keys and len(keys) == 2 else None
    if kinds != [features.Text, features.ClassLabel]:
        raise CorpusError(f"{name}: neither translations nor labelled texts; use {SUPPORTED}")
    decoders = (lambda text: strip_markup(text.decode()), present[keys[1]].int2str)
    return Columns("classification", keys, ("text", "label"), decoders)


def variable_languages(
    name: str, builder: "DatasetBuilder", key: str, languages: tuple[str, ...]
) -> Corpus:
    """Open two languages of a dataset whose examples need not have both, such as TED talks.

    key: the feature with the translations. Examples without one of the languages are left out.
    """
    source, target = (language.encode() for language in languages)

    def files() -> dict[str, list[Path]]:
        prepare(name, builder)
        return {s: [Path(f) for f in info.filepaths] for s, info in builder.info.splits.items()}

    def pairs(split: str) -> Iterator[TextPair]:
        examples = read_in_file_order(builder, split).map(lambda example: example[key])
        for batch in examples.padded_batch(1024).as_numpy_iterator():
            for row in zip(batch["language"], batch["translation"], strict=True):
                texts = dict(zip(*row, strict=True))
                if source in texts and target in texts:
                    yield texts[source].decode(), texts[target].decode()

    return Corpus(name, languages, files, pairs)


def choose_languages(
    name: str, present: Sequence[str] | None, languages: Sequence[str]
) -> tuple[str, ...]:
    """Return source and target, chosen from the languages of a dataset. Raises CorpusError.

    present: None if the dataset does not list them.
    """
    unknown = [language for language in languages if language not in (present or languages)]
    if len(languages) != 2 or unknown:
        reason = f"has no language {unknown[0]}" if unknown else "has more than two languages"
        choices = f" from {', '.join(present)}" if present else ""
        raise CorpusError(f"{name} {reason}: choose --languages SOURCE,TARGET{choices}")
    return tuple(languages)


def read_in_file_order(builder: "DatasetBuilder", split: str) -> "tf.data.Dataset":
    """Return the examples of a split, always in the same order."""
    import tensorflow_datasets

    config = tensorflow_datasets.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    return builder.as_dataset(split=split, shuffle_files=False, read_config=config)


def make_builder(name: str) -> "DatasetBuilder":
    """Return the tfds builder of a dataset. Raises CorpusError if there is none."""
    import tensorflow_datasets

    try:
        # tfds itself reads TFDS_DATA_DIR only once, when it is imported.
        return tensorflow_datasets.builder(name, data_dir=data_folder())
    except CorpusError:
        raise
    except Exception as error:  # tfds documents none: ValueError, AssertionError, ParseError, …
        # The reason is between the arguments and a long list of names.
        reason = first_line(error).rpartition('": ')[2].partition(". ")[0].partition(" with ")[0]
        raise CorpusError(
            f"{name!r}: neither a directory nor a dataset ({reason}){suggestion(name)}; use "
            f"{SUPPORTED}"
        ) from error


def prepare(name: str, builder: "DatasetBuilder") -> None:
    """Download a dataset and write it to the data directory, unless it is there already.

    One process at a time; the others then read what it wrote. Raises CorpusError.
    """
    if builder.data_path.exists() and builder.info.splits:
        return
    remedy = "set TFDS_DATA_DIR to a directory with the prepared dataset, or use --corpus mini"
    try:
        data_folder().mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that prepares {name}"
        with (
            contextlib.redirect_stdout(sys.stderr),  # tfds prints to standard output
            lock(data_folder() / f".{builder.name}.lock", wait=waiting),
        ):
            if builder.data_path.exists():
                builder.info.read_from_directory(builder.data_path)
                return
            if builder.name == "ted_hrlr_translate":
                archive = archive_path(TED_URL)
                remedy = f"save {TED_URL} (125 MiB) as {archive}, {remedy}"
                if not archive.exists():
                    (expected,) = builder.url_infos.values()
                    fetch(TED_URLS, archive, expected.size, expected.checksum)
            fail_fast()
            builder.download_and_prepare()
    except Exception as error:  # the code of a dataset may raise anything
        request = getattr(error, "request", None)
        reason = f"{request.url} cannot be reached" if request else first_line(error)
        raise CorpusError(f"{name} cannot be prepared: {reason}; {remedy}") from error


def fail_fast() -> None:
    """Let tfds try a host once, with a timeout. By default it tries eleven times, without one."""
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = 0
    downloader._open_with_requests = functools.partial(
        downloader._open_with_requests, timeout=TIMEOUT
    )


def data_folder() -> Path:
    """Return the directory of tensorflow_datasets. Raises CorpusError if there is none."""
    try:
        return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    except RuntimeError:
        raise CorpusError(
            "there is no home directory to download datasets to: set TFDS_DATA_DIR to a directory"
        ) from None


def archive_path(url: str) -> Path:
    """Return the file downloaded from a URL, or the path in tfds' `manual` to save it as.

    tfds records the URL of each download in a file with the same name plus .INFO.
    """
    data = data_folder()
    manual = data / "downloads" / "manual" / Path(url).name
    if not manual.exists():
        for info in itertools.chain(*(data.glob(f"downloads/{p}.INFO") for p in ("*", "*/*"))):
            if f'"{url}"' in info.read_text("utf-8", "replace") and info.with_suffix("").exists():
                return info.with_suffix("")
    return manual


def spa_eng(share: float | None = None) -> Corpus:
    """Open the English-Spanish sentence pairs of TensorFlow's tutorials: 118,964 pairs.

    Pairs with the same English sentence are in one split, except for a language model. share: see
    `select_by_hash`.
    """
    archive = archive_path(ANKI_URL)

    @functools.cache
    def all_pairs() -> list[TextPair]:
        downloaded = not archive.exists()
        try:
            if downloaded:
                fetch([ANKI_URL], archive, ANKI_SIZE)
            with zipfile.ZipFile(archive) as file:
                text = file.read(ANKI_TEXT)
            lines = text.decode().replace("\r", "").split("\n")
        except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
            if downloaded:
                archive.unlink(missing_ok=True)
            raise CorpusError(
                f"spa-eng: {first_line(error)}; save {ANKI_URL} as {archive}, or use --corpus mini"
            ) from error
        if hashlib.sha256(text).hexdigest() != ANKI_SHA256:
            warn(f"{archive} is not the edition that the published results are from")
        return [tuple(line.split("\t")[:2]) for line in lines if "\t" in line]

    def files() -> dict[str, list[Path]]:
        if not archive.exists():
            all_pairs()
        return dict.fromkeys(SPLITS, [archive])

    def pairs(split: str) -> Iterator[TextPair]:
        return select(all_pairs(), split)

    select = functools.partial(select_by_hash, "spa-eng", share=share)
    return Corpus("spa-eng", ("en", "es"), files, pairs, select=select)


def shakespeare(share: float | None = None) -> Corpus:
    """Open Karpathy's tiny Shakespeare, one text of 1,115,394 characters (Karpathy 2015).

    share: see `split_by_position`.
    """
    path = data_folder() / "downloads" / "manual" / "tinyshakespeare.txt"

    def lines() -> Iterator[str]:
        if not path.exists():
            try:
                fetch([SHAKESPEARE_URL], path, SHAKESPEARE_SIZE, SHAKESPEARE_SHA256)
            except OSError as error:
                raise CorpusError(
                    f"shakespeare: {first_line(error)}; save {SHAKESPEARE_URL} as {path}"
                ) from error
        if hashlib.sha256(path.read_bytes()).hexdigest() != SHAKESPEARE_SHA256:
            raise CorpusError(f"{path} is damaged: delete it and run the command again")
        return read_text(path)

    corpus = split_by_position("shakespeare", lines, path, share)

    def files() -> dict[str, list[Path]]:
        if not path.exists():
            lines()
        return corpus.files()

    return replace(corpus, files=files)
