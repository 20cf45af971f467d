"""Continue a text with a trained language model: a prompt, each line of standard input, or, without
either, from the start of a text. Prints as it generates.
"""

import argparse
import sys

import utils
from evaluation import command_line
from evaluation.search import Sampling


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    text = "the text to continue; may be empty. A line feed in a shell: $'one\\ntwo'"
    add("prompt", nargs="?", type=command_line.valid_text, metavar="PROMPT", help=text)
    text = "maximum tokens to generate [%(default)s]"
    add("--tokens", type=utils.positive, default=200, metavar="N", help=text)
    text = "number of continuations of each prompt [%(default)s]"
    add("--samples", type=utils.positive, default=1, metavar="N", help=text)
    utils.add_flags(parser, Sampling, leave_out=utils.names_in_group(Sampling, "search"))
    flags = command_line.parse(parser, ["language modeling"], Sampling)
    if flags.samples > 1 and not flags.search.sample:
        utils.fail("--samples: without sampling, all would be equal; remove one of the flags")
    return flags


def read_prompts(flags: argparse.Namespace) -> list[str]:
    """Return the prompts: PROMPT, the lines of standard input, or else an empty one."""
    if flags.prompt is not None:
        if r"\n" in flags.prompt:
            utils.warn(r"the prompt has \n as two characters: for a line feed, write $'one\ntwo'")
        return [flags.prompt]
    file = getattr(sys.stdin, "buffer", None)  # a notebook's has none
    if file is None or file.isatty():
        return [""]
    return [line for lines in command_line.read_lines(file) for line in lines] or [""]


def main(flags: argparse.Namespace) -> None:
    """Print the continuations, each after its prompt. Raises UserError and OSError."""
    prompts = read_prompts(flags)
    generator = command_line.load(flags, one_core=True)
    for number, prompt in enumerate(p for p in prompts for _ in range(flags.samples)):
        if number:
            print("-" * 40)
        print(prompt, end="", flush=True)
        for part in generator.stream(prompt, flags.tokens, number):
            print(part, end="", flush=True)
        print(flush=True)
    generator.print_warnings()


if __name__ == "__main__":
    command_line.run(main, parse_flags())
