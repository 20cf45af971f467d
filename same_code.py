"""Is this the same code, and what can an edit to a file change? The only module that decides both.

Two versions of a Python file are the same code if they differ only in comments, docstrings and
layout. `CAN_CHANGE` lists what an edit to each file can change. Imports neither TensorFlow nor
another package of the project.
"""

import ast
import contextlib
import functools
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from utils import UserError

ROOT = Path(__file__).resolve().parent
CODE = ("model", "data", "training", "evaluation")  # the packages of a run
NOT_CODE = ("ablation", "benchmarks", "docs", "exercises", "experiments", "tests")  # not of a run
PACKAGES = CODE + NOT_CODE
MODULES = ("config", "evaluate", "generate", "same_code", "train", "translate", "utils")
NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)

# Modules of evaluation/ that describe results, or make them available elsewhere.
REPORTS = ("__init__", "attention", "command_line", "compare", "export", "figures", "page")
REPORTS += ("report", "testset")

# What an edit to a file can change. The first pattern that matches decides; one that ends in "/" is
# a folder.
#   texts     the texts of a corpus
#   ids       their encoding, in the cache
#   batches   the batches of training, or their tokens
#   training  the updates of training
#   state     the state that a run needs to resume
#   model     what trained weights compute
#   meaning   what a loss means, or what it does not see: BLEU is judged instead
#   score     how outputs are scored
CAN_CHANGE = {
    "data/__main__.py": "",
    "data/batches.py": "batches training",
    "data/text.py": "texts ids batches training model meaning",
    "data/tokenizer.py": "texts ids batches training model meaning",
    "data/encoding.py": "texts ids batches training meaning",
    "data/*.tsv": "",  # corpora of users
    "data/": "texts ids batches training",
    "model/loss.py": "training model meaning",
    "model/decoding.py": "training model meaning",
    "model/": "training model",
    "train.py": "training state",
    "training/run.py": "batches training state",
    "training/distribution.py": "training state",
    "training/checkpoints.py": "state",
    "training/saving.py": "state",
    "training/__init__.py": "",
    "training/description.py": "",
    "training/logs.py": "",
    "training/progress.py": "",
    **dict.fromkeys(("training/command_line.py", "training/machine.py"), "score"),
    "training/records.py": "score",
    "training/": "training state score",  # of new files, as in the other folders
    "evaluation/search.py": "score meaning",
    "evaluation/predictor.py": "score meaning",
    "evaluation/translator.py": "score meaning",
    "evaluation/generator.py": "score",
    "evaluation/loading.py": "score",
    "evaluation/metrics.py": "score",
    "evaluation/scores.py": "score",
    **{f"evaluation/{name}.py": "" for name in REPORTS},
    "evaluation/": "score",
    "ablation/worker.py": "score",
    "config.py": "score",
    "utils.py": "score",
    **dict.fromkeys(("evaluate.py", "generate.py", "translate.py", "same_code.py"), ""),
    **{f"{name}/": "" for name in NOT_CODE},
}
ANYTHING = "texts ids batches training state model score"  # of new files


def can_change(name: str) -> set[str]:
    """Return what an edit to a file can change, by `CAN_CHANGE`. name: relative to ROOT."""
    for pattern, effects in CAN_CHANGE.items():
        same_depth = name.count("/") == pattern.count("/")
        inside = pattern.endswith("/") and name.startswith(pattern)
        if inside or (same_depth and fnmatchcase(name, pattern)):
            return set(effects.split())
    return set(ANYTHING.split())


# `git diff`, whatever the user's configuration is. The project may be a folder of a repository.
DIFF = (
    "-c",
    "diff.noprefix=false",
    "-c",
    "diff.mnemonicPrefix=false",
    "-c",
    "core.quotePath=false",
)
DIFF += ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--unified=3", "--binary")
DIFF += ("--relative",)


class GitError(UserError):
    """git is missing or has failed."""


class CallsForStrings(ast.NodeTransformer):
    """Replace f-strings with calls: how `ast.unparse` quotes them depends on Python's version."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Call:
        self.generic_visit(node)
        parts = [each for each in node.values if getattr(each, "value", None) != ""]  # of 3.12
        return ast.Call(ast.Name("join"), parts, [])

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.Call:
        self.generic_visit(node)
        parts = [node.value, ast.Constant(node.conversion), node.format_spec or ast.Constant("")]
        return ast.Call(ast.Name("format"), parts, [])


@functools.cache  # most files of two copies are equal
def normalized_code(source: bytes) -> str:
    """Return Python code without comments, docstrings and layout; other text as it is."""
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                if isinstance(getattr(body[0].value, "value", None), str):
                    del body[0]
        return ast.unparse(CallsForStrings().visit(tree))
    except NOT_PARSED:
        return repr(source)


def syntax_error(files: Iterable[Path], folder: Path = ROOT) -> str:
    """Return the first syntax error in Python files and where it is, or "" if there is none.

    folder: the names of the files are relative to it.
    """
    for path in files:
        try:
            compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
        except NOT_PARSED as error:
            line, what = getattr(error, "lineno", None), getattr(error, "msg", error)
            place = path.relative_to(folder).as_posix() + (f", line {line}" if line else "")
            return f"{place}: {what}"
    return ""


def file_hash(path: Path) -> str:
    """Return a hash of a file: of its normalized code if it is Python, else of its bytes."""
    content = path.read_bytes()
    content = normalized_code(content).encode() if path.suffix == ".py" else content
    return hashlib.sha256(content).hexdigest()[:16]


def is_hidden(path: Path) -> bool:
    """Return whether a part of a relative path begins with a dot, as in `.ipynb_checkpoints`."""
    return any(part[0] == "." for part in path.parts)


def source_files(folder: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> set[Path]:
    """Return the Python files and tables (.tsv) of packages, and the top-level modules."""
    found = {path for module in MODULES if (path := folder / f"{module}.py").exists()}
    for package in packages:
        found |= {*folder.glob(f"{package}/**/*.py"), *folder.glob(f"{package}/**/*.tsv")}
    return {path for path in found if not is_hidden(path.relative_to(folder))}


def code_hashes(effect: str = "", folder: str | Path = ROOT) -> dict[str, str]:
    """Return the hash of each file in a copy of the source whose edit can have an effect, by name.

    effect: one of those in `CAN_CHANGE`; by default, any. Only Python files and tables (.tsv) of
    packages count, and of new top-level modules and packages those that these files import.
    """
    folder = Path(folder)
    chosen = source_files(folder)
    for path in [*chosen]:
        effects = can_change(path.relative_to(folder).as_posix())
        table = path.suffix == ".tsv" and not path.with_name("__init__.py").exists()
        if table or not effects:
            chosen.remove(path)
        elif effect and effect not in effects:
            chosen.remove(path)
    chosen |= new_modules(chosen, folder)
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in sorted(chosen)}


@functools.cache
def imported_modules(source: bytes, package: str = "") -> frozenset[str]:
    """Return the dotted names of the modules that Python code imports, or may import.

    package: that of the code, for relative imports; by default, these are left out.
    """
    names = set()
    with contextlib.suppress(*NOT_PARSED):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and (package or not node.level):
                above = package.split(".")[: 1 - node.level or None] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                names |= {module, *(f"{module}.{each.name}" for each in node.names)}
    return frozenset(names)


def imported_files(names: Iterable[str], folder: Path) -> set[str]:
    """Return the names of files of a copy of the source and of those that they import, directly or
    not. The `__init__.py` of the project's own packages is not followed: that of model/ imports
    every model.
    """
    left, found = [*names], set()
    while left:
        found.add(name := left.pop())
        if (path := folder / name).exists():
            package = path.relative_to(folder).parent.as_posix().replace("/", ".").strip(".")
            modules = {x.replace(".", "/") for x in imported_modules(path.read_bytes(), package)}
            left += {f"{module}.py" for module in modules} - found
            left += {f"{module}/__init__.py" for module in modules.difference(PACKAGES)} - found
    return found


def new_modules(files: set[Path], folder: Path) -> set[Path]:
    """Return the files of new top-level modules and packages that `files` import, also indirectly.

    New ones are those that the project does not have. Of a package, all Python files and tables.
    """
    found, left = set(), [*files]
    while left:
        modules = imported_modules(left.pop().read_bytes())
        names = {name.partition(".")[0] for name in modules}.difference(PACKAGES, MODULES)
        for package in (folder / name for name in names):
            module = package.with_suffix(".py")
            whole = {*package.rglob("*.py"), *package.rglob("*.tsv")}
            whole = {path for path in whole if not is_hidden(path.relative_to(folder))}
            more = {module} if module.exists() else whole
            left += (path for path in more - found if path.suffix == ".py")
            found |= more
    return found


def fingerprint(effect: str = "", folder: str | Path = ROOT) -> str:
    """Return one hash of `code_hashes`."""
    hashes = json.dumps(code_hashes(effect, folder))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


def changed_files(effect: str, one: str | Path, other: str | Path = ROOT) -> list[str]:
    """Return the sorted names of the files of `code_hashes` that differ between two copies."""
    pairs = set(code_hashes(effect, one).items()) ^ set(code_hashes(effect, other).items())
    return sorted({name for name, _ in pairs})


def git(*words: str, stdin: str = "", cwd: Path | None = None, **variables: str) -> str:
    """Run git, in the project's root by default, and return its output. Raises GitError.

    variables: added to the environment. The variables that git sets for a hook are removed, because
    they would lead to another repository.
    """
    hook = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
    environment = {name: text for name, text in os.environ.items() if name not in hook} | variables
    options = {"input": stdin.encode(), "cwd": cwd or ROOT, "env": environment}
    try:
        done = subprocess.run(["git", *words], capture_output=True, check=True, **options)
    except FileNotFoundError:
        raise GitError("git was not found: install it") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise GitError(f"git {words[0]}: {lines[0]}") from None
    return done.stdout.decode("utf-8", "replace")


def is_checkout() -> bool:
    """Return whether ROOT is a git checkout of the project.

    The source directory of a run is not one, though it may lie in one.
    """
    try:
        return bool(git("ls-files", "--error-unmatch", "train.py"))
    except GitError:
        return False


def working_tree_diff(*paths: str, base: str = "HEAD") -> str:
    """Return the diff of the working tree, new files included, against a commit. Raises GitError.

    paths: git pathspecs. The user's git configuration has no effect, and the index does not change.
    """
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git("read-tree", base, **index)
        names = git("ls-files", "-z", "--others", "--exclude-standard", "--", *paths, **index)
        new = [name for name in names.split("\0")[:-1] if "\ufffd" not in name]  # those in UTF-8
        if new:
            add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(*add, stdin="\0".join(new), GIT_LITERAL_PATHSPECS="1", **index)
        return git(*DIFF, base, "--", *paths, **index)
