"""Write the files that describe a run; on resume, check that corpus and code are unchanged."""

import contextlib
import dataclasses
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from tensorboard.plugins.hparams import summary_v2 as hparams  # `api` imports Keras, too

from config import MAY_CHANGE_ON_RESUME, Config
from data import tokenizer
from data.pipeline import Dataset
from same_code import (
    PACKAGES,
    ROOT,
    GitError,
    changed_files,
    copy_files,
    git,
    source_files,
    working_tree_diff,
)
from training import records
from training.records import RunError
from utils import quote, warn, write_json


def name_of(config: Config) -> str:
    """Return the name of a new run: by default, its corpus, model, seed, time and process."""
    if config.name:
        return config.name
    # A path may be longer than a name can be.
    corpus = re.sub(r"[^\w.+-]+", "-", config.corpus)[-40:].strip("-.+") or "corpus"
    when = time.strftime("%Y%m%d-%H%M%S")
    return f"{corpus}-{config.model}-seed{config.seed}-{when}-{os.getpid()}"


def settings(run: Path, config: Config) -> dict:
    """Return the contents of config.json. A run that was renamed keeps its name there."""
    transient = {"name": config.name or run.name, "resume": None, "accept_changes": False}
    return dataclasses.asdict(config) | transient


def write(run: Path, config: Config, dataset: Dataset) -> None:
    """Describe a new run. config.json comes last: with it, a run directory is complete."""
    write_source(run)
    tokenizer.save_pair(run, dataset.source_tokenizer, dataset.target_tokenizer)
    write_json(run / "corpus.json", dataset.corpus_info)
    values = settings(run, config)
    write_json(run / "config.json", values)
    ignored = (*MAY_CHANGE_ON_RESUME, "name")
    values = {k: v for k, v in values.items() if k not in ignored and v is not None}
    # Events in the run directory itself would appear in TensorBoard as another, empty run.
    with tf.summary.create_file_writer(str(run / "validation")).as_default():
        hparams.hparams(values, trial_id=run.name)


def write_source(run: Path) -> None:
    """Write the source that runs, its diff against the commit, the command, versions and host."""
    files = source_files()
    copy_files(files, run / "source")
    commit, diff = checkout_state(files)
    (run / "source.diff").write_text(diff, "utf-8", newline="\n")  # for git
    record = {
        "commit": commit,
        "command": [sys.executable, *sys.argv],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "gpus": len(tf.config.list_physical_devices("GPU")),
        },
    }
    write_json(run / "provenance.json", record)


def checkout_state(names: Iterable[str]) -> tuple[str | None, str]:
    """Return the commit, and the diff of the source against it.

    names: those of `source_files`. Without a usable git checkout, the commit is None.
    """
    deleted = ("*.py", *(f"{package}/**/*.py" for package in PACKAGES))
    paths = [f":(glob){pattern}" for pattern in deleted] + [f":(literal){name}" for name in names]
    try:
        git("ls-files", "--error-unmatch", "train.py")  # the source of a run may lie in a checkout
        return git("rev-parse", "HEAD").strip(), working_tree_diff(*paths)
    except GitError as error:
        if (ROOT / ".git").exists():
            warn(f"the run's record of the code is incomplete, because {error}")
        return None, ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    names = ("numpy", "sentencepiece", "sacrebleu")
    python = {"python": platform.python_version(), "tensorflow": tf.__version__}
    return python | {name: metadata.version(name) for name in names}


def check_corpus(run: Path, config: Config, dataset: Dataset) -> None:
    """Raise RunError if the data or the tokenizers are not those that the run began with."""

    def identity(info, tokenizers):
        hashes = {name: split["sha256"] for name, split in info["splits"].items()}
        return info["languages"], hashes, [tokenizer.model for tokenizer in tokenizers]

    info = records.read_json(run / "corpus.json", "splits", "languages")
    recorded = identity(info, tokenizer.load_pair(run))
    tokenizers = (dataset.source_tokenizer, dataset.target_tokenizer)
    if identity(dataset.corpus_info, tokenizers) != recorded:
        raise RunError(
            f"{config.corpus} is not the corpus that {run} was trained on: its texts or its "
            "tokenizer differ; restore the old ones, or start a new run"
        )


def check_code(run: Path, accept_changes: bool) -> bool:
    """Return whether the code has changed. Raises RunError if it has, unless that is accepted."""
    source = run / "source"
    if not source.exists() and not accept_changes:
        raise RunError(f"{source} is missing: restore it, or use --accept-changes")
    path = run / "provenance.json"
    recorded = records.read_json(path).get("versions", {}) if path.exists() else {}
    for name, version in versions().items():
        if recorded.get(name, version) != version and name != "sacrebleu":
            warn(f"{run} began with {name} {recorded[name]}, this is {version}: updates may differ")
    names = changed_files("training", source)
    if names and not accept_changes:
        raise RunError(
            f"{names[0]} has changed since {run} was started: resume with the run's own code, "
            f"python {quote(source / 'train.py')} --resume {quote(run)}, or with --accept-changes"
        )
    return bool(names)


def update(run: Path, config: Config, code_changed: bool) -> None:
    """Write the settings of a resumed run. If settings or code changed, keep the old ones."""
    values, path = settings(run, config), run / "config.json"
    before = records.read_json(path)
    changed = [name for name, value in values.items() if before.get(name, value) != value]
    if code_changed or not {*MAY_CHANGE_ON_RESUME, "name"}.issuperset(changed):
        suffix = time.strftime(".until-%Y%m%d-%H%M%S")
        shutil.copy2(path, f"{path}{suffix}")  # not renamed, in case this is interrupted
        if ROOT != (run / "source").resolve():  # otherwise, this is the run's own code
            for name in ("source", "source.diff", "provenance.json"):
                with contextlib.suppress(FileNotFoundError):  # interrupted here before
                    (run / name).rename(run / (name + suffix))
            write_source(run)
    write_json(path, values)
