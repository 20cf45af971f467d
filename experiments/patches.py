"""Experiments as patch files: a question, flags, and a diff against the repository.

experiments/NAME.patch begins with lines of the form `key: text`, in this order:

    question:  what the experiment tests
    theme:     the part of the model or of training that it changes: see THEMES
    claim:     a published claim about it, and its source (optional)
    recipe:    the recipe of experiments.run, if it is not about translation (optional)
    flags:     flags of train.py, in addition to those of the recipe (optional)
    guard:     the test that fails with the patch, if the edit is a bug (optional)

An empty line and a unified diff in the format of `git diff` follow if the experiment changes code.
"""

import hashlib
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from config import UserError
from training.provenance import working_tree_diff

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEYS = ("question", "theme", "claim", "recipe", "flags", "guard")
THEMES = (
    "attention and masks",
    "positions",
    "norms and residuals",
    "feed-forward",
    "embeddings",
    "optimisation",
    "regularisation",
    "architecture",
)


class ExperimentError(UserError):
    """An experiment that cannot be read, applied, saved or run."""


@dataclass(frozen=True)
class Patch:
    """Contents of a patch file."""

    name: str
    question: str
    theme: str = "architecture"
    claim: str = ""
    recipe: str = ""
    flags: str = ""
    guard: str = ""
    diff: str = ""

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.patch"

    @property
    def arguments(self) -> list[str]:
        """The flags, split into words."""
        return shlex.split(self.flags)

    def text(self) -> str:
        """Contents of the file."""
        lines = [f"{key}: {value}\n" for key in KEYS if (value := getattr(self, key))]
        return "".join(lines) + (f"\n{self.diff}" if self.diff else "")

    def apply(self, folder: str | Path, check: bool = False) -> None:
        """Apply the diff to a copy of the source, or with `check` only test whether it applies.

        Raises ExperimentError with the place of the first hunk that does not apply.
        """
        if not self.diff:
            return
        # Hide any repository around the folder: git would take paths as relative to its root, and
        # skip them silently.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment["GIT_CEILING_DIRECTORIES"] = str(Path(folder).resolve().parent)
        result = subprocess.run(
            ["git", "apply", *["--check"] * check, "--whitespace=nowarn", "-"],
            input=self.diff.encode(),
            cwd=folder,
            env=environment,
            capture_output=True,
        )
        if result.returncode:
            lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ExperimentError(f"{self.name} does not apply to this source: {lines[0]}")


BASELINE = Patch("baseline", "The unpatched source")


def read(name: str) -> Patch:
    """Read a patch file; "baseline" is the unpatched source. Raises ExperimentError."""
    if name == BASELINE.name:
        return BASELINE
    path = HERE / f"{name}.patch"
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        message = f"experiments/{name}.patch does not exist: choose from {', '.join(names())}"
        raise ExperimentError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    head, _, diff = text.partition("\n\n")
    values = {}
    for line in head.splitlines():
        key, colon, value = line.partition(":")
        if not colon or key not in KEYS or key in values:
            raise ExperimentError(
                f"{path}: {line[:60]!r} is not a valid line: before the diff, write "
                f"{', '.join(f'{k}:' for k in KEYS)}, each at most once"
            )
        values[key] = value.strip()
    if not values.get("question"):
        raise ExperimentError(f"{path}: add a line `question: …`")
    patch = Patch(name=name, diff=diff, **values)
    check(patch)
    return patch


def check(patch: Patch) -> None:
    """Raise ExperimentError if the theme is unknown, or the flags cannot be split into words."""
    if patch.theme not in THEMES:
        raise ExperimentError(f"{patch.path}: theme: choose from {', '.join(THEMES)}")
    try:
        shlex.split(patch.flags)
    except ValueError as error:
        raise ExperimentError(f"{patch.path}: flags: {error}") from None


def working_tree() -> Patch | None:
    """Return the uncommitted edits as an experiment, or None if there are none.

    Files in experiments/ are left out. The name has a hash, so that each edit has its own runs.
    """
    diff = working_tree_diff(git, ".", ":(exclude)experiments")
    name = f"edit-{hashlib.sha256(diff.encode()).hexdigest()[:6]}"
    return Patch(name, "The edits of the working tree", diff=diff) if diff else None


def names() -> list[str]:
    """Return the names of all experiments, sorted."""
    return sorted(path.stem for path in HERE.glob("*.patch"))


def git(*arguments: object, **environment: str) -> str:
    """Run git in the repository and return its output. Raises ExperimentError."""
    try:
        result = subprocess.run(
            ["git", "-C", str(ROOT), *map(str, arguments)],
            capture_output=True,
            check=True,
            env=os.environ | environment,
        )
        return result.stdout.decode("utf-8")  # bytes, to keep line ends unchanged
    except FileNotFoundError:
        raise ExperimentError("experiments need git: install it") from None
    except UnicodeDecodeError as error:
        raise ExperimentError(f"git {arguments[0]}: an edited file is not UTF-8: {error}") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        message = f"git {arguments[0]}: {lines[-1]}; experiments need a git checkout"
        raise ExperimentError(message) from None
