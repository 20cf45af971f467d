"""Patches with a check in experiments/checks/ pass it, and the tests of invariants."""

import re
import shutil

import patched
import pytest

from experiments import patches
from same_code import git

CHECKS = sorted((patches.HERE / "checks").glob("*.py"))
INVARIANTS = [f"tests/test_{name}.py" for name in ("attention", "decoding", "invariants")]
# Some variants of each model, so that all patches take minutes instead of an hour.
VARIANTS = "post or transformer-pre or language_model-pre or classifier-max"


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=[path.stem for path in CHECKS])
def test_patch_passes_its_check_and_the_invariants(check, tmp_path):
    """On the last commit, patched. Invariants concern neither the optimizer nor the loss alone."""
    archive, folder = tmp_path / "source.tar", tmp_path / "source"
    git("archive", f"--output={archive}", "HEAD")
    shutil.unpack_archive(archive, folder, filter="data")
    patch = patches.read(check.stem)
    patch.apply(folder)
    recurrent = any(re.match("model/(layers|recurrent)", name) for name in patch.files)
    variants = VARIANTS + " or recurrent-dot" * recurrent
    runs = [[str(check)], ["-m", "invariant", *INVARIANTS, "-k", variants]]
    if not any(re.match("model/(?!optimizer|loss)", name) for name in patch.files):
        runs.pop()
    for arguments in runs:
        assert patched.call(patched.run_test, folder, *arguments) == pytest.ExitCode.OK
