"""Translate texts with a trained model, or label them with a classifier: arguments, the lines of a
file, or the lines of standard input.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import config
from config import UserError
from evaluation import command_line
from evaluation.search import Search

CHUNK = 5000  # lines translated before they are printed


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add("texts", nargs="*", type=command_line.valid_text, metavar="TEXT", help="text to translate")
    add("--file", type=Path, help="translate each line of this file")
    config.add_flags(parser, Search)
    flags = command_line.parse(parser)
    if flags.texts and flags.file:
        config.fail("give either TEXT or --file")
    return flags


def read_lines(file: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a UTF-8 file. Only a line feed ends a line.

    Bytes that are not UTF-8 become U+FFFD, with a warning for the first of them.
    """
    file.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    warn = True
    for number, line in enumerate(file, 1):
        line = line.removesuffix("\n").removesuffix("\r")
        valid = command_line.valid_text(line, f"{file.name}, line {number},", warn)
        warn = warn and valid == line
        yield valid


def main(flags: argparse.Namespace) -> None:
    """Print a translation or a label for each line. Raises UserError and OSError.

    With --n-best, print that many for each line, with the line's number and their scores.
    """
    file = open(flags.file) if flags.file else sys.stdin
    lines = iter(flags.texts) if flags.texts else read_lines(file)
    translator = command_line.load(flags)
    if translator.labelled and flags.search.n_best > len(translator.target_tokenizer.names):
        raise UserError(
            f"there are only {len(translator.target_tokenizer.names)} labels: lower --n-best"
        )
    typed = not flags.texts and file.isatty()
    if typed:
        print("type a text and press Enter; Ctrl-D ends", file=sys.stderr)
    first = 1
    while chunk := list(islice(lines, 1 if typed else CHUNK)):
        outputs = translator.n_best(chunk, progress=True, first=first)
        for number, best in enumerate(outputs, first):
            for score, text in best:
                print(f"{number}\t{score:.4f}\t{text}" if len(best) > 1 else text)
        sys.stdout.flush()
        first += len(chunk)


if __name__ == "__main__":
    command_line.run(main, parse_flags())
