"""The texts that evaluate.py scores, and its tables and files. The scores: evaluation/scores.py."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from config import Config
from data import corpora
from data.splits import CorpusError, Split
from evaluation.scores import Table
from evaluation.testset import testset as open_testset
from training.records import read_corpus_info, read_json
from utils import UserError, quote, write_texts

MISTAKES_SHOWN = 20
LABELS_SHOWN = 20  # of a confusion matrix
SLUG = 40  # characters of the name of a corpus in the names of files
FINE = ("loss", "nats_per_character", "bits_per_byte")  # scores that are shown with four decimals


def load_split(
    run: Path,
    config: Config,
    split: str,
    name: str | None = None,
    languages: str | None = None,
    testset: str | None = None,
) -> tuple[Split, str, bool]:
    """Load a split of the corpus of a run, or of the one with this name, in the run's direction.

    languages: of that corpus, see `Config`. testset: a test set of sacreBLEU, to load instead.
    Another corpus has the run's share of held-out texts: it may be the same one, moved. Also
    returns what identifies the texts in file names: the split, or, if the texts are not those that
    the run recorded, their corpus, split and hash; and whether they are documents, see `Corpus`.
    Raises OSError, and UserError if the split does not exist, or if it is the run's own and has
    changed since training.
    """
    record = read_corpus_info(run)
    own = name is None and testset is None
    if own and split not in record["splits"]:
        raise UserError(f"{run} has no split {split!r}: choose from {', '.join(record['splits'])}")
    if own:
        try:
            corpus = corpora.from_config(config)  # with its share of the training split
        except CorpusError as error:
            raise UserError(f"{error}; if it was moved, give its path with --corpus") from error
    elif testset:
        names = languages.split(",") if languages else record["languages"]
        corpus = open_testset(testset, names)
    else:
        languages = languages or (
            config.languages if corpora.is_same(name, config.corpus) else None
        )
        other = replace(config, corpus=name, languages=languages, train_share=None)
        sides = [corpora.from_config(replace(other, reverse=x)) for x in (False, True)]
        fitting = (each for each in sides if [*each.languages] == record["languages"])
        corpus = next(fitting, sides[0])
    summary = corpus.summarize(split, limit=sys.maxsize)
    recorded = record["splits"].get(split, {}).get("sha256")
    if own and summary.sha256 != recorded:
        raise UserError(
            f"the {split} split of {config.corpus} differs from the one recorded in "
            f"{run}/corpus.json, so scores would not be comparable: restore the text, or score it "
            f"as another corpus with --corpus {quote(config.corpus)}"
        )
    if not summary.sample:
        raise UserError(f"the {split} split of {corpus.name} has no texts to score")
    if summary.sha256 == recorded:
        return Split.of(summary.sample), split, corpus.documents
    # Other texts may have the same name, and a path may be longer than a name can be.
    stem = Path(corpus.name).resolve().name if corpus.local else corpus.name
    stem = re.sub(r"\.(tsv|txt|parquet)(\.gz)?$", "", stem)
    slug = re.sub(r"[^\w.+-]+", "-", stem)[:SLUG].strip("-.") or "corpus"
    name = f"{slug}-{split}-{summary.sha256[:8]}"
    return Split.of(summary.sample), name, corpus.documents


def print_scores(scores: dict) -> None:
    """Print the scores with their signatures, then exact match by tag or the confusion matrix.

    Of a large confusion matrix, print the pairs of labels that are confused most.
    Accuracy and F1 are printed in per cent, as the other scores, and are from 0 to 1 in the file.
    """
    notes = {
        "exact_match": "% of sentences",
        "accuracy": "% of texts" if "f1" in scores else "% of tokens",
        "f1": "%, mean over labels",
        "loss": "nats per text" if "f1" in scores else "nats per token",
        "context": "tokens that the model reads before a token, on average",
        "unknown": "% of tokens, whose letters are not predicted",
    } | scores.get("signatures", {})
    for name, value in scores.items():
        if isinstance(value, int | float):
            value = 100 * value if name in ("accuracy", "f1", "unknown") else value
            decimals = 0 if isinstance(value, int) or value >= 1000 else 4 if name in FINE else 2
            print(f"{name:28}{value:12,.{decimals}f}  {notes.get(name, '')}".rstrip())
    for tag, (count, exact) in scores.get("exact_match_by_tag", {}).items():
        print(f"  {tag:26}{exact:12.2f}  % of {count:,} sentences, exact match")
    if matrix := scores.get("confusion"):
        print_confusion(matrix)


def print_confusion(matrix: dict[str, dict[str, int]]) -> None:
    """Print a confusion matrix as a table, or the largest of its errors if there are too many."""
    if len(matrix) <= LABELS_SHOWN:
        width = 2 + max(10, *map(len, matrix))
        print("\ntrue \\ predicted".ljust(29) + "".join(f"{name:>{width}}" for name in matrix))
        for name, row in matrix.items():
            print(f"{name:28}" + "".join(f"{row.get(other, 0):{width},}" for other in matrix))
        return
    errors = confused(matrix)
    print(f"\nthe {min(len(errors), MISTAKES_SHOWN)} most frequent of {len(errors):,} confusions")
    for true, predicted, count in errors[:MISTAKES_SHOWN]:
        print(f"{count:6,}  {true} → {predicted}")


def confused(matrix: dict[str, dict[str, int]]) -> list[tuple[str, str, int]]:
    """Return the errors of a confusion matrix, most frequent first: (true, predicted, count)."""
    errors = [(a, b, n) for a, row in matrix.items() for b, n in row.items() if a != b]
    return sorted(errors, key=lambda error: -error[2])


def describe(scores: dict) -> str:
    """Return what was scored: the split, the checkpoint and the search."""
    texts = "{corpus}" if scores["split"] == "all" else "{split} split of {corpus}"
    return f"{texts}, {{checkpoint}}, {{search}}".format_map(scores)


def write(run: Path, name: str, scores: dict, table: Table) -> list[str]:
    """Write scores, outputs and the worst of them into a run directory. Returns the file names.

    Without mistakes, there is no file of them. A full disk leaves the old ones. Raises OSError.
    """
    mistakes = f"mistakes-{name}.txt"
    rows = [table, *zip(*table.values(), strict=True)]
    lines = ("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in row) for row in rows)
    texts = {
        f"scores-{name}.json": json.dumps(scores, indent=1) + "\n",
        f"outputs-{name}.tsv": "".join(f"{line}\n" for line in lines),
        mistakes: worst(table),
    }
    texts = {file: text for file, text in texts.items() if text}
    write_texts({run / file: text for file, text in texts.items()})
    if mistakes not in texts:
        (run / mistakes).unlink(missing_ok=True)
    return [*texts]


def worst(table: Table) -> str:
    """List the translations with the lowest chrF, or the wrong labels with the highest
    probability.
    """
    if "nats" in table:
        return least_likely(table)
    score, sign = ("probability", -1) if "probability" in table else ("chrf", 1)
    pairs = enumerate(zip(table["reference"], table["output"], strict=True))
    wrong = [i for i, (reference, output) in pairs if output != reference]
    wrong.sort(key=lambda i: sign * float(table[score][i]))
    columns = (score, "source", "reference", "output")
    blocks = ("".join(f"{c:12}{table[c][i]}\n" for c in columns) for i in wrong[:MISTAKES_SHOWN])
    return "\n".join(blocks)


def least_likely(table: Table) -> str:
    """List the texts of at least 20 characters with the most nats per character."""
    characters = [int(x) for x in table["characters"]]
    nats = [float(x) / max(1, n) for x, n in zip(table["nats"], characters, strict=True)]
    order = sorted(range(len(nats)), key=lambda i: -nats[i])
    shown = [i for i in order if characters[i] >= 20][:MISTAKES_SHOWN]
    return "".join(f"{nats[i]:.3f} nats per character  {table['text'][i].strip()}\n" for i in shown)


def outputs_path(run: Path, name: str) -> Path:
    """Return the file of the outputs that `write` writes."""
    return run / f"outputs-{name}.tsv"


def read_outputs(run: Path, name: str) -> Table:
    """Read the outputs that `write` wrote. Raises OSError, and UserError if they are damaged."""
    path = outputs_path(run, name)
    try:
        names, *rows = (line.split("\t") for line in path.read_text("utf-8").split("\n")[:-1])
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    except ValueError:  # UnicodeDecodeError, too
        raise UserError(f"{path} is damaged: run evaluate.py again") from None


def read_scores(run: Path, name: str) -> dict:
    """Read the scores that `write` wrote. Raises OSError, and UserError if they are damaged."""
    return read_json(run / f"scores-{name}.json", "corpus", "split", "checkpoint", "search")


def text_columns(table: Table) -> tuple[str, ...]:
    """Return the names of the columns that identify the texts of a table."""
    return ("text",) if "text" in table else ("source", "reference")


def same_texts(one: Table, other: Table) -> bool:
    """Return whether two tables have the same sources and references, or the same texts."""
    return all(one[column] == other.get(column) for column in text_columns(one))
