"""Where a run came from: source, commit, versions; and whether code is still the same."""

import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = ("*.py", "*.cfg", "*.toml", "*.md", "model", "data", "evaluation", "experiments",
          "benchmarks", "tests")  # fmt: skip


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


def git(*arguments):
    """What git says in the project's own folder; "" where there is no checkout or no git."""
    command = ["git", "-C", str(HERE), *arguments]
    try:
        said = subprocess.run(command, capture_output=True, check=True).stdout
        return said.decode("utf-8", "replace")
    except (OSError, subprocess.CalledProcessError):
        return ""


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
        path for room in ("model", "data", "evaluation") for path in (folder / room).rglob("*")
    }
    for path in sorted(files | set(folder.glob("*.py"))):
        if path.is_file() and "__pycache__" not in path.parts:
            text = code(path).encode() if path.suffix == ".py" else path.read_bytes()
            digest.update(
                path.relative_to(folder).as_posix().encode() + hashlib.sha256(text).digest()
            )
    return digest.hexdigest()


def changed(one, other):
    """The Python files of two folders that do not do the same: names, sorted."""
    names = {path.name for folder in (one, other) for path in folder.glob("*.py")}
    return sorted(name for name in names if code(one / name) != code(other / name))
