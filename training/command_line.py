"""The command line of train.py. Does not import TensorFlow."""

import dataclasses
import signal
import sys
from pathlib import Path

from config import MAY_CHANGE_ON_RESUME, OF_THE_MODEL, Config, no_effect
from data import corpora
from training.records import check_path, find_run, load_config, saved_checkpoints
from utils import (
    UserError,
    add_flags,
    errors_in_one_line,
    flag,
    make_parser,
    prepare_streams,
    print_line,
    quote,
)


def resume_config(flags: dict) -> Config:
    """Return the Config of the run that `--resume` names, with the flags that may change.

    flags: the flags given on the command line, including "resume". Raises UserError if another
    flag differs from the run's, unless `--accept-changes` is given.
    """
    run = load_config(flags["resume"])
    # Not the recorded directories: the run may have been moved.
    flags = {"runs_dir": Config.runs_dir, "cache_dir": Config.cache_dir} | flags
    if flags.get("epochs", 0) > run.epochs:  # the recorded limit would stop it earlier
        flags = {"max_steps": None} | flags
    for name, value in flags.items():
        changed = value != getattr(run, name) and name not in MAY_CHANGE_ON_RESUME
        if changed and not flags.get("accept_changes"):
            raise UserError(
                f"{flags['resume']} was trained with {flag(name)} {getattr(run, name)}, not "
                f"{value}: leave the flag out, start a new run, or give --accept-changes"
            )
    return dataclasses.replace(run, **flags)


def initial_config(flags: dict) -> Config:
    """Return the Config of a new run with the model of the run that `--init-from` names.

    flags: as of `resume_config`. Raises UserError if one of them contradicts that model.
    """
    run = load_config(flags["init_from"])
    names = OF_THE_MODEL + (("max_length",) if run.positions == "learned" else ())
    defaults = ["corpus", "max_length"]
    if corpora.is_same(flags.get("corpus", run.corpus), run.corpus):
        names += ("held_out_share",)  # no text that it was trained on may validate
        if not flags.keys() & {"languages", "reverse"}:
            defaults += ["languages", "reverse"]
    model = {name: getattr(run, name) for name in names}
    for name in flags.keys() & model.keys():
        if flags[name] != model[name]:
            raise UserError(
                f"{flag(name)} {flags[name]}: {flags['init_from']} has {model[name]}; leave the "
                "flag out, or train without --init-from"
            )
    return Config(**{name: getattr(run, name) for name in defaults} | model | flags)


def parse_config(description: str) -> Config:
    """Parse the command line of a training program. A mistake exits with one line and status 2.

    Call this before importing TensorFlow, so that `--help` and mistakes are answered at once. From
    here on, Ctrl-C exits with status 130 instead of a traceback.
    """
    prepare_streams()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    parser = make_parser(description, usage="%(prog)s [FLAG ...]")
    add_flags(parser, Config)
    flags = vars(parser.parse_args())
    with errors_in_one_line():
        config = config_from_flags(flags)
        corpora.from_config(config)
    return config


def config_from_flags(flags: dict) -> Config:
    """Return the Config for the flags given on a command line. Raises UserError and OSError."""
    if "resume" in flags and "init_from" in flags:
        raise UserError(f"--resume {flags['resume']}: remove --init-from, which starts a new run")
    for name in flags.keys() & {"resume", "init_from"}:
        flags[name] = str(find_run(flags[name]))
    if "resume" in flags:
        config = resume_config(flags)
    else:
        config = initial_config(flags) if "init_from" in flags else Config(**flags)
    run = Path(config.runs_dir, config.name or "")
    check_path(run)
    if config.name and not config.resume and run.exists():
        saved = saved_checkpoints(run / "checkpoints")
        hint = f", or use --resume {quote(run)}" if saved else "; it has no checkpoint to resume"
        raise UserError(f"{run} exists: choose another --name{hint}")
    for name in no_effect(config.model):
        if name in flags and getattr(config, name) != getattr(Config, name):
            print_line(f"note: {flag(name)} has no effect with --model {config.model}")
    if not config.resume:
        Path(config.runs_dir).mkdir(parents=True, exist_ok=True)
    Path(config.cache_dir).mkdir(parents=True, exist_ok=True)
    return config
