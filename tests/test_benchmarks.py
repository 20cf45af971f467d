"""Benchmarks: contestants that fail, and what they import."""

import ast
import subprocess
import sys

import pytest

from benchmarks import harness

PEERS = harness.ROOT / "benchmarks" / "peers"


def test_a_contestant_that_fails_is_named_and_the_others_are_reported(monkeypatch, capsys):
    run_once = harness.run_once

    def run(module, job):
        return {"speed": job} if module == "fine" else run_once(module, job)

    monkeypatch.setattr(harness, "run_once", run)
    turns = {"broken": ("no_such_peer", {}), "fine": ("fine", 3), "other": ("fine", 4)}
    result = harness.run_in_turn(turns, rounds=2)
    assert result == {"fine": {"speed": 3}, "other": {"speed": 4}}
    error = capsys.readouterr().err
    assert "no figures for broken" in error and "no_such_peer" in error


@pytest.mark.parametrize("name", ["pytorch", "pytorch_attention", "ctranslate2_search"])
def test_peers_of_other_frameworks_do_not_import_tensorflow(name):
    """Executes only imports of ours, because the other framework need not be installed."""
    pending, imported = [name], set()
    while pending:
        tree = ast.parse((PEERS / f"{pending.pop()}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module.startswith("benchmarks.peers."):
                    pending.append(node.module.rpartition(".")[2])
    assert not {"tensorflow", "keras"} & {module.split(".")[0] for module in imported}
    ours = [m for m in imported if (harness.ROOT / f"{m.replace('.', '/')}.py").exists()]
    assert "benchmarks.sentences" in ours
    code = f"import sys, {', '.join(ours)}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=harness.ROOT).returncode == 0
