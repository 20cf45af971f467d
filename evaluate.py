"""Score a trained model on a split of its corpus, or on any other text. Writes the scores and the
outputs into the run directory.
"""

import argparse

import utils
from config import TASKS
from data import corpora, pipeline
from evaluation import command_line, report
from evaluation.scores import measure, measure_text
from evaluation.search import Search


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add("--corpus", metavar="STR", help="another corpus, named as in train.py [the run's own]")
    text = "with --corpus: its source and target, such as pt,en [those of the run]"
    add("--languages", metavar="STR", help=text)
    text = "split to score [test; `all` for another file, unless the run was trained on one]"
    add("--split", metavar="STR", help=text)
    text = "score only the first N texts of the split, and write nothing to the run directory"
    add("--limit", type=utils.positive, metavar="N", help=text)
    text = "language models: score blocks that begin every N tokens [the length of a block]"
    add("--stride", type=utils.positive, metavar="N", help=text)
    utils.add_flags(parser, Search, leave_out=["n_best"])
    flags = command_line.parse(parser, {*TASKS.values()})
    config = flags.config
    if flags.languages and not flags.corpus:
        utils.fail("--languages is for another corpus: add --corpus, or remove it")
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
    # tensorflow_datasets starts TensorFlow, whose number of threads must be set before.
    predictor = command_line.load(flags)
    texts, name, documents = report.load_split(
        flags.run, flags.config, flags.split, flags.corpus, flags.languages
    )
    total, unit = len(texts.sources), "texts" if documents else "lines"
    if flags.limit:
        texts = texts.take(range(min(flags.limit, total)))
    with utils.exit_at_ctrl_c():  # but not while files are read or written
        if flags.config.task == "language modeling":
            scores, table = measure_text(predictor, texts, documents, flags.stride)
        else:
            scores, table = measure(predictor, texts)
    if flags.corpus:
        scores |= report.seen(flags.config, flags.corpus, texts)
    checkpoint = f"{flags.checkpoint} checkpoint"
    name += f"-stride{flags.stride}" if flags.stride else ""
    name += "-best" if flags.checkpoint == "best" else ""
    if flags.average > 1:
        checkpoint, name = f"average of {flags.average} epochs", f"{name}-average{flags.average}"
    corpus = flags.corpus or flags.config.corpus
    scores |= {"corpus": corpus, "split": flags.split, "checkpoint": checkpoint}
    scores |= {"languages": flags.languages} if flags.languages else {}
    files = []
    try:  # write before printing: a pipe such as `| head` ends the process
        if not flags.limit:
            files = report.write(flags.run, name + flags.search.suffix, scores, table)
    finally:
        of = f" of {total:,}" if flags.limit else ""
        print(f"{flags.run}, {report.describe(scores)}, {len(texts.sources):,} {unit}{of}")
        report.print_scores(scores)
    predictor.print_warnings()
    pipeline.warn_of(f"the {flags.split} split", scores.get("unknown", 0), scores.get("seen", 0))
    if files:
        print(f"written in {flags.run}: {', '.join(files)}")


if __name__ == "__main__":
    command_line.run(main, parse_flags())
