"""Show a corpus before training on it: splits, texts, tokens, lengths and the first batch.

Takes the flags of train.py that change what is shown.
"""

import dataclasses

import numpy as np

import utils
from config import Config
from data import pipeline
from data.arrays import Text
from data.batches import plan_batches
from data.pipeline import Dataset
from data.tokenizer import UNK

FLAGS = [name for name in utils.names_in_group(Config, "data") if name != "corpus"]
FLAGS += ["seed", "cache_dir", "model"]
TEXTS_SHOWN, CHARACTERS_SHOWN, TOKENS_SHOWN = 6, 200, 64


def parse_config() -> Config:
    """Parse the command line. Raises UserError."""
    parser = utils.make_parser(__doc__, prog="python -m data")
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus, named as in train.py")
    fields = (Config.__dataclass_fields__[name] for name in FLAGS)
    flags = dataclasses.make_dataclass("Flags", [(f.name, f.type, f) for f in fields])
    utils.add_flags(parser, flags)
    return Config(**vars(parser.parse_args()))


def show(settings: Config) -> None:
    """Print examples and statistics of a corpus. Raises UserError and OSError."""
    dataset = pipeline.load(settings)
    languages = dataset.corpus_info["languages"]
    print(f"{settings.corpus}: {' → '.join(languages)}\n{dataset.describe_splits()}")
    if settings.is_classifier:
        ids, counts = np.unique(dataset.train.target.ids, return_counts=True)
        labels = zip(dataset.target_tokenizer.tokens(ids), counts, strict=True)
        print("train:", ", ".join(f"{count:,} {label}" for label, count in labels if label))
    sides = [dataset.train.tokens] if isinstance(dataset.train, Text) else dataset.train
    tokenizers = [dataset.source_tokenizer, dataset.target_tokenizer][-len(sides) :]
    columns = dataset.validation_texts[2 - len(sides) : 2]

    print("\ntraining split, evenly spaced: do these belong together?")
    for i in spaced(len(sides[0].lengths)):
        for rows, tokenizer in zip(sides, tokenizers, strict=True):
            ids = rows.ids[rows.offsets[i] :][:CHARACTERS_SHOWN]  # decoding ends at the first eos
            print(f"  {one_line(tokenizer.decode([ids])[0])}")
    print("\nvalidation split, and its tokens")
    tags = dataset.validation_texts.tags
    for i in spaced(len(columns[0]), 3):
        for column, tokenizer in zip(columns, tokenizers, strict=True):
            tokens = tokenizer.tokens(tokenizer.encode(column[i : i + 1])[0][:TOKENS_SHOWN])
            tag = f"  [{tags[i]}]" if tags else ""
            print(f"  {one_line(column[i])}{tag}\n      {one_line(' '.join(tokens), 10_000)}")
    for language, tokenizer, rows, texts in zip(languages, tokenizers, sides, columns, strict=True):
        low, median, high, top = np.quantile(rows.lengths, (0, 0.5, 0.99, 1)).astype(int)
        ids = tokenizer.encode(texts)
        expected = [text.lower() if tokenizer.lowercase else text for text in texts]
        unchanged = sum(map(str.__eq__, tokenizer.decode(ids), expected))
        ids = np.concatenate(ids)
        print(
            f"\n{language}: {tokenizer.vocab_size:,} tokens\n"
            f"  {low} to {top} tokens per training text, median {median}, 99 % at most {high}\n"
            f"  {sum(map(len, texts)) / max(1, len(ids)):.2f} characters per validation token, "
            f"{np.mean(ids == UNK):.2%} unknown tokens\n  {unchanged:,} of {len(texts):,} "
            "validation texts are unchanged by encoding and decoding"
        )
    show_batches(dataset, settings)


def spaced(count: int, most: int = TEXTS_SHOWN) -> np.ndarray:
    """Return at most `most` evenly spaced indices."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def one_line(text: str, length: int = CHARACTERS_SHOWN) -> str:
    """Return the beginning of a text, with ⏎ for a line feed."""
    return text[:length].replace("\n", "⏎")


def show_batches(dataset: Dataset, settings: Config) -> None:
    """Print how full the batches of the first epoch are, and the first rows of the first one."""
    limits = (settings.batch_tokens, settings.batch_sentences)
    batches = plan_batches(dataset.train, *limits, settings.seed)
    sizes = [(np.count_nonzero(x), x.size) for batch in batches for x in dataset.train.batch(batch)]
    tokens, positions = np.sum(sizes, axis=0)
    rows = sum(map(len, batches)) / len(batches)
    print(f"\n{len(batches):,} batches per epoch with {rows:.0f} rows on average")
    print(f"{tokens / positions:.1%} of their positions are tokens, the others padding")
    for array in dataset.train.batch(batches[0]):
        if array.size:
            shown = np.array2string(array[:3], threshold=60, edgeitems=8)
            print(f"first rows of the first batch, {len(array)} × {array.shape[1]}\n{shown}")


if __name__ == "__main__":
    utils.handle_signals()
    with utils.errors_in_one_line():
        show(parse_config())
