"""Where a run came from: source, commit, versions; and whether code is still the same."""

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
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SOURCE = (
    "*.py",
    "*.cfg",
    "*.toml",
    "*.md",
    "model",
    "data",
    "training",
    "evaluation",
    "experiments",
    "benchmarks",
    "tests",
)


def provenance():
    """Commit, command, versions and host, as a dict."""
    import tensorflow as tf  # here, so that the rest needs none of it

    import model  # asked, not assumed

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


def git(*arguments, **environment):
    """What git says in the project's own folder; "" where this is no checkout of the project (a
    run's source lies inside of one, but is none), or where there is no git.
    """

    def ask(*words, **more):
        command = ["git", "-C", str(HERE), *words]
        env = os.environ | more
        return subprocess.run(command, capture_output=True, check=True, env=env).stdout

    try:
        ask("ls-files", "--error-unmatch", "train.py")
        return ask(*arguments, **environment).decode("utf-8", "replace")
    except (OSError, subprocess.CalledProcessError):
        return ""


def edits(git, *paths):
    """The working tree against the last commit, as a diff. New files are part of it, and the user's
    own settings of git are not.

    git: asks it, given words and variables of the environment; paths: git's patterns.
    """
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}  # the user's own stays as it is
        git("read-tree", "HEAD", **index)
        git("add", "--intent-to-add", "--", ".", **index)
        return git(
            "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "diff", "--no-color",
            "--no-ext-diff", "--no-textconv", "--unified=3", "--binary", "HEAD", "--", *paths,
            **index,
        )  # fmt: skip


def source_diff():
    """The project's own source against the commit; "" where there is none."""
    return edits(git, *(f":(glob){pattern}" for pattern in SOURCE), ":(exclude)*.png")


def copy_source(folder):
    """The project's own files, and nothing that came later, into a folder."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.png")
    for path in (found for pattern in SOURCE for found in sorted(HERE.glob(pattern))):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=ignored)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy2(path, folder)


def code(path):
    """What a Python file does, as text: neither comments nor docstrings nor layout count.

    A file that is not there does what an empty one does.
    """
    text = path.read_bytes() if path.exists() else b""
    try:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                if isinstance(getattr(body[0].value, "value", None), str):
                    del body[0]
        return ast.unparse(tree)  # as text it is the same to each version of Python
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return repr(text)


def fingerprint(folder=HERE):
    """A hash of what the code in a folder does: comments, docstrings and layout do not count."""
    folder, digest = Path(folder), hashlib.sha256()
    files = {
        path
        for room in ("model", "data", "training", "evaluation")
        for path in (folder / room).rglob("*")
    }
    for path in sorted(files | set(folder.glob("*.py"))):
        if path.is_file() and "__pycache__" not in path.parts:
            text = code(path).encode() if path.suffix == ".py" else path.read_bytes()
            digest.update(
                path.relative_to(folder).as_posix().encode() + hashlib.sha256(text).digest()
            )
    return digest.hexdigest()


def changed(one, other, *rooms):
    """The Python files that do not do the same in two folders: names, sorted.

    rooms: what is compared, files and folders in both.
    """
    names = set()
    for folder, room in itertools.product((Path(one), Path(other)), rooms):
        inside = (folder / room).rglob("*.py") if (folder / room).is_dir() else [folder / room]
        names |= {path.relative_to(folder).as_posix() for path in inside}
    return sorted(name for name in names if code(one / name) != code(other / name))
