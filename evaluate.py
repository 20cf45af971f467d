"""Score a trained model on a split of its corpus. Writes the scores and the outputs into the run
directory.
"""

import argparse
from pathlib import Path

import utils
from evaluation import command_line, report
from evaluation.search import Search
from utils import UserError


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add("--split", default="test", help="split to score [test]")
    add(
        "--limit",
        type=command_line.positive,
        metavar="N",
        help="score only the first N texts of the split, and write nothing to the run directory",
    )
    add(
        "--all",
        action="store_true",
        help="score the whole split of a .tsv file, instead of at most "
        f"{report.TABLE_TEXTS:,} evenly spaced texts",
    )
    add(
        "--per-sentence",
        type=Path,
        metavar="FILE.tsv",
        help="also write each text with its output and scores to FILE.tsv",
    )
    utils.add_flags(parser, Search)
    return command_line.parse(parser)


def file_suffix(flags: argparse.Namespace) -> str:
    """Return the part of file names that identifies the split, checkpoint and search settings."""
    best = "-best" if flags.checkpoint == "best" else ""
    average = f"-average{flags.average}" if flags.average > 1 else ""
    whole = "-all" if flags.all and flags.config.corpus.endswith(".tsv") else ""
    return flags.split + whole + best + average + flags.search.suffix


def main(flags: argparse.Namespace) -> None:
    """Score a split, write the files and print the table. Raises UserError and OSError."""
    if flags.search.n_best > 1:
        raise UserError("--n-best is for translate.py: scores are of the best translation")
    # Before TensorFlow loads, so that mistakes are reported at once.
    if flags.per_sentence:
        open(flags.per_sentence, "a").close()
    split, total = report.load_split(flags.run, flags.config, flags.split, flags.all)
    translator = command_line.load(flags)
    if flags.limit is not None:
        split = split.take(range(min(flags.limit, len(split.sources))))
    scores, outputs = report.measure(translator, split)
    scores["texts_in_split"] = total

    checkpoint = f"{flags.checkpoint} checkpoint"
    if flags.average > 1:
        checkpoint = f"average of the last {flags.average} epochs"
    part = f" of {total:,}" if len(outputs) < total else ""
    title = (
        f"{flags.run}, {checkpoint}, {flags.split} split of {flags.config.corpus}, "
        f"{len(outputs):,} texts{part}, {translator.search}"
    )
    names, labelled = [], flags.config.is_classifier
    try:  # write before printing: a pipe such as `| head` ends the process
        if flags.limit is None:
            names = report.write(flags.run, file_suffix(flags), labelled, split, scores, outputs)
        if flags.per_sentence:
            report.write_per_sentence(flags.per_sentence, labelled, split, outputs)
    finally:
        print(title)
        report.print_scores(scores)
    if names:
        print(f"written in {flags.run}: {', '.join(names)}")


if __name__ == "__main__":
    command_line.run(main, parse_flags())
