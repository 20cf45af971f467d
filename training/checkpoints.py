"""Find the checkpoints of a directory that can be read, and skip truncated or altered ones.

Imports TensorFlow only to read a checkpoint.
"""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from training.records import RunError
from utils import UserError, first_line, quote

if TYPE_CHECKING:
    import tensorflow as tf


def readable_checkpoints(
    folder: str | Path, count: int = 1, ends_of_epochs: bool = False
) -> list[str]:
    """Return the paths of up to `count` intact checkpoints of a directory, newest first.

    Reading every value verifies its checksum. A damaged checkpoint is reported on standard error,
    and an older one takes its place. ends_of_epochs: leave out all others. Raises UserError if
    there are checkpoints but all are damaged.
    """
    import tensorflow as tf

    intact, damaged, paths = [], [], saved_checkpoints(folder)
    for path in reversed(paths):
        if len(intact) == count:
            break
        try:
            reader = tf.train.load_checkpoint(str(path))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            if not ends_of_epochs or ends_epoch(path):
                intact.append(str(path))
        except (tf.errors.OpError, IndexError, ValueError) as error:
            if path not in saved_checkpoints(folder):  # a running training has just replaced it
                return readable_checkpoints(folder, count, ends_of_epochs)
            damaged.append(path.name)
            print(
                f"warning: {path} is damaged, using an older checkpoint: {first_line(error)}",
                file=sys.stderr,
            )
    if damaged and len(damaged) == len(paths):
        raise UserError(f"{folder}: every checkpoint is damaged ({', '.join(damaged)})")
    return intact


def assert_fits(path: str | Path, model: "tf.Module") -> None:
    """Raise RunError, naming variables, if a checkpoint does not have exactly those of a model."""
    import tensorflow as tf

    from model.layers import named_variables

    saved, prefix, suffix = {}, "model/", "/.ATTRIBUTES/VARIABLE_VALUE"
    for name, shape in tf.train.load_checkpoint(str(path)).get_variable_to_shape_map().items():
        if name.startswith(prefix) and name.endswith(suffix):
            saved[name.removeprefix(prefix).removesuffix(suffix)] = tuple(shape)
    needed = {name: tuple(each.shape) for name, each in named_variables(model).items()}
    differences = [f"it lacks {name}" for name in needed if name not in saved]
    differences += [f"the model lacks {name}" for name in saved if name not in needed]
    differences += [
        f"{name} has shape {saved[name]} there and {shape} here"
        for name, shape in needed.items()
        if name in saved and saved[name] != shape
    ]
    if differences:
        count = f" ({len(differences)} variables differ)" if len(differences) > 1 else ""
        raise RunError(
            f"{path} does not fit the model: {differences[0]}{count}; if the code of the model has "
            "changed, use the programs in the source/ of the run"
        )


def restore_model(path: str | Path, model: "tf.Module") -> None:
    """Restore the variables of a model from a checkpoint of a run. Raises RunError."""
    import tensorflow as tf

    assert_fits(path, model)
    tf.train.Checkpoint(model=model).restore(str(path)).expect_partial()  # without the optimizer


def ends_epoch(path: str | Path) -> bool:
    """Return whether a checkpoint was saved at the end of an epoch. False if it is damaged.

    Those within an epoch are saved by the clock, so two runs rarely have them at the same steps.
    """
    import tensorflow as tf

    try:
        position = tf.train.load_variable(str(path), "position/.ATTRIBUTES/VARIABLE_VALUE")
    except (tf.errors.OpError, IndexError, ValueError):
        return False
    return checkpoint_step(path) > 0 and position == 0


def rewrite_checkpoint_list(folder: str | Path) -> None:
    """Make TensorFlow's list of checkpoints name exactly those in the directory, in order.

    CheckpointManager deletes what the list names, wherever that is; a copied run would otherwise
    delete checkpoints of the original.
    """
    folder = Path(folder)
    (folder / "checkpoint").unlink(missing_ok=True)
    steps = map(checkpoint_step, saved_checkpoints(folder))
    if steps := [step for step in steps if step >= 0]:
        lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}"']
        for step in steps:  # a checkpoint without a timestamp would never be deleted
            lines.append(f'all_model_checkpoint_paths: "ckpt-{step}"')
            lines.append("all_model_checkpoint_timestamps: 1")
        (folder / "checkpoint").write_text("\n".join(lines) + "\n", "utf-8")


def checkpoint_folder(run: str | Path, checkpoint: str = "last", average: int = 1) -> Path:
    """Return the directory of the `last` checkpoints of a run, or of the `best` one.

    Raises UserError if it has fewer than `average`, not counting the initial weights.
    """
    folder = Path(run, "checkpoints", "best" if checkpoint == "best" else "")
    paths = saved_checkpoints(folder)
    if average > 1:
        paths = [path for path in paths if checkpoint_step(path) > 0]
    if not paths:
        if not saved_checkpoints(Path(run, "checkpoints")):
            raise UserError(f"{folder} has no checkpoint: restore it, or train again")
        longer = f"train longer with python train.py --resume {quote(run)} --epochs N"
        raise UserError(f"{folder} has no checkpoint of a whole epoch: {longer}")
    if len(paths) < average:
        raise UserError(f"{folder} has only {len(paths)} checkpoints: lower --average {average}")
    return folder


def saved_checkpoints(folder: str | Path) -> list[Path]:
    """Return the paths of all checkpoints of a directory, without `.index`, oldest first."""
    paths = (path.with_suffix("") for path in Path(folder).glob("ckpt-*.index"))
    return sorted(paths, key=checkpoint_step)


def checkpoint_step(path: str | Path) -> int:
    """Return the step of a checkpoint, such as 7 for ckpt-7, or −1 for other names."""
    match = re.fullmatch(r"ckpt-(\d+)", Path(path).name)
    return int(match[1]) if match else -1
