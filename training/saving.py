"""Save and restore the state of a run: model, optimizer and counters."""

import json
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from training.checkpoints import UNFINISHED, assert_fits, readable_checkpoints
from training.records import RunError
from utils import first_line, quote

COUNTERS = {
    "epoch": tf.int64,
    "position": tf.int64,
    "best_loss": tf.float64,
    "metrics_size": tf.int64,
}


class Checkpoints:
    """The checkpoints of a run. A `tf.train.CheckpointManager` for each directory deletes old ones.

    - checkpoints/: the `keep` latest ends of epochs, which `--average` uses
    - checkpoints/unfinished/: the latest one within an epoch
    - checkpoints/best/: the one with the lowest validation loss
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
        """Save the latest state. Raises RunError."""
        if counters["position"] > 0:
            self.write(self.folder / UNFINISHED, 1, step, counters)
        else:
            self.write(self.folder, self.keep, step, counters)

    def save_best(self, step: int, counters: dict[str, Any]) -> None:
        """Save the state with the lowest validation loss. Raises RunError."""
        self.write(self.folder / "best", 1, step, counters)

    def write(self, folder: Path, keep: int, step: int, counters: dict[str, Any]) -> None:
        """Write a checkpoint, then delete older ones of a directory, so that `keep` remain.

        If it cannot be written, older ones stay intact. Raises RunError.
        """
        for name, variable in self.counters.items():
            variable.assign(counters[name])
        self.sums.assign(json.dumps(counters["sums"]))
        manager = tf.train.CheckpointManager(self.checkpoint, folder, max_to_keep=keep)
        try:
            manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            for path in folder.glob(f"ckpt-{step}[._]*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise RunError(
                f"cannot save step {step} in {folder}: {first_line(error)}; older "
                f"checkpoints are intact: free some space, then use --resume {quote(self.run)}"
            ) from None
