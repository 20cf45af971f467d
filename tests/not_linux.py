"""Run a program of the project as if the system were not Linux.

    python tests/not_linux.py PROGRAM [FLAG ...]

PROGRAM, such as train.py, runs without the modules, functions and signals that Windows or macOS
lacks. As on Windows, text files have the encoding cp1252 and the line end CR LF unless the program
names others. The libraries behave as on Linux.
"""

import builtins
import ctypes
import io
import os
import runpy
import signal
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ABSENT = {
    "os": "fork getloadavg getuid killpg nice pread sched_getaffinity sched_setaffinity setsid "
    "statvfs mkfifo uname posix_fadvise sendfile wait",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGUSR1 "
    "SIGUSR2",
}
MODULES = "fcntl grp posix pwd resource syslog termios".split()


def from_project(variables: dict | None) -> bool:
    """Return whether global variables are those of a module of the project, not of a library."""
    path = Path((variables or {}).get("__file__") or "/")
    return path.is_relative_to(ROOT) and "site-packages" not in path.parts


def take_away() -> None:
    """Hide modules, functions and signals from the project. Libraries know where they run."""
    import_module = builtins.__import__

    def import_present(name, variables=None, *rest, **options):
        if name in MODULES and from_project(variables):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return import_module(name, variables, *rest, **options)

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            absent = ABSENT[super().__getattribute__("__name__")]
            if name in absent.split() and from_project(sys._getframe(1).f_globals):
                raise AttributeError(f"no attribute {name!r}")
            return super().__getattribute__(name)

    class Library(ctypes.CDLL):
        def __init__(self, name, *rest, **options):
            if name is None and from_project(sys._getframe(1).f_globals):
                raise TypeError("argument of type 'NoneType' is not iterable")
            super().__init__(name, *rest, **options)

    class PythonOnly:
        def __getattr__(self, name, python=ctypes.pythonapi):
            if not name.startswith("Py"):
                raise AttributeError(f"function {name!r} not found")
            return getattr(python, name)

    builtins.__import__ = import_present
    os.__class__ = signal.__class__ = Module
    ctypes.CDLL, ctypes.pythonapi = Library, PythonOnly()


def open_as_windows() -> None:
    """Let text files have the encoding and the line ends of Windows by default."""
    open_file = io.open

    def windows_open(
        file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *rest, **options
    ):
        if "b" not in mode:
            encoding = "cp1252" if encoding in (None, "locale") else encoding
            newline = "\r\n" if newline is None and mode.strip("tr") else newline
        return open_file(file, mode, buffering, encoding, errors, newline, *rest, **options)

    builtins.open = io.open = windows_open


if __name__ == "__main__":
    program, *flags = sys.argv[1:]
    take_away()
    open_as_windows()
    sys.path[0] = str(ROOT)
    sys.argv = [program, *flags]
    runpy.run_path(str(ROOT / program), run_name="__main__")
