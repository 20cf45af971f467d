"""Run a program of the project as if the system were not Linux.

    python tests/not_linux.py FOLDER PROGRAM [FLAG ...]

PROGRAM: a file such as train.py, or a package such as data. It runs without the modules, functions
and signals that Windows lacks, macOS lacks, or both, and without /proc. As on Windows, text files
have the encoding cp1252 and the line end CR LF unless the program names others, and a file below
FOLDER cannot be renamed or deleted while this process has it open.

What is not simulated: paths with backslashes and drive letters, console events instead of signals,
and what the libraries do on such a system.
"""

import builtins
import contextlib
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


def used_paths() -> set[str]:
    """Return the paths that this process has open or has mapped into memory."""
    paths = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the directory itself
            paths.add(os.readlink(f"/proc/self/fd/{number}"))
    maps = os.open("/proc/self/maps", os.O_RDONLY)
    with open(maps, encoding="utf-8") as lines:
        paths |= {line.split(maxsplit=5)[-1].rstrip("\n") for line in lines}
    return paths


def watch_files(folder: Path) -> None:
    """Hide /proc, and let open files below `folder` stay where they are."""
    folder, looking = os.path.realpath(folder), False

    def hook(event, arguments):
        nonlocal looking
        if looking:
            return
        if event == "open" and str(arguments[0]).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])
        if event in ("os.rename", "os.remove", "os.rmdir"):
            looking = True
            try:
                for path in map(os.path.realpath, arguments[: 1 + (event == "os.rename")]):
                    used = {x for x in used_paths() if x == path or x.startswith(path + os.sep)}
                    if path.startswith(folder) and used:
                        raise PermissionError(13, "a process uses the file", used.pop())
            finally:
                looking = False

    sys.addaudithook(hook)


if __name__ == "__main__":
    folder, program, *flags = sys.argv[1:]
    take_away()
    open_as_windows()
    watch_files(Path(folder))
    sys.path[0] = str(ROOT)
    sys.argv = [program, *flags]
    if program.endswith(".py"):
        runpy.run_path(str(ROOT / program), run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
