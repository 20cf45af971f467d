"""The commands in the documents exist, and have the flags that they are shown with."""

import functools
import re
import shlex
import subprocess
import sys

import pytest

from config import Config
from same_code import ROOT
from utils import add_flags, make_parser

PAGES = ["README.md", "experiments/README.md", "benchmarks/README.md"]
PAGES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"python (-m \w+(?:\.\w+)*|\w+\.py)")


def commands(page):
    """Return the commands of this project in the blocks of a page."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)
    assert not any(PROGRAM.search(text) for kind, text in blocks if not kind), "mark them as sh"
    blocks = [text for kind, text in blocks if kind == "sh"]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r" && | \| | > | < |  #", line)]
    return [part for part in parts if PROGRAM.match(part) and "pytest" not in part]


@functools.cache
def help_of(program):
    command = [sys.executable, *program.split(), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_training_has_valid_flags(page):
    parser = make_parser("")
    add_flags(parser, Config)
    for command in commands(page):
        if command.startswith("python train.py"):
            words = [word.replace("NAME", "name") for word in shlex.split(command)[2:]]
            parser.parse_args([word for word in words if word != "N"])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_valid_flags(page):
    for command in commands(page):
        flags = {word.partition("=")[0] for word in shlex.split(command) if word[:2] == "--"}
        known = {*re.findall(r"--[\w-]+", help_of(PROGRAM.match(command)[1]))}
        assert flags - {"--"} <= known, command


def test_the_pages_have_commands():
    assert sum(len(commands(page)) for page in PAGES) > 50
