"""The texts that evaluate.py scores, and its tables and files. The scores: evaluation/scores.py."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from config import Config
from data import corpora
from data.splits import Corpus, CorpusError, Split, seen_share
from evaluation.scores import Table
from training.records import read_json
from utils import UserError, first_line, quote, warn, write_json, write_text

LABELS_SHOWN = 20  # in a table; all are in the file
# The scores that are printed with four decimals; others have two.
FOUR_DECIMALS = {"loss", "nats_per_character", "bits_per_byte"}
FOUR_DECIMALS |= {"accuracy", "f1", "unknown", "seen"}


def load_split(
    run: Path, config: Config, split: str, name: str | None = None, languages: str | None = None
) -> tuple[Split, str, bool]:
    """Load a split of the corpus of a run, or of the one with this name, in the run's direction.

    languages: of that corpus, see `Config`; by default those of the run, if it has them. Another
    corpus has the run's share of held-out texts: it may be the same one, moved. Also returns what
    identifies the texts in file names: the split, or, if the texts are not those that the run
    recorded, their corpus, split and hash; and whether they are documents, see `Corpus`. A model of
    one text has learned no end of a text: each ends with a line feed. Raises OSError, and UserError
    if the split does not exist, or if it is the run's own and has changed since training.
    """
    record = read_json(run / "corpus.json", "splits", "languages")

    def in_direction(languages: str | None) -> Corpus:
        other = replace(config, corpus=name, languages=languages, train_share=None)
        sides = [corpora.from_config(replace(other, reverse=x)) for x in (False, True)]
        return max(sides, key=lambda side: [*side.languages] == record["languages"])

    if name is not None:
        try:
            corpus = in_direction(languages or ",".join(record["languages"]))
        except CorpusError:
            if languages:
                raise
            corpus = in_direction(None)
    elif split not in record["splits"]:
        raise UserError(f"{run} has no split {split!r}: choose from {', '.join(record['splits'])}")
    else:
        try:
            corpus = corpora.from_config(config)  # with its share of the training split
        except CorpusError as error:
            where = f"looked in {Path.cwd()}; if it was moved, give its path with --corpus"
            raise UserError(f"{error}; {where}") from error
    summary = corpus.summarize(split, limit=sys.maxsize)
    recorded = record["splits"].get(split, {}).get("sha256")
    if name is None and summary.sha256 != recorded:
        raise UserError(
            f"the {split} split of {config.corpus} differs from the one recorded in "
            f"{run}/corpus.json, so scores would not be comparable: restore the text, or score it "
            f"as another corpus with --corpus {quote(config.corpus)}"
        )
    texts, documents = Split.of(summary.sample), corpus.documents
    if summary.sha256 == recorded:
        return texts, split, documents
    if documents and not record.get("documents", True):
        lines = [text.removesuffix("\n") + "\n" for text in texts.targets]
        texts, documents = texts._replace(targets=lines), False
    # Other texts may have the same name, and a path may be longer than a name can be.
    stem = re.sub(r"[^\w+-]+", "-", Path(corpus.name).resolve().name.partition(".")[0])[:40]
    return texts, f"{stem}-{split}-{summary.sha256[:8]}", documents


def seen(config: Config, name: str, texts: Split) -> dict[str, float]:
    """Return {"seen": the share of the texts of a corpus that a run has trained on}.

    Returns {}, with a warning, if the corpus of the run cannot be read.
    """
    own = replace(config, corpus=name) if corpora.is_same(name, config.corpus) else config
    try:
        return {"seen": seen_share(texts, corpora.from_config(own).summarize("train", 1))}
    except (UserError, OSError) as error:
        warn(f"not compared with the training texts: {first_line(error)}")
        return {}


def print_scores(scores: dict) -> None:
    """Print the scores with their signatures, then exact match by tag or the confusion matrix."""
    notes = {
        "exact_match": "% of sentences",
        "accuracy": "share of the texts" if "f1" in scores else "share of the tokens",
        "f1": "mean over labels",
        "loss": "nats per text" if "f1" in scores else "nats per token",
        "context": "tokens that the model reads before a token, on average",
        "unknown": "share of the tokens, whose letters are not predicted",
        "seen": "share of the texts that training has seen",
    } | scores.get("signatures", {})
    for name, value in scores.items():
        if isinstance(value, int | float):
            decimals = 4 if name in FOUR_DECIMALS else 2
            decimals = 0 if isinstance(value, int) or value >= 1000 else decimals
            print(f"{name:28}{value:12,.{decimals}f}  {notes.get(name, '')}".rstrip())
    for tag, (count, exact) in scores.get("exact_match_by_tag", {}).items():
        print(f"  {tag:26}{exact:12.2f}  % of {count:,} sentences, exact match")
    if 0 < len(matrix := scores.get("confusion", {})) <= LABELS_SHOWN:
        width = 2 + max(10, *map(len, matrix))
        print("\ntrue \\ predicted".ljust(29) + "".join(f"{name:>{width}}" for name in matrix))
        for name, row in matrix.items():
            print(f"{name:28}" + "".join(f"{row.get(other, 0):{width},}" for other in matrix))


def describe(scores: dict) -> str:
    """Return what was scored: the split, the checkpoint and the search."""
    texts = "{corpus}" if scores["split"] == "all" else "{split} split of {corpus}"
    return f"{texts}, {{checkpoint}}, {{search}}".format_map(scores)


def write(run: Path, name: str, scores: dict, table: Table) -> list[str]:
    """Write scores and outputs into a run directory. Returns the file names.

    Each is written atomically. Raises OSError.
    """
    rows = [table, *zip(*table.values(), strict=True)]
    lines = ("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in row) for row in rows)
    files = [f"scores-{name}.json", f"outputs-{name}.tsv"]
    write_json(run / files[0], scores)
    write_text(run / files[1], "".join(f"{line}\n" for line in lines))
    return files


def read_outputs(run: Path, name: str) -> Table:
    """Read the outputs that `write` wrote. Raises OSError and UserError."""
    path = run / f"outputs-{name}.tsv"
    try:
        *lines, end = path.read_text("utf-8").split("\n")
        names, *rows = (line.split("\t") for line in lines)
        if end:
            raise ValueError
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    except ValueError:  # cut off
        raise UserError(f"{path} is damaged: run evaluate.py again") from None
