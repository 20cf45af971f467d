"""Record the source, commit and versions of a run."""

import os
import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path

from same_code import ROOT, git, is_checkout, working_tree_diff

PACKAGES = ("model", "data", "training", "evaluation", "experiments", "benchmarks", "tests", "docs")
SOURCE = ["*.py", "*.cfg", "*.toml", "*.md", "constraints.txt", "data/mini/*.tsv"]
SOURCE += [f"{p}/**/*.{kind}" for p in PACKAGES for kind in ("py", "md", "html", "patch")]


def provenance() -> dict:
    """Return the commit, command, versions and host."""
    import tensorflow as tf  # the rest of this module does not need it

    import model

    checkout = is_checkout()
    packages = ("tensorflow", "keras", "numpy", "sentencepiece", "sacrebleu")
    return {
        "commit": git("rev-parse", "HEAD").strip() if checkout else None,
        "uncommitted": git("status", "--porcelain").splitlines() if checkout else [],
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


def source_diff() -> str:
    """Return the diff of the project's source against the commit; "" if there is none."""
    patterns = (f":(glob){pattern}" for pattern in SOURCE)
    return working_tree_diff(*patterns) if is_checkout() else ""


def copy_source(folder: Path) -> None:
    """Copy the project's source files to a directory. A corpus in data/ is not one of them."""
    for path in (path for pattern in SOURCE for path in ROOT.glob(pattern)):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
