"""JSON files of a run directory, and the Config of a run, from there or from the command line.

Does not import TensorFlow.
"""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from config import (
    MAY_CHANGE_ON_RESUME,
    NOT_APPLICABLE,
    Config,
    UserError,
    add_flags,
    fail,
    flag,
    make_parser,
)
from data import pipeline


class RunError(UserError):
    """A run cannot start or resume."""


class Diverged(RunError):
    """The loss, the gradient or a weight is not finite."""


def read_json(path: str | Path) -> dict:
    """Read a JSON object from a file. Raises OSError, and UserError if the file is damaged."""
    return parse_object(Path(path).read_bytes(), str(path))


def read_json_lines(path: str | Path) -> list[dict]:
    """Read a file with one JSON object per line. Raises OSError and UserError.

    A last line without a newline is still being written and is left out.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
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


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically. Raises OSError."""
    path = Path(path)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(unfinished, path)


def load_config(run: str | Path) -> Config:
    """Load the Config of a run directory. Raises UserError."""
    path = Path(run) / "config.json"
    if not Path(run).exists():
        raise UserError(f"{run}: no such run directory")
    if not path.exists():
        note = "; it was never started and can be deleted" if Path(run, "source").exists() else ""
        raise UserError(f"{run}: not a run directory (no config.json){note}")
    try:
        values = parse_object(path.read_bytes(), "it")
        known = {field.name for field in dataclasses.fields(Config)}
        if unknown := sorted(values.keys() - known):
            raise UserError(
                f"unknown settings {', '.join(unknown)}; use the code in {run}/source instead"
            )
        return Config(**values)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be used: {' '.join(str(error).split())}") from None


def resume_config(flags: dict) -> Config:
    """Return the Config of the run that `--resume` names, with the flags that may change.

    flags: the flags given on the command line, including "resume". Raises UserError if another
    flag differs from the run's, unless `--accept-changes` is given.
    """
    run = load_config(flags["resume"])
    flags = {"runs_dir": Config.runs_dir, "cache_dir": Config.cache_dir} | flags
    for name, value in flags.items():
        changed = value != getattr(run, name) and name not in MAY_CHANGE_ON_RESUME
        if changed and not flags.get("accept_changes"):
            raise UserError(
                f"{flags['resume']} was trained with {flag(name)} {getattr(run, name)}, not "
                f"{value}: leave the flag out, start a new run, or give --accept-changes"
            )
    return dataclasses.replace(run, **flags)


def parse_config(description: str) -> Config:
    """Parse the command line of a training program. A mistake exits with one line and status 2.

    Call this before importing TensorFlow, so that `--help` and mistakes are answered at once. From
    here on, Ctrl-C exits with status 130 instead of a traceback.
    """
    sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    parser = make_parser(description, usage="%(prog)s [FLAG ...]")
    add_flags(parser, Config)
    flags = vars(parser.parse_args())
    try:
        config = config_from_flags(flags)
        for folder in config.runs_dir, config.cache_dir:
            Path(folder).mkdir(parents=True, exist_ok=True)
        return config
    except (UserError, OSError) as error:
        fail(error)


def config_from_flags(flags: dict) -> Config:
    """Return the Config for the flags given on a command line. Raises UserError and OSError."""
    config = resume_config(flags) if "resume" in flags else Config(**flags)
    run = Path(config.runs_dir, config.name or "")
    if config.name and not config.resume and run.exists():
        raise UserError(f"{run} already exists: choose another --name, or use --resume {run}")
    for name in NOT_APPLICABLE[config.model]:
        if name in flags and getattr(config, name) != getattr(Config, name):
            print(f"note: {flag(name)} has no effect with --model {config.model}", file=sys.stderr)
    pipeline.check(config)
    return config
