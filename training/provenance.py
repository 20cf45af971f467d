"""Record the source, commit and versions of a run, and compare two copies of the source."""

import ast
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("model", "data", "training", "evaluation", "experiments", "benchmarks", "tests", "docs")
SOURCE = ["*.py", "*.cfg", "*.toml", "*.md", "constraints.txt", "data/mini/*.tsv"]
SOURCE += [f"{p}/**/*.{kind}" for p in PACKAGES for kind in ("py", "md", "html", "patch")]


def provenance() -> dict:
    """Return the commit, command, versions and host."""
    import tensorflow as tf  # the rest of this module does not need it

    import model

    packages = ("tensorflow", "keras", "numpy", "sentencepiece", "sacrebleu")
    return {
        "commit": git("rev-parse", "HEAD").strip() or None,
        "uncommitted": git("status", "--porcelain").splitlines(),
        "command": [sys.executable, *sys.argv],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "model_from": str(Path(model.__file__).resolve().parent),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "gpus": len(tf.config.list_physical_devices("GPU")),
        },
    }


def git(*arguments: str, **environment: str) -> str:
    """Run git in the project's root and return its output.

    Returns "" without git, or if the root is not a checkout of the project. The source directory
    of a run is not one, though it may lie in one.
    """

    def run(*words, **more):
        command = ["git", "-C", str(ROOT), *words]
        env = os.environ | more
        return subprocess.run(command, capture_output=True, check=True, env=env).stdout

    try:
        run("ls-files", "--error-unmatch", "train.py")
        return run(*arguments, **environment).decode("utf-8", "replace")
    except (OSError, subprocess.CalledProcessError):
        return ""


def working_tree_diff(git: Callable[..., str], *paths: str) -> str:
    """Return the diff of the working tree, new files included, against the last commit.

    git: a function that runs git with arguments and environment variables. paths: git pathspecs.
    The user's git configuration has no effect, and the index does not change.
    """
    options = ["--no-color", "--no-ext-diff", "--no-textconv", "--unified=3", "--binary"]
    settings = ["-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"]
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git("read-tree", "HEAD", **index)
        git("add", "--intent-to-add", "--", ".", **index)
        return git(*settings, "diff", *options, "HEAD", "--", *paths, **index)


def source_diff() -> str:
    """Return the diff of the project's source against the commit, "" if there is none."""
    patterns = (f":(glob){pattern}" for pattern in SOURCE)
    return working_tree_diff(git, *patterns)


def copy_source(folder: Path) -> None:
    """Copy the project's source files to a directory. A corpus in data/ is not one of them."""
    for path in (path for pattern in SOURCE for path in ROOT.glob(pattern)):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def normalized_code(path: Path) -> str:
    """Return the code of a Python file. Comments, docstrings and layout changes are ignored.

    A missing file is the same as an empty one.
    """
    text = path.read_bytes() if path.exists() else b""
    try:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                if isinstance(getattr(body[0].value, "value", None), str):
                    del body[0]
        return ast.unparse(tree)  # the same text in every version of Python
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return repr(text)


def fingerprint(folder: str | Path = ROOT) -> str:
    """Return a hash of the code in a directory. See `normalized_code` for what is ignored."""
    folder, digest = Path(folder), hashlib.sha256()
    for path in sorted({path for pattern in SOURCE for path in folder.glob(pattern)}):
        name = path.relative_to(folder).as_posix()
        if name.startswith(("model/", "data/", "training/", "evaluation/")) or name.count("/") == 0:
            code = normalized_code(path).encode() if path.suffix == ".py" else path.read_bytes()
            digest.update(name.encode() + hashlib.sha256(code).digest())
    return digest.hexdigest()


def changed_files(one: str | Path, other: str | Path, *parts: str) -> list[str]:
    """Return the sorted names of the Python files whose code differs between two directories.

    parts: the files and packages to compare.
    """
    one, other, names = Path(one), Path(other), set()
    for folder, part in itertools.product((one, other), parts):
        files = [folder / part] if part.endswith(".py") else (folder / part).rglob("*.py")
        names |= {path.relative_to(folder).as_posix() for path in files}
    return sorted(
        name for name in names if normalized_code(one / name) != normalized_code(other / name)
    )
