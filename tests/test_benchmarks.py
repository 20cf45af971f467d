"""Benchmarks: contestants that fail, interruption, imports, and one round of all contestants."""

import subprocess
import sys

import pytest
from helpers import TINY, train_here

from benchmarks import decode, harness


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


def test_an_interrupted_benchmark_prints_what_was_measured(monkeypatch, capsys):
    def measured():
        yield "ours", {"ours": {"speed": 3.4}}
        printed = capsys.readouterr()
        assert "ours: 3 tokens/s" in printed.err and not printed.out
        raise KeyboardInterrupt

    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest handles signals
    columns = {"speed": ("tokens/s", "{:.0f}"), "ratio": ("× other", "{:.2f}")}
    with pytest.raises(KeyboardInterrupt):
        harness.report(measured(), columns)
    assert "| ours | 3 | – |" in capsys.readouterr().out


@pytest.mark.slow
def test_contestants_train_and_report_their_speed():
    """Except PyTorch, which need not be installed."""
    sizes = "--num-layers=1 --d-model=16 --num-heads=2 --dff=32 --tokens=500 --rounds=1".split()
    command = [sys.executable, "-m", "benchmarks.train", *sizes]
    command += ["--only", "products, float32", "tutorial", "project, float32", "Keras"]
    done = subprocess.run(command, cwd=harness.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    cells = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()]
    headings, _, products, *rows = (dict(zip(cells[0], row, strict=True)) for row in cells)
    assert float(products["GFLOP/s"]) > 1 and len(rows) == 3
    assert rows[0]["× tutorial"] == "1.00" and not any("–" in row.values() for row in rows)
    assert all(float(row["real tokens/s"].replace(",", "")) > 0 for row in rows)


@pytest.mark.slow
def test_contestants_decode_the_same_texts(tmp_path):
    """Except CTranslate2, which need not be installed."""
    run = train_here(**TINY, corpus="mini:300", epochs=1, runs_dir=str(tmp_path), name="run")
    job = {"run": str(run), "max_length": 40, "exported": None, "search": {}, "batch": 1}
    job["texts"] = [f"a small house {i}" for i in range(25)]
    *_, (_, rows) = harness.run_in_turn(decode.contestants(job), rounds=1)
    assert [len(rows[name]["outputs"]) for name in ("ours", "ours_few", "tutorial")] == [25, 20, 20]
    assert rows["ours"]["outputs"][:20] == rows["ours_few"]["outputs"]
    assert decode.summarize(rows)["over_tutorial"] > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_peak_memory_does_not_include_that_of_the_parent_process():
    held = bytearray(3 * 10**8)  # all of it is written
    command = "from benchmarks.sentences import peak_mb; print(peak_mb())"
    words = [sys.executable, "-c", command]
    result = subprocess.run(words, cwd=harness.ROOT, capture_output=True, check=True)
    assert 20 < float(result.stdout) < len(held) / 2**20 / 2
