"""The files of a run directory, and the errors of a run. Does not import TensorFlow."""

import dataclasses
import json
import re
from pathlib import Path

from config import Config
from utils import UserError, amount, did_you_mean, quote

UNFINISHED = "unfinished"  # the folder of the checkpoint within an epoch


class RunError(UserError):
    """A run cannot start, resume or save."""


class Diverged(RunError):
    """The loss, the gradient or a weight is not finite."""


def read_json(path: str | Path, *keys: str) -> dict:
    """Read a JSON object from a file. Raises OSError, and UserError if it is damaged.

    keys: it is damaged without them.
    """
    value = parse_object(Path(path).read_bytes(), str(path))
    if missing := [key for key in keys if key not in value]:
        raise UserError(f"{path} is damaged: it has no {missing[0]!r}")
    return value


def read_json_lines(path: str | Path) -> list[dict]:
    """Read a file with one JSON object per line. Raises OSError and UserError."""
    lines = Path(path).read_bytes().splitlines()
    return [parse_object(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def parse_object(text: bytes, name: str) -> dict:
    """Parse a JSON object. `name` is used in error messages. Raises UserError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{name}: not a JSON object")
    return value


def check_path(run: str | Path) -> None:
    """Raise UserError if TensorFlow cannot read checkpoints there: its paths are patterns."""
    if re.search(r"[\[*?\\\ud800-\udfff]", Path(run).as_posix()):
        raise UserError(
            f"{run}: TensorFlow cannot read checkpoints if their path contains [ * ? or \\, or is "
            "not UTF-8: rename the directory, or give a relative path"
        )


def find_run(path: str | Path) -> Path:
    """Return the path of a run directory. RUNS/latest: the one of RUNS started or resumed last."""
    path = Path(path)
    if path.name != "latest" or path.exists():
        return path
    started = {file.parent: file.stat().st_mtime for file in path.parent.glob("*/config.json")}
    return max(started, key=started.get, default=path)


def load_config(run: str | Path) -> Config:
    """Load the Config of a run directory. Raises OSError and UserError."""
    check_path(run)
    path = Path(run) / "config.json"
    if not path.exists():
        runs = [each.parent.name for each in Path(run).parent.glob("*/config.json")]
        hint = did_you_mean(Path(run).name, runs)
        raise UserError(f"{run}: not a run directory (no config.json){hint}")
    values = read_json(path)
    known = {field.name for field in dataclasses.fields(Config)}
    if unknown := sorted(values.keys() - known):
        raise UserError(f"{path}: unknown settings {unknown}: use the code in {run}/source instead")
    try:
        return Config(**values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def checkpoint_folder(run: str | Path, checkpoint: str = "last", average: int = 1) -> Path:
    """Return the directory of the `last` checkpoints of a run, or of the `best` one.

    Raises UserError if it has fewer than `average`, not counting the initial weights; the best one
    cannot be averaged.
    """
    if checkpoint == "best" and average > 1:
        raise UserError("there is one best checkpoint: give either --checkpoint best or --average")
    folder = Path(run, "checkpoints", "best" if checkpoint == "best" else "")
    paths = saved_checkpoints(folder)
    if average > 1:
        paths = [x for x in paths if checkpoint_step(x) > 0 and x.parent.name != UNFINISHED]
    resume = f"python train.py --resume {quote(run)}"
    if not paths and average == 1:
        more = saved_checkpoints(Path(run, "checkpoints"))
        hint = f"continue training with {resume}" if more else "start a new run"
        raise UserError(f"{folder} has no checkpoint: {hint}")
    if len(paths) < average:
        text = (
            f"{folder} has {amount(len(paths), 'finished epoch')}, fewer than --average {average}"
        )
        more = f"{resume} --epochs N, which keeps --keep-checkpoints of them"
        raise UserError(f"{text}: lower --average, or train longer with {more}")
    return folder


def saved_checkpoints(folder: str | Path) -> list[Path]:
    """Return the paths of all checkpoints of a directory, without `.index`, oldest first.

    Those of checkpoints/ include the one that was saved within an epoch: see `Checkpoints`.
    """
    names = ("ckpt-*.index", f"{UNFINISHED}/ckpt-*.index")
    paths = (path.with_suffix("") for name in names for path in Path(folder).glob(name))
    return sorted(paths, key=checkpoint_step)


def checkpoint_step(path: str | Path) -> int:
    """Return the step of a checkpoint, such as 7 for ckpt-7, or −1 for other names."""
    match = re.fullmatch(r"ckpt-(\d+)", Path(path).name)
    return int(match[1]) if match else -1
