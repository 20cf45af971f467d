"""Experiments as small files: a question, flags, and a diff against the repository.

experiments/NAME.patch begins with lines of `key: text`, each on one line, in this order:

    question:  what is asked
    claim:     what somebody says, and who (may be left out)
    flags:     flags of train.py, beside the recipe's (may be left out)
    guard:     the test that notices where the edit is a bug (may be left out)
    finding:   what came out, written after the numbers (may be left out)

Where code changes, an empty line and a unified diff follow, as `git diff` writes it.
"""

import hashlib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEYS = ("question", "claim", "flags", "guard", "finding")


class ExperimentError(Exception):
    """An experiment that cannot be read, applied, saved or run; the message says what to do.

    detail: lines to be shown before it, or "".
    """

    def __init__(self, message, detail=""):
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class Patch:
    """One experiment, as its file has it."""

    name: str
    question: str
    claim: str = ""
    flags: str = ""
    guard: str = ""
    finding: str = ""
    diff: str = ""

    @property
    def path(self):
        return HERE / f"{self.name}.patch"

    @property
    def arguments(self):
        """The flags as a list of words."""
        return shlex.split(self.flags)

    @property
    def digest(self):
        """A hash of the diff."""
        return hashlib.sha256(self.diff.encode()).hexdigest()

    def text(self):
        """What the file holds."""
        lines = [f"{key}: {value}\n" for key in KEYS if (value := getattr(self, key))]
        return "".join(lines) + (f"\n{self.diff}" if self.diff else "")

    def apply(self, folder):
        """Edit a copy of the source. Raises ExperimentError, with the hunk that does not fit."""
        if not self.diff:
            return
        # Out of every repository: else git takes the paths for its own, and may skip them silently.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment["GIT_CEILING_DIRECTORIES"] = str(Path(folder).resolve().parent)
        answer = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=self.diff.encode(), cwd=folder, env=environment, capture_output=True,
        )  # fmt: skip
        if answer.returncode:
            said = answer.stderr.decode("utf-8", "replace").strip()
            file, hunk = self.hunk(said)
            why = f"{file} has not, or no longer, the lines of the hunk above" if hunk else said
            raise ExperimentError(
                f"experiments/{self.name}.patch does not apply to this source: {why}", hunk
            )

    def hunk(self, said):
        """The file and the hunk that git names in its complaint; "" where it names none."""
        found = re.search(r"patch failed: (.*):(\d+)", said)
        if not found:
            return "", ""
        file, line = found.groups()
        part = self.diff.split(f"+++ b/{file}\n", 1)[-1].split("\ndiff --git", 1)[0]
        for hunk in re.split(r"^(?=@@ )", part, flags=re.MULTILINE):
            if hunk.startswith(f"@@ -{line}"):
                return file, hunk.rstrip()
        return file, ""


BASELINE = Patch("baseline", "What everything else is compared with")


def read(name):
    """The Patch of this name; "baseline" is the source as it is. Raises ExperimentError."""
    if name == BASELINE.name:
        return BASELINE
    path = HERE / f"{name}.patch"
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        known = ", ".join(names())
        raise ExperimentError(f"there is no experiments/{name}.patch, only {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    head, _, diff = text.partition("\n\n")
    values = {}
    for line in head.splitlines():
        key, colon, value = line.partition(":")
        if not colon or key not in KEYS or key in values:
            raise ExperimentError(
                f"{path}: {line[:60]!r} is none of the lines {', '.join(f'{k}:' for k in KEYS)}, "
                "each once, before an empty line and the diff"
            )
        values[key] = value.strip()
    if not values.get("question"):
        raise ExperimentError(f"{path} has no line `question: …`")
    patch = Patch(name=name, diff=diff, **values)
    check(patch)
    return patch


def check(patch):
    """Raise ExperimentError where the flags are no words."""
    try:
        patch.arguments  # noqa: B018
    except ValueError as error:
        raise ExperimentError(f"{patch.path}: flags: {error}") from None


def names():
    """Every experiment that there is, sorted."""
    return sorted(path.stem for path in HERE.glob("*.patch"))


def write(patch):
    """Write an experiment's file."""
    patch.path.write_bytes(patch.text().encode())


def git(*arguments, **environment):
    """What git says in the repository. Raises ExperimentError."""
    try:
        said = subprocess.run(
            ["git", "-C", str(ROOT), *map(str, arguments)],
            capture_output=True, check=True, env=os.environ | environment,
        ).stdout  # fmt: skip
        return said.decode("utf-8")  # line ends as they are
    except FileNotFoundError:
        raise ExperimentError("experiments need git: install it") from None
    except UnicodeDecodeError as error:
        raise ExperimentError(f"git {arguments[0]}: an edited file is not UTF-8: {error}") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().split("\n")[-1] or "no reason given"
        raise ExperimentError(f"git {arguments[0]}: {said}; experiments need a checkout") from None
