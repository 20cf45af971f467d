"""Text to ids: train the tokenizers and encode a corpus once, and cache the result on disk.

Corpora in files are read and encoded in parts, and the ids are memory-mapped, so that neither needs
to fit into memory.
"""

import contextlib
import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from config import Config
from data import corpora, tokenizer
from data.batches import Pairs
from data.encoding import encode_to_files, log, map_pairs
from data.splits import Corpus, CorpusError, Split, Summary, TextPair
from data.tokenizer import Labels, Tokenizer
from same_code import fingerprint
from utils import UserError, first_line, lock, write_json

CHECKED_BYTES = 12 << 20  # `check` reads smaller corpora only, which takes about a second
TOKENIZER_PAIRS = 250_000  # maximum number of pairs used to train the tokenizers
VALIDATION_PAIRS = 5_000  # maximum number of validation pairs used


class Dataset(NamedTuple):
    """An encoded corpus."""

    train: Pairs
    validation: Pairs
    validation_texts: Split  # includes pairs that are too long for `validation`
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | Labels
    facts: dict  # languages; for each split: sha256, pairs, and how many were used, dropped or cut


def check(config: Config) -> None:
    """Raise CorpusError for an invalid name, and for local files that cannot be used.

    Does not download anything, import TensorFlow or read large files. A cached corpus is valid.
    """
    corpus = corpora.from_config(config)
    if corpus.local and sum(file.stat().st_size for file in corpus.all_files()) < CHECKED_BYTES:
        if not cache_folder(config, corpus).exists():
            summarize(corpus, {})


def load(config: Config) -> Dataset:
    """Return the corpus of `config`, encoded: from the cache, or else encode and cache it.

    Raises UserError and OSError.
    """
    corpus = corpora.from_config(config)
    folder = cache_folder(config, corpus)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = "waiting for another process that is preparing the same corpus"
        with lock(folder.with_suffix(".lock"), wait=waiting):
            if not folder.exists():  # another process may have written it meanwhile
                prepare(folder, config, corpus)
    return read(folder, config)


def cache_folder(config: Config, corpus: Corpus) -> Path:
    """Return the directory of a Dataset in the cache.

    Its name is a hash of the corpus' files, the settings and the code of this package, but not of
    the versions of libraries.
    """
    settings = [config.reverse, config.is_classifier, config.tokenizer, config.vocab_size]
    settings += [config.shared_vocabulary, config.lowercase, config.max_length]
    inputs = json.dumps([settings, corpus.fingerprint(), fingerprint("dataset")])
    return Path(config.cache_dir) / hashlib.sha256(inputs.encode()).hexdigest()[:20]


def prepare(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write an encoded corpus into a directory, with messages on standard error.

    Resumes where an earlier, interrupted call stopped, with the same result. Until it is complete,
    the directory is called *.unfinished. Raises UserError and OSError.
    """
    unfinished = folder.with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    try:
        train = None
        if not (unfinished / "facts.json").exists():
            train = train_tokenizers(unfinished, config, corpus)
        encode_splits(unfinished, config, corpus, train)
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CorpusError(
            f"{unfinished} cannot be written: {error.strerror}; free some space or choose another "
            "--cache-dir, then run the command again"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # rmdir fails if the directory is not empty
            unfinished.rmdir()


def train_tokenizers(folder: Path, config: Config, corpus: Corpus) -> list[TextPair] | None:
    """Read a corpus, train the tokenizers, and write them with the facts about the corpus.

    Also writes the pairs of the validation split that are used. Returns the training split if it is
    in memory. Raises UserError and OSError.
    """
    log(f"reading {corpus.name}")
    splits = summarize(corpus, {"train": TOKENIZER_PAIRS, "validation": VALIDATION_PAIRS})
    train, validation = splits["train"], splits["validation"]
    log(f"training the tokenizer on {len(train.sample):,} of {train.pairs:,} pairs")
    tokenizers = tokenizer.train_pair(Split.of(train.sample), train.labels, config)
    for trained in dict.fromkeys(tokenizers):
        if isinstance(trained, Tokenizer) and trained.vocab_size < config.vocab_size:
            log(f"{trained.vocab_size:,} tokens, fewer than --vocab-size {config.vocab_size}")
    used = len(validation.sample)
    if used < validation.pairs:
        log(f"using {used:,} of {validation.pairs:,} pairs for validation")
    tokenizer.save_pair(folder, *tokenizers)
    write_json(folder / "validation.json", Split.of(validation.sample))
    facts = {name: {"sha256": split.sha256, "pairs": split.pairs} for name, split in splits.items()}
    facts["validation"]["used"] = used
    write_json(folder / "facts.json", {"languages": list(corpus.languages), "splits": facts})
    return train.sample if len(train.sample) == train.pairs else None


def encode_splits(
    folder: Path, config: Config, corpus: Corpus, train: list[TextPair] | None
) -> None:
    """Encode what training needs, with the tokenizers in a directory, into files next to them.

    train: the training split if it is in memory. Raises UserError and OSError.
    """
    texts, tokenizers, facts = read_texts(folder, config)
    validation = zip(*texts[:2], strict=True)
    splits = {"train": train or corpus.read("train"), "validation": validation}
    for name, pairs in splits.items():
        split = facts["splits"][name]
        log(f"encoding {name}")
        total = split.get("used", split["pairs"])
        too_long = encode_to_files(folder, name, pairs, total, tokenizers, config.max_length)
        outcome = "cut" if config.is_classifier else "dropped"
        split[outcome] = too_long
        if too_long:
            log(f"{name}: {outcome} {too_long:,} pairs with more than {config.max_length} tokens")
        if too_long == total and not config.is_classifier:
            shutil.rmtree(folder)
            raise CorpusError(
                f"{corpus.name}: all pairs of its {name} split have more than {config.max_length} "
                "tokens: raise --max-length"
            )
    write_json(folder / "facts.json", facts)


def summarize(corpus: Corpus, limits: dict[str, int]) -> dict[str, Summary]:
    """Read all splits once, keeping at most `limits[split]` pairs in memory, by default one.

    Raises CorpusError if the corpus cannot be trained on.
    """
    splits = {name: corpus.summarize(name, limits.get(name, 1)) for name in corpus.files()}
    for name in ("train", "validation"):
        if name not in splits:
            raise CorpusError(f"{corpus.name} has no {name} split, which training needs: add one")
        if not splits[name].pairs:
            raise CorpusError(f"{corpus.name}: its {name} split is empty: add texts")
    if corpus.labelled:
        check_labels(corpus.name, splits)
    return splits


def check_labels(name: str, splits: dict[str, Summary]) -> None:
    """Raise CorpusError if the labels look like texts, or if one is not in the training split."""
    train = splits["train"]
    if len(train.labels) > 99 and len(train.labels) > train.pairs / 2:
        raise CorpusError(
            f"{name}: {len(train.labels):,} different labels for {train.pairs:,} texts: put "
            "the label first, then a TAB, then the text"
        )
    for split_name, split in splits.items():
        try:
            Labels(sorted(train.labels)).encode(sorted(split.labels))
        except UserError as error:
            raise CorpusError(f"{name}, {split_name} split: {error}") from error


def read(folder: Path, config: Config) -> Dataset:
    """Open the Dataset that `prepare` wrote. Raises CorpusError if a file is damaged."""
    texts, tokenizers, facts = read_texts(folder, config)
    with damage_reported(folder):
        pairs = [map_pairs(folder, name, tokenizers) for name in ("train", "validation")]
    return Dataset(*pairs, texts, *tokenizers, facts)


def read_texts(
    folder: Path, config: Config
) -> tuple[Split, tuple[Tokenizer, Tokenizer | Labels], dict]:
    """Read what `train_tokenizers` wrote: validation texts, tokenizers, and facts.

    Raises CorpusError if a file is damaged.
    """
    with damage_reported(folder):
        texts = Split(*json.loads((folder / "validation.json").read_text("utf-8")))
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        words = config.tokenizer == "word"
        return texts, tokenizer.load_pair(folder, config.lowercase, words), facts


@contextlib.contextmanager
def damage_reported(folder: Path) -> Iterator[None]:
    """Raise CorpusError with a remedy if the files of a directory cannot be read."""
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        raise CorpusError(
            f"{folder} is damaged ({first_line(error)}): delete it and run the command again"
        ) from error
