"""The patched copies of the source in which experiments run."""

import os
from pathlib import Path

from experiments import patches
from experiments.patches import BASELINE
from training.provenance import fingerprint


class Trees:
    """A copy of one commit's files for each experiment, with its patch, as long as they run.

    They have a repository of their own, which borrows the objects of the user's, so that a run's
    provenance names the commit, and its source.diff is the patch.
    """

    def __init__(self, scratch, commit):
        self.scratch = Path(scratch).resolve()
        self.commit = patches.git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
        repository = self.scratch / "repository"
        patches.git("clone", "--quiet", "--shared", "--no-checkout", ".", repository)
        self.own = {"GIT_DIR": str(repository / ".git"), "GIT_OPTIONAL_LOCKS": "0"}
        patches.git("update-ref", "--no-deref", "HEAD", self.commit, **self.own)
        patches.git("read-tree", "HEAD", **self.own)
        self.base = fingerprint(self.give(BASELINE))

    def give(self, patch):
        """The folder with the patched source. Raises ExperimentError."""
        folder = self.scratch / patch.name
        if not folder.exists():
            where = self.own | {"GIT_WORK_TREE": str(self.scratch)}
            patches.git("checkout-index", "--all", f"--prefix={folder}/", **where)
            patch.apply(folder)
        return folder

    def environment(self, folder):
        """Of the processes that run there."""
        return os.environ | self.own | {"GIT_WORK_TREE": str(folder)}
