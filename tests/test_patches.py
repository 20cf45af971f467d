"""Patches with a check in experiments/checks/ pass it, and the tests of invariants."""

import re
import shutil
from pathlib import Path

import patched
import pytest

from experiments import patches
from same_code import git

CHECKS = sorted((patches.HERE / "checks").glob("*.py"))
TESTS = sorted(Path(__file__).parent.glob("test_*.py"))
INVARIANTS = [f"tests/{path.name}" for path in TESTS if "mark.invariant" in path.read_text("utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=[path.stem for path in CHECKS])
def test_patch_passes_its_check_and_the_invariants(check, tmp_path):
    """On the last commit, patched. Invariants only concern the forward pass and decoding."""
    archive, folder = tmp_path / "source.tar", tmp_path / "source"
    git("archive", f"--output={archive}", "HEAD")
    shutil.unpack_archive(archive, folder, filter="data")
    patch = patches.read(check.stem)
    patch.apply(folder)
    runs = [[str(check)], ["-m", "invariant", *INVARIANTS]]
    if not any(re.match("model/(?!optimizer|loss)", name) for name in patch.files):
        runs.pop()
    for arguments in runs:
        assert patched.call(patched.run_test, folder, *arguments) == pytest.ExitCode.OK
