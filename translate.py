"""Translate texts with a trained model, or label them with a classifier: arguments, the lines of a
file, or the lines of standard input.
"""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import utils
from evaluation import command_line
from evaluation.search import Search

CHUNK_BYTES = 2**19  # read before they are translated
LINE_TIMEOUT = 0.05  # seconds to wait for more lines before those read so far are translated


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add(
        "texts",
        nargs="*",
        default=[],
        type=command_line.valid_text,
        metavar="TEXT",
        help="text to translate or label",
    )
    add("--file", type=Path, help="translate or label each line of this file")
    utils.add_flags(parser, Search)
    flags = command_line.parse(parser)
    if flags.texts and flags.file:
        utils.fail("give either TEXT or --file, not both")
    return flags


def read_lines(file: IO, wait: float = LINE_TIMEOUT) -> Iterator[list[str]]:
    """Yield lists of lines of a UTF-8 file as they become available. Only a line feed ends a line.

    Lines are collected for up to `wait` seconds or about `CHUNK_BYTES`: one line of a terminal,
    thousands of a file. Bytes that are not UTF-8 become U+FFFD, with a warning for the first of
    them. Raises OSError.
    """
    buffer, number, valid, ended = b"", 0, True, False
    while not ended:
        size, timeout, deadline = 0, None, None
        while size < CHUNK_BYTES and select.select([file], [], [], timeout)[0]:
            data = os.read(file.fileno(), CHUNK_BYTES - size)
            if ended := not data:
                break
            buffer, size = buffer + data, size + len(data)
            deadline = deadline or time.monotonic() + wait
            timeout = max(0, deadline - time.monotonic())
        *lines, buffer = buffer.split(b"\n")
        if ended and buffer:
            lines.append(buffer)
        chunk = []
        for line in lines:
            number += 1
            line = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
            line = line.removeprefix("\ufeff") if number == 1 else line
            chunk.append(command_line.valid_text(line, f"{file.name}, line {number},", warn=valid))
            valid = valid and chunk[-1] == line
        if chunk:
            yield chunk


def main(flags: argparse.Namespace) -> None:
    """Print a translation or a label for each line. Raises UserError and OSError.

    With --n-best, print that many for each line, with the line's number and their scores.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # does not wait for threads
    file = open(flags.file, "rb") if flags.file else sys.stdin
    interactive = not flags.texts and file.isatty()
    translator = command_line.load(flags)
    if interactive:
        translator.n_best(["a"])  # traces the graph, so that the first answer is fast, too
        print("Type a sentence and press Enter; end with Ctrl-D", file=sys.stderr)
    # Samples depend on their batch, which must not depend on when the lines arrive.
    wait = 1e6 if flags.search.sample and not interactive else LINE_TIMEOUT
    first = 1
    for chunk in [flags.texts] if flags.texts else read_lines(file, wait):
        outputs = translator.n_best(chunk, progress=not interactive, first=first)
        for number, best in enumerate(outputs, first):
            for score, text in best:
                print(f"{number}\t{score:.4f}\t{text}" if len(best) > 1 else text)
        sys.stdout.flush()
        first += len(chunk)


if __name__ == "__main__":
    command_line.run(main, parse_flags())
