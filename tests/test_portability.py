"""Systems other than Linux, as far as Linux can simulate them: see not_linux.py."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path, PureWindowsPath

import pytest
from helpers import assert_same_state, state

from same_code import ROOT
from training import machine
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


@pytest.fixture
def not_linux(tmp_path):
    """Run a program of the project as if the system were not Linux."""

    def run(program, *flags, stdin=""):
        return python("tests/not_linux.py", tmp_path, program, *flags, stdin=stdin)

    return run


def test_a_corpus_is_encoded_without_what_only_linux_has(not_linux, tmp_path):
    pairs = (f"O homem lê {n} livros.\tThe man reads {n} books.\n" for n in range(400))
    (tmp_path / "talks.tsv").write_bytes("".join(pairs).encode())
    printed = not_linux("data", tmp_path / "talks.tsv", "--cache-dir", tmp_path / "cache")
    assert "train 382 pairs" in printed and "O homem lê" in printed


def test_programs_start_without_what_only_linux_has(not_linux):
    """Up to their command line; the slow test runs them."""
    for program in ("train.py", "evaluate.py", "translate.py", "generate.py"):
        assert f"usage: {program}" in not_linux(program, "--help")


@pytest.mark.slow
def test_a_run_without_what_only_linux_has_is_the_same(not_linux, tmp_path):
    flags = f"--corpus=mini:300 {SMALL} --runs-dir={tmp_path}/runs --cache-dir={tmp_path}/cache"
    run, flags = tmp_path / "runs" / "run", flags.split()
    not_linux("train.py", *flags, "--name=run", "--max-steps=4")
    not_linux("train.py", f"--resume={run}", "--max-steps=8", *flags[-2:])
    python("train.py", *flags, "--name=expected", "--max-steps=8")
    assert_same_state(state(run), state(tmp_path / "runs" / "expected"))

    assert "exact_match" in not_linux("evaluate.py", run, "--limit=20")
    assert "exact_match" in not_linux("evaluate.py", run, "--split=validation", "--beam=2")
    assert b"\r" not in (run / "outputs-validation-beam2.tsv").read_bytes()
    assert not_linux("translate.py", run, stdin="O menino lê um livro.\n").count("\n") == 1
    not_linux("evaluation.attention", run, "O menino lê um livro.")
    not_linux("evaluation.export", run, "saved_model", tmp_path / "exported")
    written = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert len(written) > 100 and not [path for path in written if re.search(r'[<>:"\\|?*]', path)]


def test_the_number_of_cores_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert machine.cores() == [0, 1, 2]
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # unknown
    assert machine.cores() == [0]


def test_paths_of_windows_are_accepted_and_printed_with_slashes():
    check_path(PureWindowsPath(r"runs\mini-0"))
    assert quote(PureWindowsPath(r"C:\runs\mini-0")) == "C:/runs/mini-0"
    assert quote(PureWindowsPath(r"my runs\it")) == "'my runs/it'"
    assert quote(Path(r"a\b")) == r"'a\b'"  # on Linux, a file name
    with pytest.raises(UserError, match="rename the directory"):
        check_path(PureWindowsPath(r"runs\[0]"))
    with pytest.raises(UserError, match="rename the directory"):
        check_path(Path(r"a\b"))


# ---- Locks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked_by_another_process(path):
    """Lock a file in another process, and yield the process."""
    command = [sys.executable, "-c", HOLD, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_a_lock_is_free_again_when_it_is_closed_or_its_process_is_killed(tmp_path):
    path = tmp_path / "lock"
    for _ in range(2):
        held = lock(path)
        with pytest.raises(BlockingIOError):
            lock(path)
        held.close()
    with locked_by_another_process(path) as process:
        with pytest.raises(BlockingIOError):
            lock(path)
        process.kill()
        process.wait()
        with lock(path):
            pass


def test_waiting_for_a_lock_prints_a_message(tmp_path, capsys):
    path = tmp_path / "lock"
    with lock(path, wait="waiting for another process"):
        assert capsys.readouterr().err == ""
    with locked_by_another_process(path) as process:
        timer = threading.Timer(0.3, process.kill)
        timer.start()
        with lock(path, wait="waiting for another process"):
            assert process.wait() != 0
        assert capsys.readouterr().err == "waiting for another process\n"
