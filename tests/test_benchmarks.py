"""Benchmarks: contestants that fail, interruption, imports, and one round of all contestants."""

import json
import subprocess
import sys

import pytest

from benchmarks import harness


def test_a_failing_contestant_is_reported_and_the_others_continue(monkeypatch, capsys):
    run_once = harness.run_once

    def run(function, job):
        return {"speed": next(job)} if function == "fine" else run_once(function, job)

    monkeypatch.setattr(harness, "run_once", run)
    turns = {"broken": ("no_such_peer.train", {}), "fine": ("fine", iter([3, 5]))}
    *_, (name, rows) = harness.run_in_turn(turns | {"other": ("fine", iter([4, 4]))}, rounds=2)
    assert name == "other" and rows == {"fine": {"speed": 4}, "other": {"speed": 4}}
    error = capsys.readouterr().err
    assert error.count("no_such_peer.train failed") == 1


def test_an_interrupted_benchmark_prints_what_was_measured(monkeypatch, capsys, tmp_path):
    def measured():
        yield "ours", {"ours": {"speed": 3.4}}
        printed = capsys.readouterr()
        assert "ours: 3 tokens/s" in printed.err and not printed.out
        raise KeyboardInterrupt

    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest handles signals
    columns = {"speed": ("tokens/s", "{:.0f}"), "ratio": ("× other", "{:.2f}")}
    with pytest.raises(KeyboardInterrupt):
        harness.report(measured(), columns, tmp_path / "measured.json")
    assert "| ours | 3 | – |" in capsys.readouterr().out
    assert json.loads((tmp_path / "measured.json").read_text())["rows"]["ours"]["speed"] == 3.4


def test_peers_of_other_frameworks_do_not_import_tensorflow():
    """With stand-ins for the frameworks, which need not be installed."""
    code = """
import sys
from unittest.mock import MagicMock
sys.modules |= {"torch": MagicMock(), "ctranslate2": MagicMock()}
import benchmarks.peers.ctranslate2, benchmarks.peers.pytorch
sys.exit("tensorflow" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=harness.ROOT).returncode == 0


@pytest.mark.slow
def test_contestants_train_and_report_their_speed(tmp_path):
    """Except PyTorch, which need not be installed."""
    sizes = "--num-layers=1 --d-model=16 --num-heads=2 --dff=32 --tokens=500 --rounds=1".split()
    command = [sys.executable, "-m", "benchmarks.train", *sizes, f"--json={tmp_path / 'json'}"]
    command += ["--only", "products, float32", "tutorial", "project, float32", "Keras"]
    subprocess.run(command, cwd=harness.ROOT, check=True)
    products, *rows = json.loads((tmp_path / "json").read_text())["rows"].values()
    assert products["gflops"] > 1 and len(rows) == 3
    assert all(row["ratio"] > 0 and 0 < row["utilization"] < 1 for row in rows)
