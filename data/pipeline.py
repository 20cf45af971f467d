"""Text to ids: train the tokenizers and encode a corpus once, and cache the result on disk.

The memory that this takes does not depend on the size of the corpus: texts are read and encoded in
parts, and the ids are mapped from files.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from config import Config, UserError, first_line
from data import corpora, tokenizer
from data.batches import Pairs
from data.encoding import encode_to_files, log, map_pairs, write_json
from data.splits import Corpus, CorpusError, Row, Split, Summary
from data.tokenizer import Labels, Tokenizer

CHECKED_BYTES = 12 << 20  # `check` reads smaller corpora only, which takes half a second
TOKENIZER_PAIRS = 250_000  # the most pairs that tokenizers are trained on
VALIDATION_PAIRS = 5_000  # the most pairs of the validation split that are used


class Dataset(NamedTuple):
    """An encoded corpus."""

    train: Pairs
    validation: Pairs
    validation_texts: Split  # also the pairs that are too long to be in `validation`
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | Labels
    facts: dict  # languages; for each split: sha256, pairs; also used, dropped or cut


def check(config: Config) -> None:
    """Raise CorpusError for an invalid name, and for local files that cannot be used.

    Does not download anything, import TensorFlow or read large files. A cached corpus is valid.
    """
    corpus = corpora.open(config)
    if corpus.local and sum(file.stat().st_size for file in corpus.all_files()) < CHECKED_BYTES:
        if not cache_folder(config, corpus).exists():
            splits = existing_splits(corpus)
            check_labels(corpus, {name: corpus.summarize(name, 1) for name in splits})


def load(config: Config) -> Dataset:
    """Return the corpus of `config`, encoded: from the cache, or else encode and cache it.

    Raises UserError and OSError.
    """
    corpus = corpora.open(config)
    folder = cache_folder(config, corpus)
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        with locked(unfinished):
            if not folder.exists():  # another process may have written it meanwhile
                prepare(unfinished, config, corpus)
                unfinished.rename(folder)
    return read(folder, config)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a directory, and wait until no other process uses it. Raises OSError.

    Afterwards, removes the directory if it is empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("waiting for another process that prepares the same corpus")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            folder.rmdir()


def cache_folder(config: Config, corpus: Corpus) -> Path:
    """Return the directory of a Dataset in the cache.

    Its name is a hash of everything that the Dataset depends on: the corpus' files, settings, and
    this package.
    """
    settings = [config.reverse, config.labelled, config.tokenizer, config.vocab_size]
    settings += [config.shared_vocabulary, config.lowercase, config.max_length]
    code = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    inputs = json.dumps([settings, corpus.fingerprint(), code])
    return Path(config.cache_dir) / hashlib.sha256(inputs.encode()).hexdigest()[:20]


def prepare(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write an encoded corpus into a directory, with messages on standard error.

    Continues where an earlier, interrupted call stopped, with the same result. Raises UserError and
    OSError.
    """
    train = None
    if not (folder / "facts.json").exists():
        train = train_tokenizers(folder, config, corpus)
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    tokenizers = load_tokenizers(folder, config)
    texts = json.loads((folder / "validation.json").read_text("utf-8"))
    validation = list(zip(*filter(None, texts), strict=True))
    for name, rows in (("train", train or corpus.read("train")), ("validation", validation)):
        split = facts["splits"][name]
        log(f"encoding {name}")
        total = len(validation) if name == "validation" else split["pairs"]
        too_long = encode_to_files(folder, name, rows, total, *tokenizers, config.max_length)
        outcome = "cut" if config.labelled else "dropped"
        split[outcome] = too_long
        if too_long:
            log(f"{name}: {outcome} {too_long:,} pairs with more than {config.max_length} tokens")
        if too_long == total and not config.labelled:
            shutil.rmtree(folder)
            raise CorpusError(
                f"{corpus.name}: all pairs of its {name} split have more than {config.max_length} "
                "tokens: raise --max-length"
            )
    write_json(folder / "facts.json", facts)


def train_tokenizers(folder: Path, config: Config, corpus: Corpus) -> list[Row] | None:
    """Read a corpus, train the tokenizers, and write them with the facts about the corpus.

    Also writes the pairs of the validation split that are used. Returns the training split if it is
    in memory. Raises UserError and OSError.
    """
    log(f"reading {corpus.name}")
    most = {"train": TOKENIZER_PAIRS, "validation": VALIDATION_PAIRS}
    splits = {name: corpus.summarize(name, most.get(name, 1)) for name in existing_splits(corpus)}
    check_labels(corpus, splits)
    train, validation = splits["train"], splits["validation"]
    log(f"training the tokenizer on {of_all(train)} pairs")
    tokenizers = tokenizer.train_pair(Split.of(train.sample), train.labels, config)
    for trained in dict.fromkeys(tokenizers):
        if isinstance(trained, Tokenizer) and trained.vocab_size < config.vocab_size:
            log(f"{trained.vocab_size:,} tokens, fewer than --vocab-size {config.vocab_size}")
    if not validation.complete:
        log(f"using {of_all(validation)} pairs for validation")
    tokenizer.save_pair(folder, *tokenizers)
    write_json(folder / "validation.json", Split.of(validation.sample))
    facts = {name: {"sha256": split.sha256, "pairs": split.pairs} for name, split in splits.items()}
    facts["validation"]["used"] = len(validation.sample)
    write_json(folder / "facts.json", {"languages": list(corpus.languages), "splits": facts})
    return train.sample if train.complete else None


def existing_splits(corpus: Corpus) -> list[str]:
    """Return the names of the splits. Raises CorpusError if it cannot be trained on."""
    names = corpus.splits()
    for name in ("train", "validation"):
        if name not in names:
            raise CorpusError(f"{corpus.name} has no {name} split, which training needs: add one")
    return names


def of_all(split: Summary) -> str:
    """Say how many pairs a sample has, such as "5,000 of 100,000"."""
    return f"{len(split.sample):,}" + ("" if split.complete else f" of {split.pairs:,}")


def check_labels(corpus: Corpus, splits: dict[str, Summary]) -> None:
    """Raise CorpusError if the labels look like texts, or if one is not in the training split."""
    if not corpus.labelled:
        return
    train = splits["train"]
    if len(train.labels) > 99 and len(train.labels) > train.pairs / 2:
        raise CorpusError(
            f"{corpus.name}: {len(train.labels):,} different labels for {train.pairs:,} texts: put "
            "the label first, then a TAB, then the text"
        )
    for name, split in splits.items():
        try:
            Labels(sorted(train.labels)).encode(sorted(split.labels))
        except UserError as error:
            raise CorpusError(f"{corpus.name}, {name} split: {error}") from error


def read(folder: Path, config: Config) -> Dataset:
    """Open the Dataset that `prepare` wrote. Its arrays are mapped. Raises CorpusError if a file is
    damaged.
    """
    try:
        tokenizers = load_tokenizers(folder, config)
        texts = Split(*json.loads((folder / "validation.json").read_text("utf-8")))
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        train, validation = (
            map_pairs(folder, name, tokenizers) for name in ("train", "validation")
        )
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise CorpusError(
            f"{folder} is damaged ({first_line(error)}): delete it, and it will be written again"
        ) from error
    return Dataset(train, validation, texts, *tokenizers, facts)


def load_tokenizers(folder: Path, config: Config) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Load the tokenizers of a directory of the cache. Raises OSError and UserError."""
    return tokenizer.load_pair(folder, config.lowercase, config.tokenizer == "word")
