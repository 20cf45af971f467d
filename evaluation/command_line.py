"""Flags, checks and errors shared by evaluate.py, translate.py and `python -m evaluation.X`.

Does not import TensorFlow before `load`, so that mistakes on the command line are reported at once.
"""

import argparse
import codecs
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import utils
from evaluation.search import Search
from training import machine
from training.records import checkpoint_folder, find_run, load_config
from utils import UserError, errors_in_one_line, fail, handle_signals, quote

if TYPE_CHECKING:
    from evaluation.predictor import Predictor

RUN_HELP = "run directory, such as runs/NAME; runs/latest is the one started or resumed last"
CHUNK_BYTES = 2**19  # at most as many are read before they are translated
MEMORY_HINT = "lower --beam, shorten the longest lines, or use fewer cores (Linux: taskset -c 0 …)"


def make_parser(description: str) -> argparse.ArgumentParser:
    """Create a parser for a command that loads a trained model: RUN and how to load it."""
    program = Path(sys.argv[0])
    module = f"python -m evaluation.{program.stem}" if program.parent.name == "evaluation" else None
    parser = utils.make_parser(description, prog=module)
    parser.add_argument("run", type=find_run, metavar="RUN", help=RUN_HELP)
    add = parser.add_argument_group("model").add_argument
    text = "best: the one with the lowest validation loss [last]"
    add("--checkpoint", choices=("last", "best"), default="last", help=text)
    text = "average the weights saved at the ends of the last N epochs [1]"
    add("--average", type=utils.positive, default=1, metavar="N", help=text)
    text = "use the current code even if it has changed since the run was trained"
    add("--accept-changes", action="store_true", help=text)
    return parser


def valid_text(text: str, name: str = "the command line") -> str:
    """Replace bytes that are not UTF-8, decoded as surrogates, by U+FFFD, with a warning."""
    valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if valid != text:
        utils.warn(f"{name} is not valid UTF-8; invalid bytes became \ufffd")
    return valid


def read_lines(file: BinaryIO, fixed_size: bool = False) -> Iterator[list[str]]:
    """Yield lists of lines of a UTF-8 file. Only a line feed ends a line.

    A list is what can be read without waiting: one line of a terminal, thousands of a file. With
    fixed_size, it is about CHUNK_BYTES, even if they arrive slowly. Bytes that are not UTF-8 become
    U+FFFD, with a warning. Raises OSError.
    """
    read, rest = file.read if fixed_size else file.read1, b""

    def decode(line: bytes) -> str:
        line = line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r")
        return valid_text(line.decode("utf-8", "surrogateescape"), file.name)

    while data := read(CHUNK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [*map(decode, lines)]
    if rest:
        yield [decode(rest)]


def parse(
    parser: argparse.ArgumentParser,
    tasks: Sequence[str] = ("translation", "classification"),
    search: type[Search] = Search,
) -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2.

    tasks: those of models that the program is for. search: the class of the search flags. Adds
    `config`, that of the run, and `search`.
    """
    handle_signals()
    flags = parser.parse_intermixed_args()  # TEXT may follow flags
    with errors_in_one_line():
        names = {field.name for field in fields(Search)} & vars(flags).keys()
        flags.search = search(**{name: getattr(flags, name) for name in names})
        flags.config = load_config(flags.run)
        task, run = flags.config.task, flags.run
        if task not in tasks:
            program = "generate" if task == "language modeling" else "translate"
            raise UserError(f"{run} is for {task}: use python {program}.py {quote(run)}")
        if task == "classification" and (flags.search.sample or flags.search.max_tokens):
            raise UserError("labels are neither sampled nor long: remove --sample and --max-tokens")
        checkpoint_folder(run, flags.checkpoint, flags.average)
    if flags.search.sample and flags.search.seed is None:
        flags.search = replace(flags.search, seed=random.randrange(2**31))
        print(f"--seed {flags.search.seed}", file=sys.stderr)
    return flags


def load(flags: argparse.Namespace, one_core: bool = False) -> "Predictor":
    """Load the model that the flags of `parse` select. Imports TensorFlow. Raises UserError.

    one_core: use one thread, which is faster if the operations are tiny.
    """
    machine.import_tensorflow()
    machine.set_parallelism(1 if one_core else len(machine.cores()), threads=1)
    from evaluation import loading

    names = ("config", "checkpoint", "average", "search", "accept_changes")
    return loading.load(flags.run, **{name: getattr(flags, name) for name in names})


def run(main: Callable[[argparse.Namespace], None], flags: argparse.Namespace) -> None:
    """Call main(flags). Report a UserError, an OSError or too little memory in one line."""
    try:
        with errors_in_one_line():
            main(flags)
    except machine.out_of_memory_errors() as error:
        fail(machine.out_of_memory_message(error, MEMORY_HINT), 1)
