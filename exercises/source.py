"""Exercises, and the functions that they take out of a copy of the source."""

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from utils import UserError, write_text

FILE = Path(__file__).with_name("exercises.toml")
# It is not part of the learner's copy.
SECTIONS = tomllib.loads(FILE.read_text("utf-8") if FILE.exists() else "[predict]")
PREDICTIONS = SECTIONS.pop("predict")
EXERCISES = {
    name: exercise | {"section": section}
    for section, exercises in SECTIONS.items()
    for name, exercise in exercises.items()
}


class Function(NamedTuple):
    """A function in a file. The text of the file is that of the four parts together."""

    path: Path
    before: str
    head: str  # signature and docstring
    body: str
    after: str

    def blank(self, exercise: str) -> str:
        """Return what replaces the body: its shape comments, and an exception."""
        shapes = re.findall(r"^ *(?:(\w+) = )?.*# (\(.*)", self.body, re.MULTILINE)
        lines = [f"# {name}: {shape}" if name else f"# {shape}" for name, shape in shapes]
        lines.append(f'raise NotImplementedError("exercise {exercise}")')
        indent = re.search("^ +", self.body, re.MULTILINE)[0]
        return "".join(f"{indent}{line}\n" for line in lines)

    def replace(self, body: str) -> None:
        """Write the file with another body of the function."""
        write_text(self.path, self.before + self.head + body + self.after)


def find_function(folder: Path, code: str) -> Function:
    """Return a function, "FILE:QUALIFIED_NAME", of a copy of the source. Raises UserError."""
    file, _, qualified_name = code.partition(":")
    path = folder / file
    try:
        text = path.read_text("utf-8")
        node = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}): save it as UTF-8") from None
    for name in qualified_name.split("."):
        node = next((x for x in getattr(node, "body", ()) if getattr(x, "name", "") == name), None)
        if node is None:
            raise UserError(f"{path} has no {qualified_name}: give the function its name again")
    lines, first, *rest = text.splitlines(keepends=True), *node.body[:2]
    before = lines[first.lineno - 1].encode()[: first.col_offset].strip()
    if before or (rest and rest[0].lineno == first.end_lineno):
        raise UserError(f"{path}, line {first.lineno}: give each statement a line of its own")
    signature = getattr(node.returns, "end_lineno", node.body[0].lineno - 1)
    body = signature if ast.get_docstring(node) is None else node.body[0].end_lineno
    bounds = [0, node.lineno - 1, body, node.end_lineno]
    parts = [lines[i:j] for i, j in zip(bounds, [*bounds[1:], None], strict=True)]
    return Function(path, *map("".join, parts))
