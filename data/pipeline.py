"""A corpus as the model sees it: tokenized once, kept on disk, found again when nothing changed."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import first_line
from data import corpora, tokenizer
from data.batches import Pairs, Rows


class Dataset(NamedTuple):
    """What a training run needs of its corpus."""

    train: Pairs
    validation: Pairs
    validation_texts: corpora.Split  # all of it, over-long pairs too
    source_tokenizer: tokenizer.Tokenizer
    target_tokenizer: tokenizer.Tokenizer
    facts: dict  # languages; and for each split its sha256, pairs and dropped or cut ones


def encode(split, source_tokenizer, target_tokenizer, max_length):
    """A Split of texts → Pairs, and how many were longer than `max_length`.

    Of translations these are left out; texts with labels are cut. Raises ValueError for a label
    that the tokenizer does not know.
    """
    cut = isinstance(target_tokenizer, tokenizer.Labels)
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


def load(config):
    """The corpus of `config`, from the cache or into it.

    The cache's key is a hash of everything that it was made from: the corpus' own files, the
    settings, and the code in this folder and below. Raises corpora.CorpusError.
    """
    settings = [config.corpus, config.reverse, config.labelled, config.tokenizer,
                config.vocab_size, config.shared_vocabulary, config.lowercase,
                config.max_length]  # fmt: skip
    code = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    inputs = json.dumps([settings, corpora.fingerprint(config.corpus, config.labelled), code])
    folder = Path(config.cache_dir) / hashlib.sha256(inputs.encode()).hexdigest()[:20]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Made beside its place and renamed when whole: a reader never meets half a cache.
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
        try:
            write(unfinished, config)
            os.rename(unfinished, folder)
        except OSError:
            if not folder.exists():  # else another run was quicker: its files are as good
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    try:
        return read(folder, config)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise corpora.CorpusError(
            f"{folder} is damaged: delete it, and it will be made anew ({first_line(error)})"
        ) from error


def check_labels(what, labels, texts):
    """Raise CorpusError where texts are labels that training has not, or are no labels at all."""
    if len(labels.names) > 99 and len(labels.names) > len(texts) / 2:
        raise corpora.CorpusError(
            f"{what}: has {len(labels.names):,} different labels for {len(texts):,} texts: the "
            "label comes first, then a TAB, then the text"
        )
    try:
        labels.encode(texts)
    except ValueError as error:
        raise corpora.CorpusError(f"{what}: {error}") from error


def write(folder, config):
    """Load, train the tokenizers, encode; say how it went on standard error."""
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    say(f"reading {config.corpus}")
    splits = {
        name: corpora.load(config.corpus, name, config.reverse, config.labelled)
        for name in corpora.splits(config.corpus, config.labelled)
    }
    for needed in ("train", "validation"):
        if needed not in splits:
            raise corpora.CorpusError(f"{config.corpus} has no {needed} split: training needs one")
    say(f"training the tokenizer on {len(splits['train'].sources):,} pairs")
    try:
        tokenizers = tokenizer.train_pair(splits["train"], config)
    except ValueError as error:
        raise corpora.CorpusError(f"{config.corpus}: {error}") from error
    for made in dict.fromkeys(tokenizers):
        if made.vocab_size < config.vocab_size and not isinstance(made, tokenizer.Labels):
            say(f"the text supports {made.vocab_size:,} pieces, fewer than {config.vocab_size:,}")
    tokenizer.save_pair(folder, *tokenizers)

    languages = corpora.languages(config.corpus, config.reverse, config.labelled)
    facts = {"languages": languages, "splits": {}}
    for name, split in splits.items():
        facts["splits"][name] = {"sha256": split.sha256(), "pairs": len(split.sources)}
        if config.labelled:
            check_labels(f"{config.corpus}, {name} split", tokenizers[1], split.targets)
        if name not in ("train", "validation"):
            continue
        say(f"encoding {name}")
        pairs, too_long = encode(split, *tokenizers, config.max_length)
        what = "cut" if config.labelled else "dropped"
        facts["splits"][name][what] = too_long
        if too_long:
            say(f"{name}: {what} {too_long:,} of more than {config.max_length} pieces")
        if not len(pairs.source.lengths):
            raise corpora.CorpusError(
                f"{config.corpus}: no pair of its {name} split has at most {config.max_length} "
                "pieces a side: raise --max-length"
            )
        for side, rows in zip(("source", "target"), pairs, strict=True):
            np.save(folder / f"{name}.{side}.ids.npy", rows.ids)
            np.save(folder / f"{name}.{side}.offsets.npy", rows.offsets)
    texts = json.dumps(splits["validation"], ensure_ascii=False)
    (folder / "validation.json").write_text(texts, "utf-8")
    (folder / "facts.json").write_text(json.dumps(facts, indent=1), "utf-8")


def read(folder, config):
    """What `write` left in a folder."""

    def rows(name):
        return Rows(np.load(folder / f"{name}.ids.npy"), np.load(folder / f"{name}.offsets.npy"))

    train, validation = (
        Pairs(rows(f"{name}.source"), rows(f"{name}.target")) for name in ("train", "validation")
    )
    texts = corpora.Split(*json.loads((folder / "validation.json").read_text("utf-8")))
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    tokenizers = tokenizer.load_pair(folder, config.lowercase, config.tokenizer == "word")
    return Dataset(train, validation, texts, *tokenizers, facts)
