"""Where text comes from: built in, tensorflow_datasets, or files of your own.

`--corpus` takes one of:

    mini, mini:SIZE   the built-in grammar; SIZE is the number of training pairs
    NAME/CONFIG       a translation dataset of tensorflow_datasets: ted_hrlr_translate/pt_to_en;
                      TFDS_DATA_DIR says where prepared datasets lie
    a directory       train.SRC and train.TGT, line by line translations of each other, likewise
                      validation.* and test.*; of the two extensions, the alphabetically first is
                      the source (`reverse` swaps)
    a .tsv file       source TAB target; further columns are ignored; 96 % of the sources train,
                      2 % validate, 2 % test

Files are UTF-8, with or without a byte order mark and carriage returns. To add a corpus, write
one function that returns a Source and name it in `_find`.
"""

import codecs
import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data import mini
from data.download import fetch, first_line

SPLITS = ("train", "validation", "test")
WAYS = (
    "mini, mini:SIZE, a translation dataset of tensorflow_datasets such as "
    "ted_hrlr_translate/pt_to_en, a directory with train.SRC and train.TGT, or a .tsv file"
)

# The host of the TED talks is often down; the second address is an archived copy of the same file.
TED_HOST = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
TED_ADDRESSES = (TED_HOST, "https://web.archive.org/web/20240301220426if_/" + TED_HOST)


class CorpusError(ValueError):
    """A corpus cannot be read: one sentence that says where, why and what to do."""


class Split(NamedTuple):
    """Texts that translate each other, in a fixed order: targets[i] belongs to sources[i]."""

    sources: list[str]
    targets: list[str]
    tags: list[str] | None = None  # what each pair exercises, where the corpus knows

    def sha256(self) -> str:
        """Hex hash of the texts; their order, their boundaries and the direction all count."""
        return hashlib.sha256(json.dumps([self.sources, self.targets]).encode()).hexdigest()


class Source(NamedTuple):
    """What a kind of corpus answers; only `languages` must be known before the data is here."""

    languages: tuple[str, str]
    files: Callable[[], dict[str, list[Path]]]  # what each existing split is read from
    read: Callable[[str], Split]


def check(name: str) -> None:
    """Refuses a misspelt corpus at once, before TensorFlow is imported and without downloading.

    Raises CorpusError.
    """
    _find(name)


def languages(name: str, reverse: bool = False) -> tuple[str, str]:
    """The (source, target) languages, such as ("pt", "en").  Raises CorpusError."""
    source, target = _find(name).languages
    return (target, source) if reverse else (source, target)


def splits(name: str) -> list[str]:
    """The splits that exist; downloads a dataset that is not here yet.  Raises CorpusError."""
    return list(_find(name).files())


def load(name: str, split: str, reverse: bool = False) -> Split:
    """One split as text, always in the same order; `reverse` swaps sources and targets.

    Raises CorpusError, also for a split that the corpus does not have.
    """
    corpus = _find(name)
    existing = corpus.files()
    if split not in existing:
        raise CorpusError(f"{name}: has no {split!r} split, only {', '.join(existing)}")
    texts = corpus.read(split)
    return texts._replace(sources=texts.targets, targets=texts.sources) if reverse else texts


def fingerprint(name: str) -> str:
    """Hex hash of the files behind a corpus, unparsed; moving them does not change it.

    Downloads a dataset that is not here yet.  Raises CorpusError.
    """
    digest = hashlib.sha256(Path(name).name.encode())  # "mini" and "mini:9" share their files
    for file in sorted(set(itertools.chain(*_find(name).files().values()))):
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _find(name: str) -> Source:
    if name.partition(":")[0] == "mini":
        return _mini(name)
    if os.path.isdir(name):
        return _folder(Path(name))
    if name.endswith(".tsv"):
        return _table(Path(name))
    # A dataset's bare name would silently mean its first language pair, so a "/" is required.
    if re.fullmatch(r"\w+/[\w.:*+/-]+", name):
        return _tfds(name)
    raise CorpusError(f"unknown corpus {name!r}: give {WAYS}")


# ---- Built in -----------------------------------------------------------------------------------


def _mini(name: str) -> Source:
    size, most = name.removeprefix("mini").removeprefix(":"), mini.LIMITS["train"]
    if name != "mini" and not (size.isdecimal() and 1 <= int(size) <= most):
        raise CorpusError(f"{name!r}: mini:SIZE takes a number of training pairs from 1 to {most}")

    def read(split):
        pairs = mini.generate(split, int(size) if size and split == "train" else None)
        return Split(*map(list, zip(*((p.source, p.target, p.tag) for p in pairs), strict=True)))

    package = Path(mini.__file__).parent
    grammar = [*package.glob("*.py"), package / "lexicon.tsv"]
    return Source(("pt", "en"), lambda: dict.fromkeys(mini.SIZES, grammar), read)


# ---- Your own files -----------------------------------------------------------------------------


def _folder(path: Path) -> Source:
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
        sources, targets = map(_lines, files[split])
        if len(sources) != len(targets):
            raise CorpusError(
                f"{files[split][0]} has {len(sources)} lines but {files[split][1]} has "
                f"{len(targets)}: line n of one must translate line n of the other"
            )
        _refuse_empty(files[split][0], sources)
        _refuse_empty(files[split][1], targets)
        return Split(sources, targets)

    for file in itertools.chain(*files.values()):
        if not file.exists():
            raise CorpusError(f"{file}: missing, though the other half of the split is there")
    return Source((extensions[0], extensions[1]), lambda: files, read)


def _table(path: Path) -> Source:
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")

    def read(split):
        shares = {split: Split([], []) for split in SPLITS}
        rows = [line.split("\t") for line in _lines(path)]
        for number, row in enumerate(rows, 1):
            if len(row) < 2:
                raise CorpusError(f"{path}:{number}: no TAB between source and target")
        for column in 0, 1:
            _refuse_empty(path, [row[column] for row in rows])
        for source, target, *_ in rows:
            share = shares[_share(source)]
            share.sources.append(source)
            share.targets.append(target)
        for split_name, share in shares.items():
            if not share.sources:
                raise CorpusError(
                    f"{path}: none of its {len(rows)} lines falls to the {split_name} split; give "
                    "300 different sources or more, or a directory with splits of your own"
                )
        return shares[split]

    return Source(("source", "target"), lambda: dict.fromkeys(SPLITS, [path]), read)


def _share(source: str) -> str:
    """The split a source belongs to, whatever else is in the file: duplicates stay together."""
    percent = int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big") % 100
    return "train" if percent < 96 else "validation" if percent < 98 else "test"


def _lines(path: Path) -> list[str]:
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


def _refuse_empty(path: Path, texts: list[str]) -> None:
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise CorpusError(f"{path}:{number}: an empty text; remove it and its translation")


# ---- tensorflow_datasets ------------------------------------------------------------------------


def _tfds(name: str) -> Source:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the record reader reports buffer sizes
    import tensorflow_datasets as tfds  # takes 0.3 s: it imports TensorFlow only to read or write

    try:
        # tfds reads the variable once, when imported; this makes it count whenever it is set.
        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except Exception as error:  # a name, a configuration or a version it has not, or a bad file
        # Before the reason tfds prints its arguments, after it long lists.
        reason = first_line(error).rpartition('": ')[2].partition(". ")[0]
        raise CorpusError(f"{name!r}: no such directory; {reason}; give {WAYS}") from error
    features = builder.info.features
    if not isinstance(features, tfds.features.Translation) or len(features) != 2:
        raise CorpusError(f"{name}: not a translation between two languages; give {WAYS}")
    # Where only the prepared files are known, `features` is sorted: these keys keep the direction.
    source, target = builder.info.supervised_keys or tuple(features)

    def files():
        _prepare(name, builder)
        return {split: list(map(Path, i.filepaths)) for split, i in builder.info.splits.items()}

    def read(split):
        in_file_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        rows = builder.as_dataset(split=split, shuffle_files=False, read_config=in_file_order)
        texts = Split([], [])
        for batch in rows.batch(1024).as_numpy_iterator():  # row by row takes sixty times as long
            texts.sources.extend(text.decode() for text in batch[source])
            texts.targets.extend(text.decode() for text in batch[target])
        return texts

    return Source((source, target), files, read)


def _prepare(name: str, builder) -> None:
    """Downloads a dataset that is not here yet and writes it to the data directory, or nothing."""
    if builder.data_path.exists():
        return
    ways = "set TFDS_DATA_DIR to a directory that holds it prepared, or use --corpus mini"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a program's output is not tfds' to write to
            if builder.name == "ted_hrlr_translate":
                archive = Path(builder.data_dir_root, "downloads", "manual", Path(TED_HOST).name)
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
