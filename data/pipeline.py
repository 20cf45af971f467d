"""Text to ids: train the tokenizers and encode a corpus once, and cache the result on disk."""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import Config, UserError, first_line
from data import corpora, tokenizer
from data.batches import Pairs, Rows
from data.splits import Corpus, CorpusError, Split
from data.tokenizer import Labels, Tokenizer

CHECKED_BYTES = 12 << 20  # `check` reads smaller corpora only, which takes half a second


class Dataset(NamedTuple):
    """An encoded corpus."""

    train: Pairs
    validation: Pairs
    validation_texts: Split  # also the pairs that are too long to be in `validation`
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | Labels
    facts: dict  # languages; and for each split: sha256, pairs, and how many are dropped or cut


def check(config: Config) -> None:
    """Raise CorpusError for an invalid name, and for local files that cannot be used.

    Does not download anything, import TensorFlow or read large files. A cached corpus is valid.
    """
    corpus = corpora.open(config)
    if corpus.local and sum(file.stat().st_size for file in corpus.all_files()) < CHECKED_BYTES:
        if not cache_folder(config, corpus).exists():
            read_splits(corpus)


def load(config: Config) -> Dataset:
    """Return the corpus of `config`, encoded: from the cache, or else encode and cache it.

    Raises UserError and OSError.
    """
    corpus = corpora.open(config)
    folder = cache_folder(config, corpus)
    if folder.exists():
        return read(folder, config)
    folder.parent.mkdir(parents=True, exist_ok=True)  # fails early
    dataset = build(config, corpus)
    write(folder, dataset)
    return dataset


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


def build(config: Config, corpus: Corpus) -> Dataset:
    """Load a corpus, train the tokenizers and encode, with messages on standard error.

    Raises UserError.
    """
    log(f"reading {corpus.name}")
    splits = read_splits(corpus)
    log(f"training the tokenizer on {len(splits['train'].sources):,} pairs")
    tokenizers = tokenizer.train_pair(splits["train"], config)
    for trained in dict.fromkeys(tokenizers):
        if isinstance(trained, Tokenizer) and trained.vocab_size < config.vocab_size:
            log(f"{trained.vocab_size:,} tokens, fewer than --vocab-size {config.vocab_size}")

    facts = {"languages": list(corpus.languages), "splits": {}}
    for name, split in splits.items():
        facts["splits"][name] = {"sha256": split.sha256(), "pairs": len(split.sources)}
    encoded = []
    for name in ("train", "validation"):
        log(f"encoding {name}")
        pairs, too_long = encode(splits[name], *tokenizers, config.max_length)
        outcome = "cut" if config.labelled else "dropped"
        facts["splits"][name][outcome] = too_long
        if too_long:
            log(f"{name}: {outcome} {too_long:,} pairs with more than {config.max_length} tokens")
        if not len(pairs.source.lengths):
            raise CorpusError(
                f"{corpus.name}: all pairs of its {name} split have more than {config.max_length} "
                "tokens: raise --max-length"
            )
        encoded.append(pairs)
    return Dataset(*encoded, splits["validation"], *tokenizers, facts)


def read_splits(corpus: Corpus) -> dict[str, Split]:
    """Read all splits of a corpus. Raises CorpusError if it cannot be trained on."""
    names = corpus.splits()
    for name in ("train", "validation"):
        if name not in names:
            raise CorpusError(f"{corpus.name} has no {name} split, which training needs: add one")
    splits = {name: corpus.load(name) for name in names}
    if corpus.labelled:
        check_labels(corpus.name, splits)
    return splits


def log(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr, flush=True)


def check_labels(name: str, splits: dict[str, Split]) -> None:
    """Raise CorpusError if the labels look like texts, or if one is not in the training split."""
    texts = splits["train"].targets
    labels = Labels(sorted(set(texts)))
    if len(labels.names) > 99 and len(labels.names) > len(texts) / 2:
        raise CorpusError(
            f"{name}: {len(labels.names):,} different labels for {len(texts):,} texts: put the "
            "label first, then a TAB, then the text"
        )
    for split_name, split in splits.items():
        try:
            labels.encode(split.targets)
        except UserError as error:
            raise CorpusError(f"{name}, {split_name} split: {error}") from error


def encode(
    split: Split, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | Labels, max_length: int
) -> tuple[Pairs, int]:
    """Encode a split. Also returns how many pairs have more than `max_length` tokens on a side.

    Translations that are too long are dropped; texts with labels are cut. Raises UserError if a
    label is not in the training split.
    """
    cut = isinstance(target_tokenizer, Labels)
    sources, targets, too_long = [], [], 0
    for source, target in zip(
        source_tokenizer.encode(split.sources), target_tokenizer.encode(split.targets), strict=True
    ):
        fits = max(len(source), len(target)) <= max_length
        too_long += not fits
        if fits or cut:
            sources.append([*source[:max_length], tokenizer.EOS])
            targets.append([tokenizer.BOS, *target, *target_tokenizer.ending])
    return Pairs(Rows.of(sources), Rows.of(targets)), too_long


def write(folder: Path, dataset: Dataset) -> None:
    """Write a Dataset atomically: to a temporary directory, which is then renamed.

    Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        tokenizer.save_pair(unfinished, dataset.source_tokenizer, dataset.target_tokenizer)
        for name, pairs in (("train", dataset.train), ("validation", dataset.validation)):
            for side, rows in zip(("source", "target"), pairs, strict=True):
                np.save(unfinished / f"{name}.{side}.ids.npy", rows.ids)
                np.save(unfinished / f"{name}.{side}.offsets.npy", rows.offsets)
        texts = json.dumps(dataset.validation_texts, ensure_ascii=False)
        (unfinished / "validation.json").write_text(texts, "utf-8")
        (unfinished / "facts.json").write_text(json.dumps(dataset.facts, indent=1), "utf-8")
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another run has just written the same files
                raise


def read(folder: Path, config: Config) -> Dataset:
    """Read the Dataset that `write` wrote. Raises CorpusError if a file is damaged."""

    def rows(name: str) -> Rows:
        return Rows(np.load(folder / f"{name}.ids.npy"), np.load(folder / f"{name}.offsets.npy"))

    try:
        train = Pairs(rows("train.source"), rows("train.target"))
        validation = Pairs(rows("validation.source"), rows("validation.target"))
        texts = Split(*json.loads((folder / "validation.json").read_text("utf-8")))
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        tokenizers = tokenizer.load_pair(folder, config.lowercase, config.tokenizer == "word")
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise CorpusError(
            f"{folder} is damaged ({first_line(error)}): delete it, and it will be written again"
        ) from error
    return Dataset(train, validation, texts, *tokenizers, facts)
