"""Show a corpus before training on it: splits, texts, tokens, lengths and the first batch.

Takes the flags of train.py that change what is shown.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

import utils
from config import Config
from data import pipeline
from data.arrays import Ragged, Text
from data.batches import plan_batches
from data.pipeline import Dataset
from data.tokenizer import UNK, Labels, Tokenizer

FLAGS = [name for name in utils.names_in_group(Config, "data") if name != "corpus"]
FLAGS += ["seed", "cache_dir", "model"]
PAIRS_SHOWN, CHARACTERS_SHOWN = 6, 200


def parse_config() -> Config:
    """Parse the command line. Raises UserError."""
    parser = utils.make_parser(__doc__, prog="python -m data")
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus, named as in train.py")
    fields = (Config.__dataclass_fields__[name] for name in FLAGS)
    flags = dataclasses.make_dataclass("Flags", [(f.name, f.type, f) for f in fields])
    utils.add_flags(parser, flags)
    return Config(**vars(parser.parse_args()))


def show(settings: Config) -> None:
    """Print statistics of a corpus and examples. Raises UserError and OSError."""
    dataset = pipeline.load(settings)
    print(f"{settings.corpus}: {' → '.join(dataset.corpus_info['languages'])}")
    print(dataset.describe_splits())
    if isinstance(dataset.train, Text):
        show_texts(dataset)
        if dataset.corpus_info["documents"]:
            show_lengths(dataset.corpus_info["languages"], [dataset.train.tokens])
        show_blocks(dataset, settings)
        return
    if settings.is_classifier:
        ids, counts = np.unique(dataset.train.target.ids, return_counts=True)
        labels = zip(dataset.target_tokenizer.tokens(ids), counts, strict=True)
        print("train:", ", ".join(f"{count:,} {label}" for label, count in labels if label))
    show_examples(dataset)
    show_lengths(dataset.corpus_info["languages"], dataset.train)
    show_batches(dataset, settings)


def show_examples(dataset: Dataset) -> None:
    """Print training pairs, three validation pairs with their tokens, and how many texts decode
    unchanged.
    """
    texts = dataset.validation_texts
    tokenizers = (dataset.source_tokenizer, dataset.target_tokenizer)
    print("\npairs of the training split, evenly spaced: do they match?")
    count = len(dataset.train.source.lengths)
    shown = np.linspace(0, count - 1, min(count, PAIRS_SHOWN)).astype(int)
    columns = zip(tokenizers, dataset.train.batch(shown), strict=True)
    for source, target in zip(*(tokenizer.decode(ids) for tokenizer, ids in columns), strict=True):
        print(f"  {source[:CHARACTERS_SHOWN]}\n      {target[:CHARACTERS_SHOWN]}")
    print("\npairs of the validation split, and their tokens")
    for i in np.linspace(0, len(texts.sources) - 1, 3).astype(int):
        tag = f"  [{texts.tags[i]}]" if texts.tags else ""
        for tokenizer, text in zip(tokenizers, (texts.sources[i], texts.targets[i]), strict=True):
            print(f"  {text}{tag}\n      {' '.join(tokenizer.tokens(tokenizer.encode([text])[0]))}")
            tag = ""
    print("\ntokenizer")
    for language, tokenizer, column in zip(
        dataset.corpus_info["languages"], tokenizers, texts[:2], strict=True
    ):
        unchanged = count_unchanged(tokenizer, column)
        print(
            f"  {language}: {tokenizer.vocab_size:,} tokens; {unchanged:,} of {len(column):,} "
            "validation texts are unchanged by encoding and decoding"
        )


def show_texts(dataset: Dataset) -> None:
    """Print parts of the training split, three validation texts with their tokens, and statistics
    of the tokenizer.
    """
    rows, tokenizer = dataset.train.tokens, dataset.target_tokenizer
    print("\nbeginnings of texts of the training split, evenly spaced")
    count = len(rows.lengths)
    for i in np.linspace(0, count - 1, min(count, PAIRS_SHOWN)).astype(int):
        ids = rows.ids[rows.offsets[i] : rows.offsets[i] + CHARACTERS_SHOWN]
        print(f"  {one_line(tokenizer.decode([ids])[0])}")  # a document ends at its eos
    print("\ntexts of the validation split, and their tokens")
    texts = dataset.validation_texts.targets
    shown = [text for text in texts if text.strip()] or texts
    for i in np.linspace(0, len(shown) - 1, 3).astype(int):
        text = shown[i][:CHARACTERS_SHOWN]
        tokens = " ".join(tokenizer.tokens(tokenizer.encode([text])[0]))
        print(f"  {one_line(text)}\n      {one_line(tokens, len(tokens))}")
    ids, characters = dataset.validation.tokens.ids, sum(map(len, texts))
    print(
        f"\ntokenizer\n  {tokenizer.vocab_size:,} tokens; {characters / len(ids):.2f} characters "
        f"per token, {np.mean(ids == UNK):.2%} unknown tokens\n"
        f"  {count_unchanged(tokenizer, texts):,} of {len(texts):,} validation texts are unchanged "
        "by encoding and decoding"
    )


def one_line(text: str, length: int = CHARACTERS_SHOWN) -> str:
    """Return the beginning of a text, with ⏎ for a line feed."""
    return text[:length].replace("\n", "⏎")


def count_unchanged(tokenizer: Tokenizer | Labels, texts: list[str]) -> int:
    """Count the texts that encoding and decoding do not change, except to lower case."""
    if tokenizer.lowercase:
        texts = [text.lower() for text in texts]
    decoded = tokenizer.decode(tokenizer.encode(texts))
    return sum(a == b for a, b in zip(decoded, texts, strict=True))


def show_lengths(languages: Sequence[str], sides: Sequence[Ragged]) -> None:
    """Print the distribution of lengths in the training split, for each language."""
    print("\ntokens per training text, special tokens included")
    for language, rows in zip(languages, sides, strict=True):
        low, median, high, top = np.quantile(rows.lengths, (0, 0.5, 0.99, 1)).astype(int)
        print(f"  {language}: {low} to {top}, median {median}, 99 % at most {high}")


def show_batches(dataset: Dataset, settings: Config) -> None:
    """Print how full the batches of the first epoch are, and the first rows of the first batch."""
    train = dataset.train
    batches = plan_batches(train, settings.batch_tokens, settings.batch_sentences, settings.seed)
    tokens = sum(len(rows.ids) for rows in train)
    lengths = [rows.lengths for rows in train]
    positions = sum(len(b) * int(side[b].max()) for b in batches for side in lengths)
    pairs_per_batch = len(train.source.lengths) / len(batches)
    print(f"\n{len(batches):,} batches per epoch with {pairs_per_batch:.0f} pairs on average")
    print(f"{tokens / positions:.1%} of their positions are tokens, the others padding")
    print("first rows of the first batch, 0 = padding")
    for language, ids in zip(
        dataset.corpus_info["languages"], train.batch(batches[0]), strict=True
    ):
        print(f"  {language}: {ids.shape[0]} × {ids.shape[1]}\n{ids[:3]}")


def show_blocks(dataset: Dataset, settings: Config) -> None:
    """Print the number of blocks of the first epoch, and the first batch of blocks."""
    train = dataset.train
    batches = plan_batches(train, settings.batch_tokens, settings.batch_sentences, settings.seed)
    blocks_per_batch = sum(map(len, batches)) / len(batches)
    print(
        f"\n{len(batches):,} batches per epoch with {blocks_per_batch:.0f} blocks on average, "
        f"of at most {train.block} tokens"
    )
    _, target = train.batch(batches[0])  # (rows, longest + 1)
    print("first block of the first batch, with the token before it")
    print(f"  {one_line(' '.join(dataset.target_tokenizer.tokens(target[0])), 10_000)}")
    ids = np.array2string(target[:3], threshold=0, edgeitems=8)
    print(f"first rows of the first batch, {len(target)} × {target.shape[1]}\n{ids}")


if __name__ == "__main__":
    utils.handle_signals()
    with utils.errors_in_one_line():
        show(parse_config())
