"""Experiments as patch files: a question, flags, and a diff against the repository.

experiments/NAME.patch begins with lines of the form `key: text`, each at most once:

    question:  what the experiment tests
    theme:     the part of the model or of training that it changes: see THEMES (optional)
    claim:     a published claim about it, and its source (optional)
    recipe:    the recipe that experiments.run uses by default [mini]
    score:     bleu, if the change alters what a loss means: BLEU is judged instead (optional)
    average:   the number of last epochs whose weights are averaged, if it is not the recipe's, as
               for a schedule that ends at zero (optional)
    flags:     flags of train.py, in addition to those of the recipe, without quotes (optional)
    flags X:   these instead of `flags` for the recipe X, such as sizes for its model (optional)
    guard:     the test that fails with the patch, if the edit is a bug (optional)

An empty line and a unified diff in the format of `git diff` follow if the experiment changes code.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.recipes import RECIPES
from same_code import GitError, git, working_tree_diff
from utils import UserError

HERE = Path(__file__).resolve().parent
NOT_SCORED = "benchmarks", "docs", "experiments", "tests"
NOT_EDITS = [f":!{name}" for name in NOT_SCORED]
NOT_DATA = *NOT_EDITS, ":!*.md", ":!*.cfg", ":!.*"
NOT_BY_LOSS = {"model/loss.py", "model/decoding.py", "data/tokenizer.py", "data/encoding.py"}
NOT_BY_LOSS |= {
    "data/text.py",
    "evaluation/search.py",
    "evaluation/predictor.py",
    "evaluation/translator.py",
}
KEYS = ("question", "theme", "claim", "recipe", "score", "average", "flags", "guard")
THEMES = ("attention and masks", "positions", "norms and residuals", "feed-forward", "embeddings")
THEMES += ("optimisation", "regularisation", "architecture")


class ExperimentError(UserError):
    """An experiment that cannot be read, applied, saved or run."""


@dataclass(frozen=True)
class Patch:
    """Contents of a patch file."""

    name: str
    question: str
    theme: str = THEMES[-1]
    claim: str = ""
    recipe: str = "mini"
    score: str = ""
    average: str = ""
    flags: str = ""
    guard: str = ""
    diff: str = ""
    flags_by_recipe: tuple[tuple[str, str], ...] = ()

    def for_recipe(self, name: str) -> "Patch":
        """Return the patch with the flags that it has for a recipe, and with its score.

        BLEU replaces a loss if the patch may change what the loss means, or what it does not see.
        """
        flags = dict(self.flags_by_recipe).get(name, self.flags)
        smoothing = re.search(r"^[-+] +label_smoothing:", self.diff, re.MULTILINE)
        bleu = smoothing or "--label-smoothing" in flags or NOT_BY_LOSS.intersection(self.files)
        return replace(self, flags=flags, score=self.score or "bleu" * bool(bleu))

    def apply(self, folder: Path, *words: str) -> None:
        """Apply the diff to a copy of the source. words: such as --check, of `git apply`."""
        if self.diff:
            # Hide any repository around the folder: git would take paths as relative to its root,
            # and skip them silently.
            parent = str(Path(folder).resolve().parent)
            options = {"stdin": self.diff, "cwd": folder, "GIT_CEILING_DIRECTORIES": parent}
            git("apply", *words, "--whitespace=nowarn", "-", **options)

    def check_syntax(self, folder: Path) -> None:
        """Raise ExperimentError if a changed file, in a patched copy, is not valid Python."""
        for name in self.files:
            if name.endswith(".py") and (folder / name).exists():
                try:
                    compile((folder / name).read_bytes(), name, "exec", dont_inherit=True)
                except SyntaxError as error:
                    raise ExperimentError(f"{name}, line {error.lineno}: {error.msg}") from None

    @property
    def files(self) -> list[str]:
        """Names of the files that the diff changes, sorted."""
        line = r"^(?:(?:---|\+\+\+) [abciwo]/|rename (?:from|to) )([^\t\n]*\S)"  # all of git's
        return sorted({*re.findall(line, self.diff, re.MULTILINE)})

    @property
    def change(self) -> str:
        """A hash of the flags, the average, and the lines that the diff removes and adds."""
        lines = [line for line in self.diff.splitlines() if line[:1] in ("+", "-")]
        lines = [self.flags, *lines, *[f"average {self.average}"] * bool(self.average)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


BASELINE = Patch("baseline", "The unpatched source")


def read(name: str) -> Patch:
    """Read a patch file; "baseline" is the unpatched source. Raises ExperimentError."""
    if name == BASELINE.name:
        return BASELINE
    path, values, flags_by_recipe = HERE / f"{name}.patch", {}, {}
    if not path.exists():
        raise ExperimentError(f"{path} does not exist: choose from {', '.join(names())}")
    head, _, diff = path.read_bytes().decode("utf-8").partition("\n\n")
    for line in head.splitlines():
        key, colon, value = line.partition(":")
        word, _, recipe = key.partition(" ")
        if colon and word == "flags" and recipe in RECIPES and recipe not in flags_by_recipe:
            flags_by_recipe[recipe] = value.strip()
            continue
        if not colon or key not in KEYS or key in values:
            keys = ", ".join(f"{key}: …" for key in KEYS)
            raise ExperimentError(f"{path}: {line[:60]!r} is not one of {keys}, each at most once")
        values[key] = value.strip()
        allowed = {"theme": THEMES, "recipe": RECIPES, "score": ["bleu"]}.get(key)
        if allowed and values[key] not in allowed:
            raise ExperimentError(f"{path}: {line}: choose from {', '.join(allowed)}")
        if key == "average" and not re.fullmatch("[1-9][0-9]*", values[key]):
            raise ExperimentError(f"{path}: {line}: give a number of epochs")
    if not values.get("question"):
        raise ExperimentError(f"{path}: add a line `question: …`")
    if diff and not diff.startswith(("diff --git ", "--- ")):
        raise ExperimentError(f"{path}: only a diff may follow the first empty line")
    patch = Patch(name, diff=diff, flags_by_recipe=(*flags_by_recipe.items(),), **values)
    if diff and not patch.files:
        raise ExperimentError(f"{path}: the diff names no files as `--- a/FILE` and `+++ b/FILE`")
    return patch


def edit(commit: str = "HEAD") -> Patch | None:
    """Return the changes since a commit as an experiment, or None if there are none.

    Only code counts, without `NOT_EDITS` and `own_tables`. The name has a hash of the changes.
    Raises ExperimentError if there is no such commit, and GitError.
    """
    try:
        git("rev-parse", "--verify", f"{commit}^{{commit}}")
    except GitError as error:
        hint = "choose a commit from git log --oneline, in a git clone of the project"
        raise ExperimentError(f"--against {commit}: {error}; {hint}") from None
    own = [f":(exclude,literal){name}" for name in own_tables(commit)]
    diff = working_tree_diff("*.py", "*.tsv", *NOT_EDITS, *own, base=commit)
    name = f"edit-{hashlib.sha256(diff.encode()).hexdigest()[:6]}"
    return Patch(name, "The edit of the working tree", diff=diff) if diff else None


def differing(commit: str, *pathspecs: str, kinds: str = "") -> list[str]:
    """Return the files that differ from a commit, new ones included. kinds: `git diff` statuses."""
    options = ["--relative", "--name-only", "-z", f"--diff-filter={kinds}"]
    text = git("diff", *options, commit, "--", *pathspecs)
    text += git("ls-files", "-z", "--others", "--exclude-standard", "--", *pathspecs)
    return text.split("\0")[:-1]


def own_tables(commit: str = "HEAD") -> list[str]:
    """Return the new tables that are corpora of the user, not code.

    They are in the project's folder, directly in data/, or in a folder without Python files.
    """
    tables, folder = [Path(name) for name in differing(commit, "*.tsv", kinds="A")], HERE.parent
    return [
        str(path)
        for path in tables
        if str(path.parent) in (".", "data") or not any((folder / path.parts[0]).rglob("*.py"))
    ]


def left_out(commit: str = "HEAD") -> list[str]:
    """Return the files that differ from a commit and could be data of an edit, but are not code."""
    names = differing(commit, *NOT_DATA)
    data = {name for name in names if not name.endswith((".py", ".tsv"))}
    return sorted(data.union(own_tables(commit)))


def names() -> list[str]:
    """Return the names of all experiments, sorted."""
    return sorted(path.stem for path in HERE.glob("*.patch"))
