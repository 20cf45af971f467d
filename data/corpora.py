"""Open a corpus by its name: see docs/data.md.

To add a corpus, write a function that returns a `Corpus`, in readers.py or remote.py, and name it
in `NAMED`.
"""

import os
from pathlib import Path

from config import Config
from data import mini, readers, remote
from data.splits import Corpus, CorpusError, for_task
from utils import did_you_mean

NAMED = {
    "mini": readers.built_in,
    "spa-eng": remote.spa_eng,
    "shakespeare": remote.shakespeare,
    "cogs": remote.cogs,
}
SUPPORTED = (
    f"{', '.join(NAMED)}, mini:SIZE, a dataset such as ted_hrlr_translate/pt_to_en, a directory, "
    "or a .tsv, .csv, .txt or .parquet file (see docs/data.md)"
)


def from_config(config: Config) -> Corpus:
    """Return the corpus of a configuration, in its direction. Raises CorpusError."""
    return for_task(open_corpus(config), config)


def open_corpus(config: Config) -> Corpus:
    """Return the corpus that `--corpus` names. Neither downloads it nor imports TensorFlow.

    Raises CorpusError.
    """
    name, path = config.corpus, Path(config.corpus)
    if name in NAMED:
        return NAMED[name]()
    if name.startswith("mini:"):
        size, limit = name.removeprefix("mini:"), mini.LIMITS["train"]
        if not (size.isdecimal() and 1 <= int(size) <= limit):
            raise CorpusError(f"{name!r}: the SIZE of mini:SIZE must be from 1 to {limit:,}")
        return readers.built_in(int(size))
    if path.exists():
        return readers.local(path, config)
    try:
        return remote.dataset(name)
    except CorpusError as error:
        raise CorpusError(f"{error}{did_you_mean(name, NAMED)}; or use {SUPPORTED}") from None


def is_one_file(name: str) -> bool:
    """Return whether a corpus is a single file, which has a part `all`."""
    return name.endswith(readers.FILES) and not os.path.isdir(name)


def is_same(one: str, other: str) -> bool:
    """Return whether two names are those of the same corpus, perhaps moved since."""
    exist = [*map(os.path.exists, (one, other))]
    if one == other or all(exist):
        return one == other or os.path.samefile(one, other)
    return any(exist) and Path(one).name == Path(other).name
