"""Look at a corpus before training on it: `python -m data CORPUS`, with train.py's flags."""

import numpy as np

import config
from data import corpora, pipeline
from data.batches import plan


def from_flags():
    """The Config of the command line; a mistake is one line and exit status 2."""
    parser = config.make_parser(__doc__)
    config.add_flags(parser, config.Config)
    parser.add_argument("look_at", metavar="CORPUS", help="what --corpus of train.py takes")
    given = vars(parser.parse_args())
    given["corpus"] = given.pop("look_at")
    try:
        settings = config.Config(**given)
        corpora.check(settings.corpus, settings.labelled)
        return settings
    except ValueError as error:
        config.fail(error)


def round_trips(tokenizer, texts):
    """How many texts come back unchanged from encoding and decoding."""
    if tokenizer.lowercase:
        texts = [text.lower() for text in texts]
    return sum(
        a == b for a, b in zip(tokenizer.decode(tokenizer.encode(texts)), texts, strict=True)
    )


def look(settings):
    """Print pairs, pieces, round trips, lengths and one batch. Raises corpora.CorpusError."""
    data = pipeline.load(settings)
    languages = data.facts["languages"]
    tokenizers = (data.source_tokenizer, data.target_tokenizer)
    texts = data.validation_texts

    print(f"{settings.corpus}: {languages[0]} → {languages[1]}")
    for name, facts in data.facts["splits"].items():
        too_long = "".join(
            f", {facts[what]:,} of them too long: {what}"
            for what in ("dropped", "cut")
            if facts.get(what)
        )
        print(f"  {name:14}{facts['pairs']:10,} pairs{too_long}")
    if settings.labelled:
        ids, counts = np.unique(data.train.target.ids, return_counts=True)
        labels = zip(data.target_tokenizer.tokens(ids), counts, strict=True)
        print("  train:", ", ".join(f"{count:,} {label}" for label, count in labels if label))

    print("\npairs of the validation split, and their pieces")
    for i in np.linspace(0, len(texts.sources) - 1, 3).astype(int):
        tag = f"  [{texts.tags[i]}]" if texts.tags else ""
        for tokenizer, text in zip(tokenizers, (texts.sources[i], texts.targets[i]), strict=True):
            print(f"  {text}{tag}\n      {' '.join(tokenizer.tokens(tokenizer.encode([text])[0]))}")
            tag = ""

    print("\ntokenizer")
    for language, tokenizer, column in zip(languages, tokenizers, texts, strict=False):
        same = round_trips(tokenizer, column)
        print(f"  {language}: {tokenizer.vocab_size:,} pieces; {same:,} of {len(column):,} "
              "validation texts come back unchanged")  # fmt: skip

    print("\npieces a training text, special ones included")
    for language, rows in zip(languages, data.train, strict=True):
        low, median, high, top = np.quantile(rows.lengths, (0, 0.5, 0.99, 1)).astype(int)
        print(f"  {language}: {low} to {top}, median {median}, 99 % up to {high}")

    batches = plan(data.train, settings.batch_tokens, settings.batch_sentences, settings.seed)
    pairs = len(data.train.source.lengths) / len(batches)
    real = sum(len(rows.ids) for rows in data.train)
    positions = sum(len(b) * rows.lengths[b].max() for b in batches for rows in data.train)
    print(f"\n{len(batches):,} batches an epoch, of {pairs:.0f} pairs on average")
    print(f"{real / positions:.1%} of their positions are real tokens")
    print("the first one's first pairs, 0 = padding")
    for language, ids in zip(languages, data.train.batch(batches[0]), strict=True):
        print(f"  {language}: {ids.shape[0]} × {ids.shape[1]}\n{ids[:3]}")


if __name__ == "__main__":
    try:
        look(from_flags())
    except (corpora.CorpusError, OSError) as error:
        config.fail(error)
