"""Temporary copies of the source, one per experiment, with its patch applied."""

import os
from pathlib import Path

from experiments import patches
from experiments.patches import BASELINE, Patch
from training.provenance import fingerprint


class Trees:
    """Copies of the files of one commit, with patches applied.

    They share a repository of their own that borrows the objects of the user's repository. So the
    provenance of a run names the commit, and its source.diff is the patch.
    """

    def __init__(self, scratch: str | Path, commit: str):
        self.scratch = Path(scratch).resolve()
        self.commit = patches.git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
        repository = self.scratch / "repository"
        patches.git("clone", "--quiet", "--shared", "--no-checkout", ".", repository)
        self.variables = {"GIT_DIR": str(repository / ".git"), "GIT_OPTIONAL_LOCKS": "0"}
        patches.git("update-ref", "--no-deref", "HEAD", self.commit, **self.variables)
        patches.git("read-tree", "HEAD", **self.variables)
        self.base = fingerprint(self.checkout(BASELINE))

    def checkout(self, patch: Patch) -> Path:
        """Return the directory of the patched source. Raises ExperimentError."""
        folder = self.scratch / patch.name
        if not folder.exists():
            variables = self.variables | {"GIT_WORK_TREE": str(self.scratch)}
            patches.git("checkout-index", "--all", f"--prefix={folder}/", **variables)
            patch.apply(folder)
        return folder

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment variables of processes that run a copy."""
        return os.environ | self.variables | {"GIT_WORK_TREE": str(folder)}
