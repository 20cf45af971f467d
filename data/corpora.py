"""Where text comes from: built in, tensorflow_datasets, the network, or files of your own.

`--corpus` takes one of:

    mini, mini:SIZE   the built-in grammar; SIZE is the number of training pairs
    NAME/CONFIG       a translation dataset of tensorflow_datasets: ted_hrlr_translate/pt_to_en;
                      TFDS_DATA_DIR says where prepared datasets lie
    spa-eng           English and Spanish sentences from Tatoeba, which the Anki project collects
    a directory       train.SRC and train.TGT, line by line translations of each other, likewise
                      validation.* and test.*; of the two extensions, the alphabetically first is
                      the source (`reverse` swaps)
    a .tsv file       source TAB target; further columns are ignored; 96 % of the sources train,
                      2 % validate, 2 % test

and with `--model classifier`, where texts have labels instead of translations, one of:

    NAME, NAME/CONFIG a dataset of tensorflow_datasets with texts and labels: imdb_reviews
    a directory       train/LABEL/*.txt, a text a file, likewise test/ and validation/
    a .tsv file       label TAB text

Where a labelled corpus has no validation split, a fifth of its training split becomes one. Files
are UTF-8, with or without a byte order mark and carriage returns. To add a corpus, write one
function that returns a Source and name it in `_of_any_kind`.
"""

import hashlib
import itertools
import os
import re
from pathlib import Path

from data import local, mini, tfds
from data.splits import SPLITS, WAYS, CorpusError, Source, Split

__all__ = ["SPLITS", "CorpusError", "Split", "check", "fingerprint", "languages", "load", "splits"]

# Below, `labelled` asks for texts with labels instead of translations: the targets are labels.


def check(name: str, labelled: bool = False) -> None:
    """Refuses a misspelt corpus at once, before TensorFlow is imported and without downloading.

    Raises CorpusError.
    """
    _find(name, labelled)


def languages(name: str, reverse: bool = False, labelled: bool = False) -> tuple[str, str]:
    """The (source, target) languages, such as ("pt", "en").  Raises CorpusError."""
    source, target = _find(name, labelled).languages
    return (target, source) if reverse else (source, target)


def splits(name: str, labelled: bool = False) -> list[str]:
    """The splits that exist; downloads a dataset that is not here yet.  Raises CorpusError."""
    return list(_find(name, labelled).files())


def load(name: str, split: str, reverse: bool = False, labelled: bool = False) -> Split:
    """One split as text, always in the same order; `reverse` swaps sources and targets.

    Raises CorpusError, also for a split that the corpus does not have.
    """
    corpus = _find(name, labelled)
    existing = corpus.files()
    if split not in existing:
        raise CorpusError(f"{name}: has no {split!r} split, only {', '.join(existing)}")
    texts = corpus.read(split)
    return texts._replace(sources=texts.targets, targets=texts.sources) if reverse else texts


def fingerprint(name: str, labelled: bool = False) -> str:
    """Hex hash of the files behind a corpus, unparsed; moving them does not change it.

    Downloads a dataset that is not here yet.  Raises CorpusError.
    """
    digest = hashlib.sha256(Path(name).name.encode())  # "mini" and "mini:9" share their files
    for file in sorted(set(itertools.chain(*_find(name, labelled).files().values()))):
        inside = file.relative_to(name) if os.path.isdir(name) else Path(file.name)
        digest.update(inside.as_posix().encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _find(name: str, labelled: bool) -> Source:
    source = _of_any_kind(name, labelled)
    if labelled and not source.labelled:
        raise CorpusError(
            f"{name} holds translations, no labels: leave --model classifier out, or give a "
            "labelled corpus such as imdb_reviews"
        )
    if source.labelled and not labelled:
        raise CorpusError(
            f"{name} holds labels, no translations: add --model classifier, or give a corpus of "
            "translations such as mini"
        )
    return source


def _of_any_kind(name: str, labelled: bool) -> Source:
    if name.partition(":")[0] == "mini":
        return _mini(name)
    if name == "spa-eng":
        return tfds.anki()
    if os.path.isdir(name):
        path = Path(name)
        by_label = any(inner.is_dir() for inner in path.glob("train/*"))
        if labelled or (by_label and not any(path.glob("train.*"))):
            return local.labelled_folder(path)
        return local.folder(path)
    if name.endswith(".tsv"):
        return local.labelled_table(Path(name)) if labelled else local.table(Path(name))
    # A translation dataset's bare name would silently mean its first language pair.
    if re.fullmatch(r"\w+/[\w.:*+/-]+", name) or (labelled and re.fullmatch(r"\w+", name)):
        return tfds.tfds(name)
    raise CorpusError(f"unknown corpus {name!r}: give {WAYS}")


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
