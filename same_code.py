"""Define the source of a run, when two copies of it are equal, and what an edit can change.

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
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib.util import resolve_name
from pathlib import Path

from utils import UserError

ROOT = Path(__file__).resolve().parent
CODE = ("model", "data", "training", "evaluation")  # the packages of a run
NOT_CODE = ("ablation", "benchmarks", "docs", "exercises", "experiments", "tests")  # not of a run
PACKAGES = CODE + NOT_CODE
MODULES = ("config", "evaluate", "generate", "same_code", "train", "translate", "utils")
SETTINGS = ("constraints.txt", "pyproject.toml", "setup.cfg")
NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)

# Modules of evaluation/ that describe results, or make them available elsewhere.
REPORTS = ("__init__", "attention", "command_line", "export", "figures", "page", "report")

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
    **{f"training/{name}.py": "" for name in ("__init__", "description", "logs")},
    "training/machine.py": "training score",  # precision of a GPU
    **{f"training/{name}.py": "score" for name in ("command_line", "records")},
    "training/": "training state score",  # of new files, as in the other folders
    **{f"evaluation/{x}.py": "score meaning" for x in ("search", "predictor", "translator")},
    **{f"evaluation/{name}.py": "" for name in REPORTS},
    "evaluation/*.html": "",
    "evaluation/": "score",
    **dict.fromkeys(("ablation/worker.py", "config.py", "utils.py"), "score"),
    **dict.fromkeys(("evaluate.py", "generate.py", "translate.py", "same_code.py"), ""),
    **{f"{name}/": "" for name in NOT_CODE},
    **dict.fromkeys(SETTINGS, ""),
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
DIFF = ("-c", "core.quotePath=false", "diff", "--src-prefix=a/", "--dst-prefix=b/", "--no-color")
DIFF += ("--no-ext-diff", "--no-textconv", "--unified=3", "--binary", "--relative")


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
        return ast.unparse(tree)
    except NOT_PARSED:
        return repr(source)


def file_hash(path: Path) -> str:
    """Return a hash of a file: of its normalized code if it is Python, else of its bytes."""
    content = path.read_bytes()
    content = normalized_code(content).encode() if path.suffix == ".py" else content
    return hashlib.sha256(content).hexdigest()[:16]


def source_files(folder: str | Path = ROOT, effect: str | None = None) -> dict[str, Path]:
    """Return the files of the source in a copy of it: {name: path}, sorted.

    They are the top-level modules and settings, the Python files of `PACKAGES`, the tables (.tsv)
    and pages next to them, and the new modules that these files import.

    effect: only files whose edit can have this effect, one of those in `CAN_CHANGE`; "": any.
    """
    folder = Path(folder)
    files = {folder / name for name in (*SETTINGS, *(f"{module}.py" for module in MODULES))}
    for package in PACKAGES:
        files |= {*folder.glob(f"{package}/**/*.py")}
        for path in (*folder.glob(f"{package}/**/*.tsv"), *folder.glob(f"{package}/**/*.html")):
            if path.with_name("__init__.py").exists() and path.parent != folder / "data":
                files.add(path)  # others are corpora
    names = {path.relative_to(folder).as_posix() for path in files if path.exists()}
    effects = {name: can_change(name) for name in names if not re.search(r"(^|/)\.", name)}
    chosen = [x for x, y in effects.items() if effect is None or effect in y or effect == "" and y]
    chosen += imported_files(chosen, folder) - names  # new ones
    return {name: folder / name for name in sorted(chosen) if (folder / name).exists()}


def copy_files(files: dict[str, Path], folder: Path) -> None:
    """Copy files, such as those of `source_files`, into a folder, by their names."""
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)


def code_hashes(effect: str = "", folder: str | Path = ROOT) -> dict[str, str]:
    """Return the hash of each file of `source_files` whose edit can have an effect: {name: hash}.

    effect: one of those in `CAN_CHANGE`; by default, any.
    """
    return {name: file_hash(path) for name, path in source_files(folder, effect).items()}


@functools.cache
def imported_modules(source: bytes, package: str) -> frozenset[str]:
    """Return the dotted names of the modules that Python code imports, or may import.

    package: that of the code, for relative imports.
    """
    names = set()
    with contextlib.suppress(*NOT_PARSED, ImportError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), package)
                names |= {module, *(f"{module}.{each.name}" for each in node.names)}
    return frozenset(names)


def imported_files(names: Iterable[str], folder: Path) -> set[str]:
    """Return the names of Python files of a copy of the source and of those that they import.

    Also indirectly, whether these files exist or not. The `__init__.py` of the project's own
    packages is not followed: that of model/ imports every model.
    """
    left, found = [name for name in names if name.endswith(".py")], set()
    while left:
        found.add(name := left.pop())
        if not (folder / name).exists():
            continue
        package = Path(name).parent.as_posix().replace("/", ".").strip(".")
        for module in imported_modules((folder / name).read_bytes(), package):
            path = Path(module.replace(".", "/"))
            packages = {x.as_posix() for x in (path, *path.parents)} - {".", *PACKAGES}
            left += {f"{path.as_posix()}.py", *(f"{x}/__init__.py" for x in packages)} - found
    return found


def fingerprint(effect: str = "", folder: str | Path = ROOT) -> str:
    """Return one hash of `code_hashes`."""
    hashes = json.dumps(code_hashes(effect, folder))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


def changed_files(effect: str, one: str | Path, other: str | Path = ROOT) -> list[str]:
    """Return the sorted names of the files of `code_hashes` that differ between two copies."""
    pairs = set(code_hashes(effect, one).items()) ^ set(code_hashes(effect, other).items())
    return sorted({name for name, _ in pairs})


def changed_model(run: str | Path) -> list[str]:
    """Return the files of the model's code that have changed since a run was trained, sorted.

    None of a run whose copy of the source is missing.
    """
    source = Path(run, "source")
    return changed_files("model", source) if source.exists() else []


def git(*words: str, stdin: str = "", cwd: Path | None = None, **variables: str) -> str:
    """Run git, in the project's root by default, and return its output. Raises GitError.

    variables: added to the environment, without those of git, which in a hook name a repository.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | variables
    options = {"input": stdin.encode(), "cwd": cwd or ROOT, "env": environment}
    try:
        done = subprocess.run(["git", *words], capture_output=True, check=True, **options)
    except FileNotFoundError as error:  # git, or the folder
        raise GitError(f"{error.filename} was not found, which is needed") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise GitError(f"git {words[0]}: {lines[0]}") from None
    return done.stdout.decode("utf-8", "replace")


def working_tree_diff(*paths: str, base: str = "HEAD") -> str:
    """Return the diff of the working tree, new files included, against a commit. Raises GitError.

    paths: git pathspecs. The user's git configuration has no effect, and the index does not change.
    """
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git("read-tree", base, **index)
        git("add", "--intent-to-add", ".", **index)
        return git(*DIFF, base, "--", *paths, **index)


def syntax_error(path: Path, root: Path = ROOT) -> str | None:
    """Return the place and the kind of the first syntax error of a file, or None."""
    try:
        compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        place = path.relative_to(root).as_posix()
        return f"{place}, line {error.lineno}: {error.msg}"
    return None
