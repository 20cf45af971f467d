"""Text to ids: train the tokenizers and encode a corpus once, and cache the result on disk.

Corpora in files are read and encoded in parts of thousands of texts, and the ids are memory-mapped,
so that neither needs to fit into memory. The texts that train the tokenizer must fit.
"""

import hashlib
import itertools
import json
import math
import re
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import Config
from data import corpora, tokenizer
from data.arrays import Pairs, Text
from data.encoding import encode_texts_to_files, encode_to_files, map_pairs, map_text, start_id
from data.splits import Corpus, CorpusError, Split, Summary, TextPair
from data.tokenizer import Labels, Tokenizer
from same_code import fingerprint
from utils import first_few, first_line, lock, names_in_group, print_line, warn, write_json

TOKENIZER_PAIRS = 120_000  # maximum number of pairs used to train the tokenizers
VALIDATION_PAIRS = 5_000  # maximum number of validation pairs used
FEW_TEXTS = 100  # the scores of fewer texts differ too much from those of others


class Dataset(NamedTuple):
    """An encoded corpus."""

    train: Pairs | Text
    validation: Pairs | Text
    validation_texts: Split  # includes pairs that are too long for `validation`
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | Labels
    # "languages", "max_length", and "splits": of each, "pairs", their "sha256", and how many are
    # "used", "dropped" or "cut" (train and validation), or have a source that is also "in_train".
    # Of texts, "documents", see `Corpus`, and the number of "tokens" of train and validation.
    corpus_info: dict

    def describe_splits(self) -> str:
        """Return the sizes: "train 7 of 9 pairs (2 longer than 8 tokens), validation 3 pairs"."""
        unit = "texts" if isinstance(self.target_tokenizer, Labels) else "pairs"
        if (documents := self.corpus_info.get("documents")) is not None:
            unit = "texts" if documents else "lines"
        tokens, splits = f"{self.corpus_info['max_length']} tokens", []
        for name, counts in self.corpus_info["splits"].items():
            pairs, dropped, cut = (counts.get(key, 0) for key in ("pairs", "dropped", "cut"))
            used = counts.get("used", pairs)
            which = f"{used + dropped:,} evenly spaced" if documents is None else "the first ones"
            notes = [which] if used + dropped < pairs else []
            if "tokens" in counts:
                notes.append(f"{counts['tokens']:,} tokens")
            if dropped:
                notes.append(f"{dropped:,} longer than {tokens}")
            if cut:
                notes.append(f"{cut:,} cut to {tokens}")
            if shared := counts.get("in_train", 0):
                notes.append(f"{shared:,} sources also in train")
            of = f" of {pairs:,}" if used < pairs else ""
            note = f" ({', '.join(notes)})" if notes else ""
            splits.append(f"{name} {used:,}{of} {unit}{note}")
        return ", ".join(splits)


def check(config: Config) -> None:
    """Raise UserError if the corpus cannot be used: an invalid name, or faults of local files.

    To find these, local files are encoded and cached. Does not download anything or import
    TensorFlow.
    """
    if corpora.from_config(config).local:
        load(config)


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
                write(folder, config, corpus)
    dataset = read(folder, config)
    check_held_out(config, corpus, dataset)
    return dataset


def check_held_out(config: Config, corpus: Corpus, dataset: Dataset) -> None:
    """Warn if validation or test have few texts, or if --held-out-share has no effect."""
    splits, files, names = dataset.corpus_info["splits"], corpus.files(), ("validation", "test")
    divided = [name for name in names if files.get(name) == files["train"]]
    divided = [] if corpora.is_mini(config.corpus) else divided  # it is generated, from one lexicon
    if config.held_out_share and not divided:
        warn(f"--held-out-share has no effect: {corpus.name} has its own splits")
    sizes = {name: splits[name]["pairs"] for name in names if name in splits}
    few = {name: size for name, size in sizes.items() if size < FEW_TEXTS}
    if not few or not dataset.corpus_info.get("documents", True):
        return
    total = sum(split["pairs"] for split in splits.values())
    share = min(0.2, math.ceil(120 * FEW_TEXTS / total) / 100)  # a hash is not exact
    now = config.held_out_share or 1.1 * max(few.values()) / total  # a fifth is rounded down
    more = {*few} <= {*divided} and share > now
    counts = " and ".join(f"{size} {name} texts" for name, size in few.items())
    warn(
        f"{corpus.name} has only {counts}, so scores are imprecise: "
        + (f"hold out more with --held-out-share {share:g}" if more else "use more text if you can")
    )


def cache_folder(config: Config, corpus: Corpus) -> Path:
    """Return the directory of a Dataset in the cache.

    Its name is a hash of the corpus' files, the settings and the code of this package, but not of
    the versions of libraries.
    """
    names = {*names_in_group(Config, "data")} - {"corpus", "batch_tokens", "batch_sentences"}
    if config.task == "language modeling":  # blocks are cut when they are needed
        names -= {"max_length"}
    settings = [[name, getattr(config, name)] for name in sorted(names)] + [config.task]
    if config.init_from:
        settings += [hashlib.sha256(each.model).hexdigest() for each in initial_tokenizers(config)]
    inputs = json.dumps([settings, corpus.fingerprint(), fingerprint("ids")])
    return Path(config.cache_dir) / hashlib.sha256(inputs.encode()).hexdigest()[:20]


def initial_tokenizers(config: Config) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Load the tokenizers that `--init-from` names. A resumed run has a copy of them."""
    run = config.resume or config.init_from
    return tokenizer.load_pair(run, config.lowercase, config.tokenizer == "word")


def write(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write an encoded corpus into a new directory. Raises UserError."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    try:
        unfinished.mkdir()
        encode(unfinished, config, corpus)
        unfinished.rename(folder)
    except OSError as error:
        raise CorpusError(
            f"{folder} cannot be written: {first_line(error)}; free some space or choose another "
            "--cache-dir"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def encode(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write the files that `read` reads, with messages on standard error.

    Raises UserError and OSError.
    """
    splits = summarize(corpus)
    train, validation = splits["train"], splits["validation"]
    if config.init_from:
        tokenizers = initial_tokenizers(config)
        if corpus.labelled and (new := sorted(train.labels - {*tokenizers[1].names})):
            raise CorpusError(
                f"{corpus.name} has labels that {config.init_from} does not have, such as "
                f"{new[0]!r}: train without --init-from, or remove their texts"
            )
    else:
        log(f"training the tokenizer on {len(train.sample):,} of {train.pairs:,} pairs")
        tokenizers = tokenizer.train_pair(Split.of(train.sample), train.labels, config)
        warn_of_learned_phrases(tokenizers, train.sample, validation.sample)
    for trained in dict.fromkeys(tokenizers):
        if isinstance(trained, Tokenizer) and trained.vocab_size < config.vocab_size:
            log(f"{trained.vocab_size:,} tokens, fewer than --vocab-size {config.vocab_size}")
    tokenizer.save_pair(folder, *tokenizers)
    write_json(folder / "validation.json", Split.of(validation.sample))

    if corpus.task == "language modeling":
        counts = encode_texts(folder, corpus, splits, tokenizers[1])
        info = {"documents": corpus.documents}
    else:
        counts = encode_pairs(folder, config, corpus, splits, tokenizers)
        info = {"output_margin": output_margin(map_pairs(folder, "train", tokenizers))}
    info |= {"languages": corpus.languages, "max_length": config.max_length, "splits": counts}
    write_json(folder / "corpus.json", info)


def warn_of_learned_phrases(
    tokenizers: tuple, train: list[TextPair], validation: list[TextPair]
) -> None:
    """Warn if validation texts have far more tokens per character than training texts.

    Then the vocabulary has whole phrases of these, as it does if a small corpus has no spaces.
    """
    for column, trained in enumerate(tokenizers):
        texts = [[pair[column] for pair in sample[:500]] for sample in (train, validation)]
        if isinstance(trained, Tokenizer) and all(map(any, texts)):
            known, new = (
                sum(map(len, trained.encode(each))) / sum(map(len, each)) for each in texts
            )
            if new > 2 * known:
                warn(
                    f"{'source' if column == 0 else 'target'} texts of validation have "
                    f"{new / known:.1f} times as many tokens per character as those of training, "
                    "whose phrases are in the vocabulary: lower --vocab-size"
                )


def encode_pairs(
    folder: Path, config: Config, corpus: Corpus, splits: dict[str, Summary], tokenizers: tuple
) -> dict[str, dict]:
    """Encode pairs to files. Returns the counts of each split for `corpus_info`."""
    counts, train = count_texts(splits), splits["train"]
    for name, split in splits.items():
        if name != "train" and (shared := len(split.sources & train.sources)):
            of = f"{len(split.sources):,} sources of {name} ({shared / len(split.sources):.1%})"
            warn(f"{shared:,} of {of} are also in train")
            counts[name]["in_train"] = shared
    for name, pairs in texts_to_encode(corpus, splits).items():
        log(f"encoding {name}")
        used, too_long = encode_to_files(
            folder, name, pairs, splits[name].pairs, tokenizers, config.max_length
        )
        if not used:
            raise CorpusError(
                f"{corpus.name}: all pairs of its {name} split have more than {config.max_length} "
                "tokens: raise --max-length"
            )
        counts[name] |= {"used": used, "cut" if config.is_classifier else "dropped": too_long}
    return counts


def output_margin(pairs: Pairs) -> int:
    """Return m such that 2 · source length + m tokens suffice for 99.9 % of the targets.

    It is at least 20: see `model.decoding.output_limit`.
    """
    needed = pairs.target.lengths - 1 - 2 * pairs.source.lengths  # an output has no bos
    return max(20, int(np.quantile(needed, 0.999, method="higher")))


def encode_texts(
    folder: Path, corpus: Corpus, splits: dict[str, Summary], tokenizer: Tokenizer
) -> dict[str, dict]:
    """Encode texts to files. Returns the counts of each split for `corpus_info`."""
    counts = count_texts(splits)
    for name, pairs in texts_to_encode(corpus, splits).items():
        log(f"encoding {name}")
        total = splits[name].pairs
        tokens = encode_texts_to_files(folder, name, pairs, total, tokenizer, corpus.documents)
        if not tokens:
            raise CorpusError(f"{corpus.name}: its {name} split has no tokens: add texts")
        counts[name] |= {"tokens": tokens}
    counts["validation"] |= {"used": len(splits["validation"].sample)}
    return counts


def count_texts(splits: dict[str, Summary]) -> dict[str, dict]:
    """Return the hash and the number of pairs of each split."""
    return {name: {"sha256": each.sha256, "pairs": each.pairs} for name, each in splits.items()}


def texts_to_encode(corpus: Corpus, splits: dict[str, Summary]) -> dict[str, Iterable[TextPair]]:
    """Return the training pairs, from memory if all are there, and the validation pairs."""
    train, validation = splits["train"], splits["validation"]
    in_memory = len(train.sample) == train.pairs
    pairs = train.sample if in_memory else corpus.read("train")
    return {"train": pairs, "validation": validation.sample}


def summarize(corpus: Corpus) -> dict[str, Summary]:
    """Read all splits once. Raises UserError if the corpus cannot be trained on.

    The sources in the summary of the training split are those that another split has, too.
    """
    limits = {"train": TOKENIZER_PAIRS, "validation": VALIDATION_PAIRS}
    names, splits, sources = dict.fromkeys([*corpus.files(), *limits]), {}, set()
    for name in sorted(names, key=lambda name: name == "train"):  # train last
        looked_for = sources if name == "train" or corpus.task == "language modeling" else None
        splits[name] = corpus.summarize(name, limits.get(name, 1), looked_for)
        sources |= splits[name].sources
        if not splits[name].pairs:
            raise CorpusError(f"{corpus.name}: its {name} split is empty: add texts")
    if corpus.labelled:
        check_labels(corpus.name, splits)
    return {name: splits[name] for name in names}


def alike(label: str) -> str:
    """Return what labels have in common that differ in case, hyphens, underscores or spaces."""
    text = unicodedata.normalize("NFKC", label).casefold()
    return re.sub(r"(?<=[^\W\d_])[\s_-]+(?=[^\W\d_])", " ", text)


def check_labels(name: str, splits: dict[str, Summary]) -> None:
    """Raise UserError if there is one label only, or if one is not in the training split.

    Warn of labels that look like texts or like each other.
    """
    train = splits["train"]
    if len(train.labels) < 2:
        raise CorpusError(
            f"{name}: all texts of its train split have the label {min(train.labels)!r}: add texts "
            "with another label"
        )
    if len(train.labels) > 99 and len(train.labels) > train.pairs / 2:
        warn(
            f"{name} has {len(train.labels):,} different labels for {train.pairs:,} texts: if "
            "these are not labels, put the label first, then a TAB, then the text"
        )
    pairs = itertools.pairwise(sorted(sorted(train.labels), key=alike))
    if similar := [f"{a!r} and {b!r}" for a, b in pairs if alike(a) == alike(b)]:
        warn(f"{name} has different labels that look alike: {first_few(similar, 3)}")
    for split in splits.values():
        Labels(sorted(train.labels)).encode(sorted(split.labels))


def read(folder: Path, config: Config) -> Dataset:
    """Open the Dataset that `write` wrote. Raises CorpusError if a file is damaged."""
    try:
        tokenizers = tokenizer.load_pair(folder, config.lowercase, config.tokenizer == "word")
        texts = Split(*json.loads((folder / "validation.json").read_text("utf-8")))
        info = json.loads((folder / "corpus.json").read_text("utf-8"))
        if config.task == "language modeling":
            info["max_length"] = config.max_length
            start = start_id(tokenizers[1], info["documents"])
            options = tokenizers[1], start, config.max_length
            data = [map_text(folder, name, *options) for name in ("train", "validation")]
        else:
            data = [map_pairs(folder, name, tokenizers) for name in ("train", "validation")]
    except (OSError, ValueError) as error:
        raise CorpusError(
            f"{folder} is damaged ({first_line(error)}): delete it and run the command again"
        ) from error
    return Dataset(*data, texts, *tokenizers, info)


def log(message: str) -> None:
    """Print a message on standard error."""
    print_line(message)
