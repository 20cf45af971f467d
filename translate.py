"""Translate texts with a trained model, or label them with a classifier: arguments, the lines of a
file, or the lines of standard input. Prints one line for each: the translation, or label TAB
probability; with --n-best N the N best: line number TAB score TAB text.
"""

import argparse
import math
import os
import sys
from pathlib import Path

import utils
from evaluation import command_line
from evaluation.search import Search
from utils import UserError


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    text = "text to translate or label"
    add("texts", nargs="*", default=[], type=command_line.valid_text, metavar="TEXT", help=text)
    add("--file", type=Path, help="translate or label each line of this file")
    utils.add_flags(parser, Search)
    flags = command_line.parse(parser)
    if flags.texts and flags.file:
        utils.fail("give either TEXT or --file, not both")
    for text in flags.texts:
        if os.path.isfile(text):
            utils.fail(f"{text} is a file: use --file {utils.quote(text)}")
    return flags


def main(flags: argparse.Namespace) -> None:
    """Print a translation or a label for each line. Raises UserError and OSError."""
    file = open(flags.file, "rb") if flags.file else getattr(sys.stdin, "buffer", None)
    if not flags.texts and file is None:
        raise UserError("there is no standard input: give a TEXT or --file")
    interactive = not flags.texts and file.isatty()
    translator = command_line.load(flags)
    if interactive:
        print("Type a sentence and press Enter; end with Ctrl-D", file=sys.stderr)
    # Samples depend on their batch, which must not depend on when the lines arrive.
    fixed_size, first = flags.search.sample and not interactive, 1
    for chunk in [flags.texts] if flags.texts else command_line.read_lines(file, fixed_size):
        outputs = translator.n_best(chunk, progress=not interactive, first=first)
        for number, best in enumerate(outputs, first):
            for score, text in best:
                score = f"{math.exp(score) if translator.labelled else score:.4f}"
                if len(best) > 1:
                    print(number, score, text, sep="\t")
                else:
                    print(f"{text}\t{score}" if translator.labelled and text else text)
        sys.stdout.flush()
        first += len(chunk)
    translator.print_warnings()


if __name__ == "__main__":
    FLAGS = parse_flags()
    with utils.exit_at_ctrl_c():
        command_line.run(main, FLAGS)
