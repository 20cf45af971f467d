"""Systems other than Linux, as far as Linux can simulate them: see not_linux.py."""

import functools
import subprocess
import sys
import threading
from pathlib import Path, PureWindowsPath

import pytest
from helpers import assert_same_state, state

from same_code import ROOT
from training.records import check_path
from utils import UserError, lock, quote

SMALL = "--num-layers=1 --d-model=16 --num-heads=2 --dff=32 --vocab-size=400 --batch-tokens=256"
HOLD = """
import sys
from pathlib import Path
from utils import lock

held = lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def python(*words, stdin=""):
    """Run Python in the project's root, and return its output."""
    command = [sys.executable, *map(str, words)]
    options = {"cwd": ROOT, "input": stdin, "encoding": "utf-8", "capture_output": True}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_without_what_only_linux_has_is_the_same(tmp_path):
    flags = f"--corpus=mini:300 {SMALL} --runs-dir={tmp_path}/runs --cache-dir={tmp_path}/cache"
    run, flags = tmp_path / "runs" / "run", flags.split()
    not_linux = functools.partial(python, "tests/not_linux.py")
    not_linux("train.py", *flags, "--name=run", "--max-steps=4")
    not_linux("train.py", f"--resume={run}", "--max-steps=8", *flags[-2:])
    python("train.py", *flags, "--name=expected", "--max-steps=8")
    assert_same_state(state(run), state(tmp_path / "runs" / "expected"))
    assert "exact_match" in not_linux("evaluate.py", run, "--split=validation", "--beam=2")
    assert b"\r" not in (run / "outputs-validation-beam2.tsv").read_bytes()
    assert not_linux("translate.py", run, stdin="O menino lê um livro.\n").count("\n") == 1


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
        held.close()
    command, pipe = [sys.executable, "-c", HOLD, str(path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            lock(path)
        threading.Timer(0.3, process.kill).start()
        with lock(path, wait="waiting"):
            assert process.wait() != 0
        assert capsys.readouterr().err == "waiting\n"
