"""Text to ids: train the tokenizers and encode a corpus once, and cache the result on disk.

Corpora in files are read and encoded in parts of thousands of texts, and the ids are memory-mapped,
so that neither needs to fit into memory. The texts that train the tokenizer must fit.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import Config
from data import corpora, tokenizer
from data.arrays import Pairs, Ragged, Text
from data.encoding import encode_split, map_split, start_id
from data.splits import TEXT, Corpus, CorpusError, Split, seen_share
from data.tokenizer import EOS, UNK, AnyTokenizer
from same_code import fingerprint
from utils import first_line, lock, names_in_group, print_line, progress_bar, warn, write_json

TOKENIZER_PAIRS = 120_000  # maximum number of pairs used to train the tokenizers
VALIDATION_PAIRS = 5_000  # maximum number of validation pairs used
REMEDY = "train with a larger --vocab-size, or with --tokenizer bpe or byte"


class Dataset(NamedTuple):
    """An encoded corpus."""

    train: Pairs | Text
    validation: Pairs | Text
    validation_texts: Split  # includes pairs that are too long for `validation`
    source_tokenizer: AnyTokenizer
    target_tokenizer: AnyTokenizer
    # "languages", "max_length", and "splits": of each, "pairs" and their "sha256". Of train and
    # validation, how many pairs are "used", "dropped" or "cut", the number of "tokens", and the
    # share of each side that is "unknown". Of other splits, the share that training has "seen", of
    # at most `VALIDATION_PAIRS`. Of texts, "documents", see `Corpus`.
    corpus_info: dict

    def describe_splits(self) -> str:
        """Return the sizes, such as "train 9 pairs (2 dropped), validation 3 pairs"."""
        unit, sizes = "texts" if isinstance(self.train, Text) else "pairs", []
        for name, counts in self.corpus_info["splits"].items():
            notes = [f"{counts[x]:,} {x}" for x in ("dropped", "cut") if counts.get(x)]
            note = f" ({', '.join(notes)})" if notes else ""
            sizes.append(f"{name} {counts['pairs']:,} {unit}{note}")
        return ", ".join(sizes)


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
    for name, counts in dataset.corpus_info["splits"].items():
        warn_of(name, max(counts.get("unknown", [0])), counts.get("seen", 0))
    return dataset


def warn_of(name: str, unknown: float, seen: float) -> None:
    """Warn if 1 % of the tokens of some texts are unknown, or 1 % of the texts is in training."""
    if unknown >= 0.01:
        warn(f"{unknown:.1%} of the tokens of {name} are unknown: {REMEDY}")
    if seen >= 0.01:
        warn(f"{seen:.1%} of {name} is also in train")


def cache_folder(config: Config, corpus: Corpus) -> Path:
    """Return the directory of a Dataset in the cache.

    Its name is a hash of the corpus' files, the settings and the code of this package, but not of
    the versions of libraries.
    """
    names = {*names_in_group(Config, "data")} - {"corpus", "batch_tokens", "batch_sentences"}
    settings = [[name, getattr(config, name)] for name in sorted(names)] + [config.task]
    if config.init_from:
        settings += [hashlib.sha256(each.model).hexdigest() for each in initial_tokenizers(config)]
    inputs = json.dumps([settings, corpus.fingerprint(), fingerprint("ids")])
    return Path(config.cache_dir) / hashlib.sha256(inputs.encode()).hexdigest()[:20]


def initial_tokenizers(config: Config) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Load the tokenizers that `--init-from` names. A resumed run has a copy of them."""
    return tokenizer.load_pair(config.resume or config.init_from, config.lowercase)


def write(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write an encoded corpus into a new directory. Raises UserError and OSError."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    try:
        unfinished.mkdir()
        encode(unfinished, config, corpus)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def encode(folder: Path, config: Config, corpus: Corpus) -> None:
    """Write the files that `read` reads, with messages on standard error.

    Raises UserError and OSError.
    """
    splits = {}
    for name in dict.fromkeys([*corpus.splits, "train", "validation"]):
        limit = TOKENIZER_PAIRS if name == "train" else VALIDATION_PAIRS
        splits[name] = corpus.summarize(name, limit)
    train = splits["train"]
    if config.init_from:
        tokenizers = initial_tokenizers(config)
    else:
        print_line(f"training the tokenizer on {len(train.sample):,} of {train.size:,} pairs")
        tokenizers = tokenizer.train_pair(Split.of(train.sample), train.labels, config)
    tokenizer.save_pair(folder, *tokenizers)
    write_json(folder / "validation.json", Split.of(splits["validation"].sample))
    counts = {name: {"sha256": x.sha256, "pairs": x.size} for name, x in splits.items()}
    for name in splits.keys() - {"train"}:
        counts[name]["seen"] = seen_share(Split.of(splits[name].sample), train)
    ending = [EOS] if corpus.documents else []
    for name in ("validation", "train"):
        split = splits[name]
        in_memory = name == "validation" or len(split.sample) == split.size
        pairs = split.sample if in_memory else corpus.read(name)
        bar = progress_bar(pairs, desc=f"encoding {name}", total=split.size, unit="pair")
        counts[name] |= encode_split(folder, name, bar, tokenizers, config, ending)
        if not counts[name]["tokens"]:
            raise CorpusError(
                f"{corpus.name}: its {name} split has no text of at most --max-length "
                f"{config.max_length} tokens: add texts, or give files for each split"
            )
        sides = map_split(folder, name, config.task)
        counts[name]["unknown"] = [float(np.mean(rows.ids == UNK)) for rows in sides]
    info = {"languages": corpus.languages, "max_length": config.max_length, "splits": counts}
    if config.task == TEXT:
        info["documents"] = corpus.documents
    else:
        info["output_margin"] = output_margin(*sides)
    write_json(folder / "corpus.json", info)


def output_margin(source: Ragged, target: Ragged) -> int:
    """Return m such that 2 · source length + m tokens suffice for 99.9 % of the targets.

    It is at least 20: see `model.decoding.output_limit`.
    """
    needed = target.lengths - 1 - 2 * source.lengths  # an output has no bos
    return max(20, int(np.quantile(needed, 0.999, method="higher")))


def read(folder: Path, config: Config) -> Dataset:
    """Open the Dataset that `write` wrote. Raises CorpusError if a file is damaged."""
    try:
        tokenizers = tokenizer.load_pair(folder, config.lowercase)
        texts = Split(*json.loads((folder / "validation.json").read_text("utf-8")))
        info = json.loads((folder / "corpus.json").read_text("utf-8"))
        data = [map_split(folder, x, config.task) for x in ("train", "validation")]
        if config.task == TEXT:
            start = start_id(tokenizers[1], info["documents"])
            data = [Text(*rows, start, config.max_length) for rows in data]
        else:
            data = [Pairs(*rows) for rows in data]
    except (OSError, ValueError) as error:
        raise CorpusError(
            f"{folder} is damaged ({first_line(error)}): delete it and run the command again"
        ) from error
    return Dataset(*data, texts, *tokenizers, info)
