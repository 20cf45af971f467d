"""Find a corpus by its name: see docs/data.md.

If a dataset, or a directory of labelled texts or Parquet files, has no validation split, a part of
its training split is held out: see `hold_out`. Files are UTF-8; a byte order mark and carriage
returns are removed. Pairs with an empty text are left out. To add a corpus, write a function that
returns a `Corpus` and call it in `find`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from config import Config
from data import local, mini, parquet, tfds
from data.splits import (
    PARQUET,
    SUPPORTED,
    TABLES,
    TEXTS,
    Corpus,
    CorpusError,
    TextPair,
    is_one_file,
    keep_share,
    markup_to_text,
    strip_markup,
    suggestion,
    visible,
)


def from_config(config: Config) -> Corpus:
    """Return the corpus that a configuration names, in its direction. Raises CorpusError."""
    corpus = find(
        config.corpus, config.reverse, config.task, config.languages, config.held_out_share
    )
    share = config.train_share
    return corpus if share is None else keep_share(corpus, share)


def find(
    name: str,
    reverse: bool = False,
    task: str = "translation",
    languages: str | None = None,
    held_out_share: float | None = None,
) -> Corpus:
    """Return the corpus with this name. Neither downloads it nor imports TensorFlow.

    reverse: exchange source and target language. task: a value of `TASKS`. A language model gets
    the target side of translations, or texts without their labels. languages, held_out_share: see
    `Config`. Raises CorpusError.
    """
    texts, labelled = task == "language modeling", task == "classification"
    chosen, share = tuple(languages.split(",")) if languages else (), held_out_share
    if is_mini(name):
        corpus = built_in(name)
    elif name == "spa-eng":
        corpus = tfds.spa_eng(share)
    elif name == "shakespeare":
        corpus = tfds.shakespeare(share)
    elif os.path.isdir(name):
        corpus = directory(Path(name), task, chosen, share)
    elif is_one_file(name) and not os.path.isfile(name):
        raise CorpusError(f"{name}: no such file{suggestion(name)}")
    elif name.endswith(TABLES):
        corpus = local.table(Path(name), labelled, texts, share)
    elif name.endswith(TEXTS):
        corpus = local.text(Path(name), share)
    elif name.endswith(PARQUET):
        corpus = parquet.corpus(Path(name), task, chosen, share)
    elif os.path.isfile(name):
        raise CorpusError(
            f"{name}: not a .tsv (source TAB target), .txt or .parquet file; convert or rename "
            "it, or give its directory"
        )
    elif re.fullmatch(r"\w+(/[\w.:*+/-]+)?", name):
        corpus = tfds.dataset(name, texts, chosen, share)
    else:
        raise CorpusError(f"{name!r}: no such file or directory{suggestion(name)}; use {SUPPORTED}")
    if chosen and {*chosen} != {*corpus.languages}:
        raise CorpusError(
            f"{name} has {', '.join(corpus.languages)}, not {languages}: change or remove "
            "--languages"
        )
    if chosen != corpus.languages and chosen and corpus.task == "translation":
        corpus = corpus.swap()
    if texts and corpus.task != task:
        return (corpus.swap() if reverse and not corpus.labelled else corpus).texts_only()
    if corpus.task != task:
        raise CorpusError(f"{name} has {MISMATCHES[corpus.task, task]}")
    return corpus.swap() if reverse and not (labelled or texts) else corpus


# What is wrong, and what to do, if a corpus for one task is given for another.
MISMATCHES = {
    ("translation", "classification"): (
        "translations, not labels: use a labelled corpus such as imdb_reviews, or train without "
        "--model classifier"
    ),
    ("classification", "translation"): (
        "labels, not translations: use a corpus of translations such as mini, or train with "
        "--model classifier or --model language_model"
    ),
    ("language modeling", "translation"): (
        "text without translations: use a corpus of translations such as mini, train with --model "
        "language_model, or, if its lines are source TAB target, rename it to .tsv"
    ),
    ("language modeling", "classification"): (
        "text without labels: use a labelled corpus such as imdb_reviews, or train with --model "
        "language_model"
    ),
}


def is_same(one: str, other: str) -> bool:
    """Return whether two names are those of the same corpus, perhaps moved since."""
    exist = [*map(os.path.exists, (one, other))]
    if one == other or all(exist):
        return one == other or os.path.samefile(one, other)
    return any(exist) and Path(one).name == Path(other).name


def is_mini(name: str) -> bool:
    """Return whether a corpus is the built-in one, or a part of it."""
    return name.partition(":")[0] == "mini"


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


def directory(path: Path, task: str, languages: Sequence[str], share: float | None) -> Corpus:
    """Return the corpus in a directory. languages, share: see `parquet.corpus`.

    A directory with train.txt is a text if the task is language modeling. One with train/*/ but no
    train.* has labels.
    """
    if any(path.glob("*" + PARQUET)):
        return parquet.corpus(path, task, languages, share)
    if task == "language modeling" and any((path / f"train{end}").exists() for end in TEXTS):
        return local.text_folder(path)
    train = path / "train"
    has_labels = train.is_dir() and any(file.is_dir() for file in visible(train))
    if task == "classification" or (has_labels and not any(path.glob("train.*"))):
        keep_lines = task == "language modeling"
        return local.labelled_folder(path, markup_to_text if keep_lines else strip_markup, share)
    return local.folder(path)
