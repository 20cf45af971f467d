"""Is this the same code? The only module that decides it.

Two versions of a Python file are the same code if they differ only in comments, docstrings and
layout. `USES` lists the files on which each use of stored work depends. Imports neither TensorFlow
nor another package of the project.
"""

import ast
import contextlib
import functools
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from utils import UserError

ROOT = Path(__file__).resolve().parent
PACKAGES = ("model", "data", "training", "evaluation", "experiments", "benchmarks", "tests", "docs")
MODULES = ("config", "evaluate", "generate", "same_code", "train", "translate", "utils")
NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)

# The files and folders that determine the result of each use; "!" excludes. The last pattern that
# matches a file decides. Only Python files and tables (.tsv) count; for other uses than "score", a
# table must be in a package: others are corpora. New top-level modules and packages that these
# files import count, too.
USES = {
    # An encoded corpus in the cache. The generator of `mini` belongs to its corpus' fingerprint.
    # Batches are planned when they are needed.
    "dataset": (
        *("data", "!data/__init__.py", "!data/__main__.py", "!data/batches.py"),
        *("!data/mini", "!data/*.tsv"),
    ),
    # The texts that experiments score.
    "texts": ("data",),
    # `train.py --resume`: the remaining updates.
    "resume": (
        *("model", "data", "!data/**/*.tsv", "data/mini/*.tsv"),
        *("train.py", "training/run.py", "training/distribution.py"),
    ),
    # Whatever loads a trained model: evaluate.py, translate.py, python -m evaluation.…
    "evaluation": ("model", "data/tokenizer.py", "data/text.py"),
    # Several workers that train one model.
    "workers": ("model", "data", "training", "evaluation", "config.py", "train.py"),
    # Stored results of experiments: all but what cannot change a score, so that new files count.
    "score": (
        *("[!.]*", "!docs", "!tests", "!benchmarks", "!experiments", "experiments/worker.py"),
        *(
            "!evaluate.py",
            "!generate.py",
            "!translate.py",
            "!same_code.py",
            "!training/__init__.py",
        ),
        *("!training/description.py", "!training/logs.py", "!training/progress.py"),
        *("!evaluation/__init__.py", "!evaluation/attention.py", "!evaluation/command_line.py"),
        *("!evaluation/compare.py", "!evaluation/export.py", "!evaluation/figures.py"),
        *("!evaluation/page.py", "!evaluation/report.py"),
    ),
}


class GitError(UserError):
    """git is missing or has failed."""


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
        return ast.unparse(tree)  # the same text in every version of Python
    except NOT_PARSED:
        return repr(source)


def file_hash(path: Path) -> str:
    """Return a hash of a file: of its normalized code if it is Python, else of its bytes."""
    content = path.read_bytes()
    content = normalized_code(content).encode() if path.suffix == ".py" else content
    return hashlib.sha256(content).hexdigest()[:16]


def is_hidden(path: Path) -> bool:
    """Return whether a part of a relative path begins with a dot, as in `.ipynb_checkpoints`."""
    return any(part[0] == "." for part in path.parts)


def code_hashes(use: str, folder: str | Path = ROOT) -> dict[str, str]:
    """Return the hash of each file of `USES[use]` in a copy of the source, by its name."""
    folder, files = Path(folder), set()
    for pattern in USES[use]:
        found = set()
        for path in folder.glob(pattern.removeprefix("!")):
            found |= {path} if path.is_file() else {*path.rglob("*.py"), *path.rglob("*.tsv")}
        files = files - found if pattern[0] == "!" else files | found
    tables = {x for x in files if x.suffix == ".tsv"}
    if use != "score":
        tables = {x for x in tables if x.with_name("__init__.py").exists()}
    files = {path for path in files if path.suffix == ".py"} | tables
    files = {path for path in files if not is_hidden(path.relative_to(folder))}
    files |= new_modules(files, folder)
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in sorted(files)}


@functools.cache
def imported_names(source: bytes) -> frozenset[str]:
    """Return the names of the top-level modules and packages that Python code imports."""
    names = set()
    with contextlib.suppress(*NOT_PARSED):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.partition(".")[0])
    return frozenset(names)


def new_modules(files: set[Path], folder: Path) -> set[Path]:
    """Return the files of new top-level modules and packages that `files` import, also indirectly.

    New ones are those that the project does not have. Of a package, all Python files and tables.
    """
    found, left = set(), [*files]
    while left:
        names = imported_names(left.pop().read_bytes()).difference(PACKAGES, MODULES)
        for package in (folder / name for name in names):
            module = package.with_suffix(".py")
            whole = {*package.rglob("*.py"), *package.rglob("*.tsv")}
            whole = {path for path in whole if not is_hidden(path.relative_to(folder))}
            more = {module} if module.exists() else whole
            left += (path for path in more - found if path.suffix == ".py")
            found |= more
    return found


def fingerprint(use: str, folder: str | Path = ROOT) -> str:
    """Return one hash of `code_hashes`."""
    hashes = json.dumps(code_hashes(use, folder))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


def changed_files(use: str, one: str | Path, other: str | Path = ROOT) -> list[str]:
    """Return the sorted names of the files of `USES[use]` that differ between two copies."""
    pairs = set(code_hashes(use, one).items()) ^ set(code_hashes(use, other).items())
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
    options = ["--no-color", "--no-ext-diff", "--no-textconv", "--unified=3", "--binary"]
    options.append("--relative")  # the project may be a folder of a larger repository
    settings = ["-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"]
    settings += ["-c", "core.quotePath=false"]
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git("read-tree", base, **index)
        git("add", "--intent-to-add", "--", ".", **index)
        return git(*settings, "diff", *options, base, "--", *paths, **index)
