"""Save and restore the state of a run: model, optimizer and counters."""

import json
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from model.layers import named_variables
from training.records import UNFINISHED, RunError, checkpoint_step, saved_checkpoints
from utils import UserError, amount, first_line, quote, warn

POSITION = "position/.ATTRIBUTES/VARIABLE_VALUE"  # of the next batch in its epoch
INTEGERS = ("epoch", "position", "metrics_size")


def readable_checkpoints(
    folder: str | Path, count: int = 1, ends_of_epochs: bool = False
) -> list[str]:
    """Return the paths of up to `count` intact checkpoints of a directory, newest first.

    Reading every value verifies its checksum. A damaged checkpoint is reported on standard error,
    and an older one takes its place. ends_of_epochs: leave out all others, and the initial weights.
    Raises UserError if there are checkpoints but all are damaged.
    """
    intact, damaged, paths = [], [], saved_checkpoints(folder)
    for path in reversed(paths):
        if len(intact) == count:
            break
        try:
            reader = tf.train.load_checkpoint(str(path))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            if ends_of_epochs and (checkpoint_step(path) == 0 or reader.get_tensor(POSITION) > 0):
                continue
            intact.append(str(path))
        except (tf.errors.OpError, IndexError, ValueError) as error:
            if path not in saved_checkpoints(folder):  # a running training has just replaced it
                return readable_checkpoints(folder, count, ends_of_epochs)
            damaged.append(path.name)
            warn(f"{path} is damaged, using an older checkpoint: {first_line(error)}")
    if damaged and len(damaged) == len(paths):
        raise UserError(f"{folder}: every checkpoint is damaged ({', '.join(damaged)})")
    return intact


def assert_fits(path: str | Path, model: tf.Module) -> None:
    """Raise RunError, naming variables, if a checkpoint does not have exactly those of a model."""
    saved, prefix, suffix = {}, "model/", "/.ATTRIBUTES/VARIABLE_VALUE"
    for name, shape in tf.train.load_checkpoint(str(path)).get_variable_to_shape_map().items():
        if name.startswith(prefix) and name.endswith(suffix):
            saved[name.removeprefix(prefix).removesuffix(suffix)] = tuple(shape)
    needed = {name: tuple(each.shape) for name, each in named_variables(model).items()}
    if differences := sorted({name for name, _ in saved.items() ^ needed.items()}):
        shapes = [shapes.get(name := differences[0], "missing") for shapes in (saved, needed)]
        raise RunError(
            f"{path} does not fit the model: {name} is {shapes[0]} there and {shapes[1]} here, and "
            f"{amount(len(differences), 'variable')} differ in all; if the code of the model has "
            "changed, use the programs in the source/ of the run"
        )


def restore_model(path: str | Path, model: tf.Module) -> None:
    """Restore the variables of a model from a checkpoint of a run. Raises RunError."""
    assert_fits(path, model)
    tf.train.Checkpoint(model=model).restore(str(path)).expect_partial()  # without the optimizer


class Checkpoints:
    """The checkpoints of a run. A `tf.train.CheckpointManager` for each directory deletes old ones.

    - checkpoints/: the `keep` latest ends of epochs, which `--average` uses
    - checkpoints/unfinished/: the latest one within an epoch
    - checkpoints/best/: the one with the lowest validation loss
    """

    def __init__(self, run: Path, model: tf.Module, optimizer: tf.Module, keep: int):
        self.run, self.folder, self.model, self.keep = run, run / "checkpoints", model, keep
        self.optimizer = optimizer
        self.counters = {name: tf.Variable(0, dtype=tf.int64) for name in INTEGERS}
        self.counters["best_loss"] = tf.Variable(0, dtype=tf.float64)
        self.sums = tf.Variable("{}")  # JSON: {name of a metric: sum}
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

    def save(self, step: int, counters: dict[str, Any], best: bool = False) -> None:
        """Write a checkpoint, then delete older ones of its directory.

        best: it has the lowest validation loss. If it cannot be written, older ones stay intact.
        Raises RunError.
        """
        within = UNFINISHED if counters["position"] > 0 else ""
        folder = self.folder / ("best" if best else within)
        for name, variable in self.counters.items():
            variable.assign(counters[name])
        self.sums.assign(json.dumps(counters["sums"]))
        keep, run = self.keep if folder == self.folder else 1, quote(self.run)
        manager = tf.train.CheckpointManager(self.checkpoint, folder, max_to_keep=keep)
        # A resumed run may save a step again.
        before = {path: path.stat().st_mtime_ns for path in folder.glob(f"ckpt-{step}.*")}
        try:
            manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            for path in folder.glob(f"ckpt-{step}[._]*"):
                if path.stat().st_mtime_ns != before.get(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if saved_checkpoints(self.folder):
                hint = f"older checkpoints are intact: free some space, then use --resume {run}"
            else:
                hint = f"there is no older one: free some space, delete {run}, and start again"
            text = f"cannot save step {step} in {folder}: {first_line(error)}"
            raise RunError(f"{text}; {hint}") from None
