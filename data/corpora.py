"""Find a corpus by its name: see the table in docs/commands.md.

If a labelled dataset or directory has no validation split, a fifth of its training split is held
out. Files are UTF-8; a byte order mark and carriage returns are removed. Pairs with an empty text
are left out. To add a corpus, write a
function that returns a `Corpus` and call it in `find`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from config import Config
from data import local, mini, tfds
from data.splits import SUPPORTED, TABLES, Corpus, CorpusError, TextPair, keep_share


def from_config(config: Config) -> Corpus:
    """Return the corpus that a configuration names, in its direction. Raises CorpusError."""
    corpus = find(config.corpus, config.reverse, config.is_classifier)
    share = config.train_share
    return corpus if share is None else keep_share(corpus, share)


def find(name: str, reverse: bool = False, labelled: bool = False) -> Corpus:
    """Return the corpus with this name. Neither downloads it nor imports TensorFlow.

    reverse: exchange source and target language. labelled: whether labels are needed instead of
    translations. Raises CorpusError.
    """
    if name.partition(":")[0] == "mini":
        corpus = built_in(name)
    elif name == "spa-eng":
        corpus = tfds.spa_eng()
    elif os.path.isdir(name):
        corpus = directory(Path(name), labelled)
    elif name.endswith(TABLES):
        corpus = local.table(Path(name), labelled)
    elif os.path.isfile(name):
        raise CorpusError(f"{name}: not a .tsv file; give its directory, or a .tsv file")
    elif re.fullmatch(r"\w+(/[\w.:*+/-]+)?", name):
        corpus = tfds.dataset(name)
    else:
        raise CorpusError(f"{name!r}: no such directory; use {SUPPORTED}")
    if labelled and not corpus.labelled:
        raise CorpusError(
            f"{name} has translations, not labels: use a labelled corpus such as imdb_reviews, or "
            "train without --model classifier"
        )
    if corpus.labelled and not labelled:
        raise CorpusError(
            f"{name} has labels, not translations: use a corpus of translations such as mini, or "
            "train with --model classifier"
        )
    return corpus.swap() if reverse and not labelled else corpus


def built_in(name: str) -> Corpus:
    """Return the corpus `mini` or `mini:SIZE`."""
    size, limit = name.removeprefix("mini").removeprefix(":"), mini.LIMITS["train"]
    if name != "mini" and not (size.isdecimal() and 1 <= int(size) <= limit):
        raise CorpusError(f"{name!r}: the SIZE of mini:SIZE must be from 1 to {limit:,}")

    def pairs(split: str) -> Iterator[TextPair]:
        return iter(mini.generate(split, int(size) if size and split == "train" else None))

    package = Path(mini.__file__).parent
    files = dict.fromkeys(mini.SIZES, [*package.glob("*.py"), package / "lexicon.tsv"])
    return Corpus(name, ("pt", "en"), lambda: files, pairs)


def directory(path: Path, labelled: bool) -> Corpus:
    """Return the corpus in a directory. If it has train/*/ but no train.*, it is a labelled one."""
    has_labels = any(file.is_dir() for file in path.glob("train/*"))
    if labelled or (has_labels and not any(path.glob("train.*"))):
        return local.labelled_folder(path)
    return local.folder(path)
