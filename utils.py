"""Helpers of all programs: errors in one line, dataclasses as flags, JSON files and file locks."""

import argparse
import contextlib
import dataclasses
import difflib
import errno
import functools
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, NoReturn, TextIO

try:
    import filelock
    from tqdm import tqdm

    if not importlib.util.find_spec("tensorflow"):  # which is imported later
        raise ModuleNotFoundError(name="tensorflow")
except ModuleNotFoundError as error:
    print(f"error: {error.name} is not installed: run pip install -e .", file=sys.stderr)
    sys.exit(2)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported


class UserError(ValueError):
    """An expected error, in one sentence that says what to do. Programs print it and exit."""


def setting(
    default: Any,
    text: str,
    low: float = 1,
    high: float = 2**31,
    group: str | None = None,
    ignored_by: Sequence[str] = (),
    resume: bool = False,
) -> Any:
    """Return a dataclass field with a default value and the help text of its flag.

    low, high: minimum and exclusive maximum of a number, which `Config` checks. group: if
    given, the flag starts a group with this title in --help. ignored_by: the values of --model
    with which it has no effect. resume: whether it may change with --resume.
    """
    limits = {"low": low, "high": high, "group": group, "ignored_by": ignored_by, "resume": resume}
    return dataclasses.field(default=default, metadata={"help": text, **limits})


def names_in_group(settings: type, title: str) -> list[str]:
    """Return the names of the fields of a dataclass of `setting`s in a group of flags."""
    group, names = None, []
    for field in dataclasses.fields(settings):
        group = field.metadata["group"] or group
        if group == title:
            names.append(field.name)
    return names


def flag(name: str) -> str:
    """Return the flag of a field, such as `--num-layers`."""
    return "--" + name.replace("_", "-")


def positive(text: str) -> int:
    """Parse a positive integer, as an argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def check_settings(settings: Any) -> None:
    """Raise UserError if a field of a dataclass of `setting`s has an invalid value."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        low, high, wrong = field.metadata["low"], field.metadata["high"], None
        if typing.get_origin(hint) is Literal:
            if value not in typing.get_args(hint):
                wrong = f"choose from {', '.join(typing.get_args(hint))}"
        elif not isinstance(value, hint | int if "float" in str(hint) else hint):
            wrong = f"must be of type {getattr(hint, '__name__', hint)}"
        elif isinstance(value, int | float) and hint is not bool and not low <= value < high:
            wrong = f"must be at least {low:,} and less than {high:,}"
        if wrong:
            raise UserError(f"{flag(field.name)} {value!r}: {wrong}")


def prepare_streams() -> None:
    """Print in UTF-8. The streams of a notebook, which are not files, are left as they are."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def handle_signals() -> None:
    """Print in UTF-8; end without a traceback at Ctrl-C, or when output is no longer read."""
    prepare_streams()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextlib.contextmanager
def exit_at_ctrl_c() -> Iterator[None]:
    """End the process at Ctrl-C at once, without waiting for threads."""
    handler = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def did_you_mean(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return a hint with the names that `name` resembles, at most `most`, or an empty text."""
    close = difflib.get_close_matches(name, names, most, 0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def make_parser(description: str, **options) -> argparse.ArgumentParser:
    """Create an argument parser that reports a mistake in one line, with exit status 2."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False, **options)

    def error(message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--?[\w-]{3,})", message)
        flags = re.findall(r"--[\w-]+", parser.format_help())
        message += did_you_mean(unknown[1], flags) if unknown else ""
        fail(message.removeprefix("argument "))

    parser.error = error
    return parser


def add_flags(
    parser: argparse.ArgumentParser, settings: type, leave_out: Sequence[str] = ()
) -> None:
    """Add a flag for each field of a dataclass of `setting`s. Parsing omits flags not given."""
    hints, group = typing.get_type_hints(settings), parser
    for field in dataclasses.fields(settings):
        if title := field.metadata["group"]:
            group = parser.add_argument_group(title)
        if field.name in leave_out:
            continue
        hint, text = hints[field.name], field.metadata["help"].replace("%", "%%")
        options = {"help": text if field.default is None else f"{text} [{field.default}]"}
        if hint is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(hint) is Literal:
            options["choices"] = typing.get_args(hint)
        else:
            kind = (typing.get_args(hint) or (hint,))[0]
            options |= {"type": kind, "metavar": kind.__name__.upper()}
        group.add_argument(flag(field.name), default=argparse.SUPPRESS, **options)


def amount(number: float, noun: str) -> str:
    """Return a whole number with a noun: "1 core", "2,000 steps"."""
    return f"{number:,.0f} {noun}{'' if round(number) == 1 else 's'}"


def first_line(error: object) -> str:
    """Return the first line of an error message, without TensorFlow's tags and final period."""
    text = re.sub(r"\{\{.*?\}\}\s*", "", str(error)).strip()
    return (text or type(error).__name__).splitlines()[0].rstrip(" :.")


def quote(path: str | Path) -> str:
    """Return a path as it must be typed in a shell. Windows takes slashes, too."""
    return shlex.quote(path.as_posix() if isinstance(path, PurePath) else path)


class LogBar(tqdm):
    """A progress bar in a log: each of its states is a line."""

    def display(self, *_, **__) -> None:
        """Print the state."""
        print_line(str(self))


def progress_bar(items: Iterable | None = None, **options) -> tqdm:
    """Show progress on standard error: a bar on a terminal, or a line every 30 seconds in a log.

    Print with `print_line` meanwhile. options: those of `tqdm`.
    """
    if sys.stderr.isatty():
        return tqdm(items, **{"leave": False, "mininterval": 0.5} | options)
    intervals = {"mininterval": 30, "maxinterval": 30, "delay": 30}
    file = io.StringIO()  # nothing is written to it, and `tqdm.write` leaves the bar alone
    return LogBar(items, file=file, **intervals | options)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print a text above the progress bars, on standard error by default.

    Errors are ignored: a closed pipe or terminal must not end the work.
    """
    file = file or sys.stderr
    with contextlib.suppress(OSError):
        tqdm.write(text, file=file)
        file.flush()


@functools.cache
def warn(message: str) -> None:
    """Print a warning on standard error. The same one is printed once."""
    print_line(f"warning: {message}")


def write_text(path: str | Path, text: str) -> None:
    """Write a file atomically: a full disk leaves the old one. Raises OSError."""
    unfinished = Path(f"{path}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, "utf-8", newline="\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: str | Path, value: object) -> None:
    """Write a JSON file atomically. Raises OSError."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def fail(error: object, status: int = 2) -> NoReturn:
    """Print one line on standard error and exit. Status: see docs/faq.md."""
    if isinstance(error, OSError) and error.filename:
        # filename2 is the file that a copy writes.
        error = f"{error.filename2 or error.filename}: {error.strerror}"
    print_line(f"error: {' '.join(str(error).split())}")
    raise SystemExit(status)


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Exit with `fail` after a UserError or an OSError, which are expected."""
    try:
        yield
    except (UserError, OSError) as error:
        fail(error)


def lock(path: Path, wait: str | None = None) -> filelock.AcquireReturnProxy:
    """Lock a file for a `with` statement, or until `.lock.release()` of the result.

    Raises BlockingIOError if another process has it. wait: if given, print this message and wait
    instead.
    """
    held = filelock.FileLock(path, thread_local=False)
    try:
        return held.acquire(timeout=0)
    except filelock.Timeout:
        if wait is None:
            raise BlockingIOError(errno.EAGAIN, "in use by another process", str(path)) from None
        print_line(wait)
        return held.acquire()
