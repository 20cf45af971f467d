"""Without what only Linux has. This simulates macOS and Windows, on which no test has run."""

import ctypes
import os
import signal
import subprocess
import sys

import pytest

import utils
from same_code import ROOT
from training import machine

# Takes away the modules and functions that macOS or Windows lack, then runs a program.
ELSEWHERE = """
import builtins, ctypes, os, runpy, signal, sys
from pathlib import Path

import_module = builtins.__import__
def import_elsewhere(name, names=None, *others, **options):  # packages have ways of their own
    if name in ("fcntl", "resource", "pwd") and os.getcwd() in (names or {}).get("__file__", ""):
        raise ModuleNotFoundError(name)
    return import_module(name, names, *others, **options)

builtins.__import__ = import_elsewhere
for module, names in {os: "sched_getaffinity sched_setaffinity getuid", signal: "SIGPIPE"}.items():
    for name in names.split():
        delattr(module, name)

class CDLL(ctypes.CDLL):
    def __init__(self, name, *others, **options):
        if name is None:
            raise TypeError("as on Windows")
        super().__init__(name, *others, **options)

read_text = Path.read_text
def read(path, *others, **options):
    if path.is_relative_to("/proc"):
        raise FileNotFoundError(path)
    return read_text(path, *others, **options)

ctypes.CDLL, Path.read_text = CDLL, read
sys.path.insert(0, os.getcwd())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_trains_resumes_translates_and_is_scored(tmp_path):
    def run(program, *flags):
        command = [sys.executable, "-c", ELSEWHERE, program, *map(str, flags)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    path = tmp_path / "run"
    sizes = "--corpus=mini:300 --num-layers=1 --d-model=16 --num-heads=2 --dff=16 --epochs=1"
    folders = f"--runs-dir={tmp_path}", f"--cache-dir={tmp_path / 'cache'}"
    run("train.py", *sizes.split(), "--vocab-size=400", "--max-steps=2", "--name=run", *folders)
    resumed = "--resume", path, "--max-steps=4", folders[1]
    assert "4 steps" in run("train.py", *resumed)
    assert "bleu" in run("evaluate.py", path, "--limit=5")
    assert run("translate.py", path, "--max-tokens=3", "O menino lê.").count("\n") == 1


def test_cores_and_signals_are_optional(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(signal, "SIGPIPE")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(utils, "prepare_streams", lambda: None)
    assert len(machine.cores()) == os.cpu_count()
    utils.handle_signals()


def test_a_c_library_without_mallopt_is_left_as_it_is(monkeypatch):
    def none(name):
        raise TypeError("bad argument type for built-in operation")  # Windows: None is not a path

    for library in (none, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        machine.keep_freed_memory()


def test_a_lock_is_released_when_it_is_closed_and_when_its_process_dies(tmp_path):
    path = tmp_path / "lock"
    code = "import sys, utils; held = utils.lock(sys.argv[1]); print(flush=True); input()"
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as other:
        other.stdout.readline()
        with pytest.raises(BlockingIOError):
            utils.lock(path)
        other.kill()
    with utils.lock(path), pytest.raises(BlockingIOError):
        utils.lock(path)
    utils.lock(path).close()
