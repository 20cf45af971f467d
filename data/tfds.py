"""Corpora that are downloaded: those of tensorflow_datasets, and the Anki sentence pairs."""

import contextlib
import hashlib
import os
import sys
import zipfile
from pathlib import Path

from config import first_line
from data.download import fetch
from data.splits import SPLITS, WAYS, CorpusError, Source, Split, divided, hold_out, plain

# The host of the TED talks is often down; the second address is an archived copy of the same file.
TED_HOST = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
TED_ADDRESSES = (TED_HOST, "https://web.archive.org/web/20240301220426if_/" + TED_HOST)

ANKI_ADDRESS = "https://storage.googleapis.com/download.tensorflow.org/data/spa-eng.zip"
ANKI_SIZE = 2_700_000  # bytes, about
ANKI_SHA256 = "6ec60e212f812ee3430f7568ea6f33b6fb080e32193c5952e8da0ee8ba45574c"  # of the text
ANKI_LARGEST = 2**27  # bytes that are unpacked at the most; the text has 8 million
ANKI_TEXT = "spa-eng/spa.txt"  # English TAB Spanish


def tfds(name: str) -> Source:
    """A translation dataset of tensorflow_datasets, or one of texts with labels.

    Raises CorpusError.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the record reader reports buffer sizes
    import tensorflow_datasets  # takes 0.3 s: it imports TensorFlow only to read or write

    try:
        # tfds reads the variable once, when imported; this makes it count whenever it is set.
        builder = tensorflow_datasets.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except Exception as error:  # a name, a configuration or a version it has not, or a bad file
        # Before the reason tfds prints its arguments, after it long lists.
        reason = first_line(error).rpartition('": ')[2].partition(". ")[0]
        raise CorpusError(f"{name!r}: no such directory; {reason}; give {WAYS}") from error
    features = builder.info.features
    keys = builder.info.supervised_keys
    labelled = not isinstance(features, tensorflow_datasets.features.Translation)
    if not labelled:
        if len(features) != 2:
            raise CorpusError(f"{name}: not a translation between two languages; give {WAYS}")
        # Where only the prepared files are known, `features` is sorted: the keys keep the
        # direction.
        languages = keys or tuple(features)
        decode = [lambda text: text.decode()] * 2
    else:
        kinds = [type(features[key]) for key in keys] if keys and len(keys) == 2 else None
        if kinds != [tensorflow_datasets.features.Text, tensorflow_datasets.features.ClassLabel]:
            raise CorpusError(f"{name}: neither translations nor texts with labels; give {WAYS}")
        decode = [lambda text: plain(text.decode()), features[keys[1]].int2str]
        languages = ("text", "label")

    def files():
        _prepare(name, builder)
        # What is no split of these has no labels: imdb_reviews' `unsupervised`.
        return {
            split: list(map(Path, info.filepaths))
            for split, info in builder.info.splits.items()
            if split in SPLITS or not labelled
        }

    def read(split):
        in_file_order = tensorflow_datasets.ReadConfig(
            interleave_cycle_length=1, try_autocache=False
        )
        rows = builder.as_dataset(split=split, shuffle_files=False, read_config=in_file_order)
        texts = Split([], [])
        for batch in rows.batch(1024).as_numpy_iterator():  # row by row takes sixty times as long
            for key, column, text in zip(keys or languages, texts, decode, strict=False):
                column.extend(map(text, batch[key]))
            if labelled and min(batch[keys[1]]) < 0:  # tfds' sign for none
                raise CorpusError(f"{name}: its {split} split has texts without a label")
        if labelled:  # an empty text has no label, whatever it says
            texts = texts.take([i for i, text in enumerate(texts.sources) if text])
        return texts

    source = Source(tuple(languages), files, read, labelled)
    return hold_out(source) if labelled else source


def _prepare(name: str, builder) -> None:
    """Downloads a dataset that is not here yet and writes it to the data directory, or nothing."""
    if builder.data_path.exists():
        return
    ways = "set TFDS_DATA_DIR to a directory that holds it prepared, or use --corpus mini"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a program's output is not tfds' to write to
            if builder.name == "ted_hrlr_translate":
                archive = by_hand(TED_HOST)
                ways = f"put {TED_HOST} (125 MiB) at {archive} yourself, {ways}"
                _fetch_ted(archive, *builder.url_infos.values())
            builder.download_and_prepare()
    except Exception as error:  # whatever a network, a disk or a dataset's own code can raise
        raise CorpusError(f"{name}: cannot be prepared: {first_line(error)}; {ways}") from error


def _fetch_ted(archive: Path, expected) -> None:
    """Puts the archive where tfds looks before it downloads, so that tfds need not.

    tfds itself asks a dead host eleven times, without a timeout, and knows no second address.
    """
    if not archive.exists():
        fetch(TED_ADDRESSES, archive, expected.size, expected.checksum)


def by_hand(address: str) -> Path:
    """Where a file from the network may be put by hand: tfds' folder for that."""
    data = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data).expanduser() / "downloads" / "manual" / Path(address).name


def anki() -> Source:
    """English and Spanish sentences from Tatoeba, as the tutorials have them: 118,964 pairs.

    A sentence that has several translations falls to one split with all of them.
    """
    archive = by_hand(ANKI_ADDRESS)

    def pairs():
        here = archive.exists()
        try:
            if not here:
                fetch([ANKI_ADDRESS], archive, ANKI_SIZE)
            with zipfile.ZipFile(archive) as opened:
                if opened.getinfo(ANKI_TEXT).file_size > ANKI_LARGEST:
                    raise zipfile.BadZipFile(f"{ANKI_TEXT} is more than {ANKI_LARGEST:,} bytes")
                text = opened.read(ANKI_TEXT)
            rows = [line.split("\t") for line in text.decode().replace("\r", "").split("\n")]
        except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
            if not here:  # what came is worth nothing
                archive.unlink(missing_ok=True)
            raise CorpusError(
                f"spa-eng: {first_line(error)}; put {ANKI_ADDRESS} at {archive} yourself, or use "
                "--corpus mini"
            ) from error
        if hashlib.sha256(text).hexdigest() != ANKI_SHA256:
            print(
                f"warning: {archive} holds another edition of the sentences than the one that the "
                "published results come from",
                file=sys.stderr,
            )
        return [row for row in rows if len(row) > 1]

    def files():
        if not archive.exists():
            pairs()
        return dict.fromkeys(SPLITS, [archive])

    return Source(("en", "es"), files, lambda split: divided("spa-eng", pairs())[split])
