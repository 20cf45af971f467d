"""Save and restore the state of a run: model, optimizer and counters."""

import json
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from training.checkpoints import (
    assert_fits,
    checkpoint_step,
    ends_epoch,
    readable_checkpoints,
    rewrite_checkpoint_list,
    saved_checkpoints,
)
from training.records import RunError
from utils import first_line, quote

COUNTERS = {
    "epoch": tf.int64,
    "position": tf.int64,
    "best_loss": tf.float64,
    "metrics_size": tf.int64,
}


class Checkpoints:
    """The checkpoints of a run: the `keep` latest ones, and the best one.

    Those within an epoch are deleted first, then the oldest: `--average` uses those at the ends of
    epochs, which do not depend on the clock.
    """

    def __init__(self, run: Path, model: tf.Module, optimizer: tf.Module, keep: int):
        self.run, self.folder, self.model, self.keep = run, run / "checkpoints", model, keep
        self.optimizer = optimizer
        self.counters = {
            name: tf.Variable(0, dtype=dtype, trainable=False) for name, dtype in COUNTERS.items()
        }
        self.sums = tf.Variable("{}", trainable=False)  # JSON: {name of a metric: sum}
        state = {"model": model, "optimizer": optimizer, "sums": self.sums, **self.counters}
        self.checkpoint = tf.train.Checkpoint(**state)

    def open(self) -> None:
        """Prepare for saving, which only one worker does."""
        rewrite_checkpoint_list(self.folder)
        rewrite_checkpoint_list(self.folder / "best")
        # `delete_old` chooses which to keep.
        self.latest = tf.train.CheckpointManager(self.checkpoint, self.folder, max_to_keep=None)
        best = self.folder / "best"
        self.best = tf.train.CheckpointManager(self.checkpoint, best, max_to_keep=1)

    def restore(self) -> tuple[str, dict[str, Any]]:
        """Restore the latest checkpoint. Returns its path and the counters, with step and sums.

        Raises RunError and UserError.
        """
        paths = readable_checkpoints(self.folder)
        if not paths:
            raise RunError(f"{self.folder} has no checkpoint: restore it, or start a new run")
        assert_fits(paths[0], self.model)
        try:
            self.checkpoint.restore(paths[0]).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise RunError(
                f"{paths[0]} does not fit the optimizer or the counters: {first_line(error)}; if "
                "their code has changed, use the train.py in the source/ of the run"
            ) from None
        values = {name: variable.numpy().item() for name, variable in self.counters.items()}
        values |= {"step": int(self.optimizer.step.numpy()), "sums": json.loads(self.sums.numpy())}
        return paths[0], values

    def save(self, step: int, counters: dict[str, Any]) -> None:
        """Save the latest state, and delete old ones. Raises RunError."""
        self.write(self.latest, step, counters)
        self.delete_old(step, within_epoch=counters["position"] > 0)

    def save_best(self, step: int, counters: dict[str, Any]) -> None:
        """Save the state with the lowest validation loss. Raises RunError."""
        self.write(self.best, step, counters)

    def write(
        self, manager: tf.train.CheckpointManager, step: int, counters: dict[str, Any]
    ) -> None:
        """Write a checkpoint. If that fails, older ones stay intact. Raises RunError."""
        for name, variable in self.counters.items():
            variable.assign(counters[name])
        self.sums.assign(json.dumps(counters["sums"]))
        try:
            manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            for path in Path(manager.directory).glob(f"ckpt-{step}[._]*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise RunError(
                f"cannot save step {step} in {manager.directory}: {first_line(error)}; older "
                f"checkpoints are intact: free some space, then use --resume {quote(self.run)}"
            ) from None

    def delete_old(self, step: int, within_epoch: bool) -> None:
        """Delete checkpoints other than that of `step`, so that `keep` remain.

        The present one, if within an epoch, is additional: it displaces none that ends an epoch.
        """
        old = [path for path in saved_checkpoints(self.folder) if checkpoint_step(path) != step]
        if (excess := len(old) + 1 - self.keep - within_epoch) > 0:
            for path in sorted(old, key=ends_epoch)[:excess]:
                for file in self.folder.glob(f"{path.name}.*"):
                    file.unlink()
            rewrite_checkpoint_list(self.folder)
