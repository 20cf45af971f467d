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

from data import corpora, tokenizer
from data.batches import Pairs, Rows


class Encoded(NamedTuple):
    """What a training run needs of its corpus."""

    train: Pairs
    validation: Pairs
    validation_texts: corpora.Split  # all of it, over-long pairs too
    source_tokenizer: tokenizer.Tokenizer
    target_tokenizer: tokenizer.Tokenizer
    facts: dict  # languages; and for each split its sha256, pairs and dropped pairs


def encode(split, source_tokenizer, target_tokenizer, max_length):
    """A Split of texts → Pairs without those longer than `max_length`, and how many these were."""
    sources, targets = [], []
    for source, target in zip(
        source_tokenizer.encode(split.sources), target_tokenizer.encode(split.targets), strict=True
    ):
        if max(len(source), len(target)) <= max_length:
            sources.append([*source, tokenizer.EOS])
            targets.append([tokenizer.BOS, *target, tokenizer.EOS])
    pairs = Pairs(Rows.of(sources), Rows.of(targets))
    return pairs, len(split.sources) - len(sources)


def prepare(config):
    """The corpus of `config`, from the cache or into it.

    The cache's key is a hash of everything that it was made from: the corpus' own files, the
    settings, and the code in this folder and below. Raises corpora.CorpusError.
    """
    settings = [config.corpus, config.reverse, config.vocab_size, config.shared_vocabulary,
                config.lowercase, config.max_length]  # fmt: skip
    code = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    inputs = json.dumps([settings, corpora.fingerprint(config.corpus), code])
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
    return read(folder, config.lowercase)


def write(folder, config):
    """Load, train the tokenizers, encode; say how it went on standard error."""
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    say(f"reading {config.corpus}")
    splits = {
        name: corpora.load(config.corpus, name, config.reverse)
        for name in corpora.splits(config.corpus)
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
        if made.vocab_size < config.vocab_size:
            say(f"the text supports {made.vocab_size:,} pieces, fewer than {config.vocab_size:,}")
    tokenizer.save_pair(folder, *tokenizers)

    facts = {"languages": corpora.languages(config.corpus, config.reverse), "splits": {}}
    for name, split in splits.items():
        facts["splits"][name] = {"sha256": split.sha256(), "pairs": len(split.sources)}
        if name not in ("train", "validation"):
            continue
        say(f"encoding {name}")
        pairs, dropped = encode(split, *tokenizers, config.max_length)
        facts["splits"][name]["dropped"] = dropped
        if dropped:
            say(f"{name}: dropped {dropped:,} pairs of more than {config.max_length} pieces")
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


def read(folder, lowercase):
    """What `write` left in a folder."""

    def rows(name):
        return Rows(np.load(folder / f"{name}.ids.npy"), np.load(folder / f"{name}.offsets.npy"))

    train, validation = (
        Pairs(rows(f"{name}.source"), rows(f"{name}.target")) for name in ("train", "validation")
    )
    texts = corpora.Split(*json.loads((folder / "validation.json").read_text("utf-8")))
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    return Encoded(train, validation, texts, *tokenizer.load_pair(folder, lowercase), facts)
