"""Score a trained model on a split of its corpus, or on any other text. Writes the scores and the
outputs into the run directory.
"""

import argparse
import sys

import utils
from config import TASKS
from data import corpora
from evaluation import command_line, report
from evaluation.scores import measure, measure_text
from evaluation.search import Search
from utils import UserError

MANY_TEXTS = 5_000  # with more, a note gives their number and explains --limit


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add("--corpus", metavar="STR", help="another corpus, named as in train.py [the run's own]")
    text = "score a test set that sacreBLEU downloads, such as wmt14/full: see `sacrebleu --list`"
    add("--testset", metavar="STR", help=text)
    text = "with --corpus or --testset: its source and target, such as pt,en [those of the run]"
    add("--languages", metavar="STR", help=text)
    text = "split to score [test; `all` for another file, unless the run was trained on one]"
    add("--split", metavar="STR", help=text)
    text = "score only the first N texts of the split, and write nothing to the run directory"
    add("--limit", type=command_line.positive, metavar="N", help=text)
    text = "language models: score blocks that begin every N tokens [the length of a block]"
    add("--stride", type=command_line.positive, metavar="N", help=text)
    utils.add_flags(parser, Search)
    flags = command_line.parse(parser, {*TASKS.values()})
    config = flags.config
    if flags.testset and (flags.corpus or flags.split or config.task != "translation"):
        utils.fail("--testset is for models that translate, without --corpus and --split")
    if flags.languages and not (flags.corpus or flags.testset):
        utils.fail("--languages is for another corpus: add --corpus or --testset, or remove it")
    other_file = corpora.is_one_file(flags.corpus or "") and not corpora.is_one_file(config.corpus)
    flags.split = flags.split or ("all" if other_file else "test")
    if config.task == "language modeling":
        if flags.search != Search():
            utils.fail("language models are scored without a search: remove its flags")
        if (flags.stride or 1) > config.max_length:
            utils.fail(f"--stride {flags.stride}: must be at most --max-length {config.max_length}")
    elif flags.stride:
        utils.fail("--stride is for language models: remove it")
    return flags


def main(flags: argparse.Namespace) -> None:
    """Score a split, write the files and print the table. Raises UserError and OSError."""
    if flags.search.n_best > 1:
        raise UserError("--n-best is for translate.py: scores are of the best translation")
    # tensorflow_datasets starts TensorFlow, whose number of threads must be set before.
    translator = command_line.load(flags)
    split, name, documents = report.load_split(
        flags.run, flags.config, flags.split, flags.corpus, flags.languages, flags.testset
    )
    total, unit = len(split.sources), "texts" if documents else "lines"
    if flags.limit:
        split = split.take(range(min(flags.limit, total)))
    elif total > MANY_TEXTS:
        print(f"scoring {total:,} {unit}; --limit N scores the first N", file=sys.stderr)
    if flags.config.task == "language modeling":
        scores, table = measure_text(translator, split, documents, flags.stride)
        name += f"-stride{flags.stride}" if flags.stride else ""
    else:
        scores, table = measure(translator, split)
    checkpoint, average = f"{flags.checkpoint} checkpoint", ""
    if flags.average > 1:
        checkpoint, average = f"average of {flags.average} epochs", f"-average{flags.average}"
    corpus = flags.testset or flags.corpus or flags.config.corpus
    scores |= {"corpus": corpus, "split": flags.split, "checkpoint": checkpoint}
    texts = {"testset": flags.testset, "languages": flags.languages}
    if not flags.testset:
        texts["held_out_share"] = flags.config.held_out_share
        if corpora.is_same(corpus, flags.config.corpus):
            texts["languages"] = flags.languages or flags.config.languages
    scores |= {name: value for name, value in texts.items() if value}
    best = "-best" if flags.checkpoint == "best" else ""
    written = []
    try:  # write before printing: a pipe such as `| head` ends the process
        if not flags.limit:
            name += best + average + flags.search.suffix
            written = report.write(flags.run, name, scores, table)
    finally:
        of = f" of {total:,}" if flags.limit else ""
        print(f"{flags.run}, {report.describe(scores)}, {len(split.sources):,} {unit}{of}")
        report.print_scores(scores)
    if flags.config.task == "translation":
        translator.warn_if_incomplete()
    if written:
        print(f"written in {flags.run}: {', '.join(written)}")


if __name__ == "__main__":
    command_line.run(main, parse_flags())
