"""Paths of Windows, and file locks."""

import subprocess
import sys
import threading
from pathlib import Path, PureWindowsPath

import pytest

from same_code import ROOT
from training.records import check_path
from utils import UserError, lock, quote

HOLD = """
import sys
from pathlib import Path
from utils import lock

held = lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_paths_of_windows_are_accepted_and_printed_with_slashes():
    check_path(PureWindowsPath(r"runs\mini-0"))
    assert quote(PureWindowsPath(r"C:\runs\mini-0")) == "C:/runs/mini-0"
    assert quote(PureWindowsPath(r"my runs\it")) == "'my runs/it'"
    assert quote(Path(r"a\b")) == r"'a\b'"  # on Linux, a file name
    for path in (PureWindowsPath(r"runs\[0]"), Path(r"a\b")):
        with pytest.raises(UserError, match="rename"):
            check_path(path)


def test_a_lock_is_free_again_when_it_is_closed_or_its_process_is_killed(tmp_path, capsys):
    path = tmp_path / "lock"
    for _ in range(2):
        held = lock(path)
        with pytest.raises(BlockingIOError):
            lock(path)
        held.lock.release()
    command, pipe = [sys.executable, "-c", HOLD, str(path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            lock(path)
        threading.Timer(0.3, process.kill).start()
        with lock(path, wait="waiting"):
            assert process.wait() != 0
        assert capsys.readouterr().err == "waiting\n"
