"""Show a corpus before training on it: splits, texts, tokens and lengths.

Takes the flags of train.py that change what is shown.
"""

import dataclasses

import numpy as np

import utils
from config import Config
from data import pipeline
from data.arrays import Text
from data.tokenizer import EOS, UNK, Labels

FLAGS = {"model", "cache_dir", *utils.names_in_group(Config, "data")}
FLAGS -= {"corpus", "batch_tokens", "batch_sentences"}
TEXTS_SHOWN, TOKENS_SHOWN = 6, 64


def parse_config() -> Config:
    """Parse the command line. Raises UserError."""
    parser = utils.make_parser(__doc__, prog="python -m data")
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus, named as in train.py")
    others = [field.name for field in dataclasses.fields(Config) if field.name not in FLAGS]
    utils.add_flags(parser, Config, leave_out=others)
    return Config(**vars(parser.parse_args()))


def show(config: Config) -> None:
    """Print examples and statistics of a corpus. Raises UserError and OSError."""
    dataset = pipeline.load(config)
    languages = dataset.corpus_info["languages"]
    print(f"{config.corpus}: {' → '.join(languages)}\n{dataset.describe_splits()}")
    sides = [dataset.train.tokens] if isinstance(dataset.train, Text) else dataset.train
    tokenizers = [dataset.source_tokenizer, dataset.target_tokenizer][-len(sides) :]
    print("\ntraining texts, evenly spaced, and their tokens: do these belong together?")
    count = len(sides[0].lengths)
    for i in np.linspace(0, count - 1, min(count, TEXTS_SHOWN)).astype(int):
        for rows, tokenizer in zip(sides, tokenizers, strict=True):
            ids = rows.ids[rows.offsets[i] : rows.offsets[i + 1]][:TOKENS_SHOWN]
            for shown in tokenizer.decode([ids])[0], "    " + " ".join(tokenizer.tokens(ids)):
                print(f"  {shown.replace(chr(10), '⏎')}")
    for language, rows, tokenizer in zip(languages, sides, tokenizers, strict=True):
        low, median, high, top = np.quantile(rows.lengths, (0, 0.5, 0.99, 1)).astype(int)
        print(f"\n{language}: {tokenizer.vocab_size:,} tokens in the vocabulary")
        print(f"  {low} to {top} per training text, median {median}, 99 % at most {high}")
        print(f"  {np.mean(rows.ids == UNK):.2%} unknown in the training texts")
        if isinstance(tokenizer, Labels):
            ids, counts = np.unique(rows.ids[rows.ids > EOS], return_counts=True)
            labels = zip(counts, tokenizer.tokens(ids), strict=True)
            print(", ".join(f"{count:,} {label}" for count, label in labels))


if __name__ == "__main__":
    utils.handle_signals()
    with utils.errors_in_one_line():
        show(parse_config())
