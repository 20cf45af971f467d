"""Find the checkpoints of a directory that can be read, and skip truncated or altered ones.

Imports TensorFlow only to read a checkpoint.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from training.records import RunError
from utils import UserError, amount, first_line, quote, warn

if TYPE_CHECKING:
    import tensorflow as tf

POSITION = "position/.ATTRIBUTES/VARIABLE_VALUE"  # of the next batch in its epoch
UNFINISHED = "unfinished"


def readable_checkpoints(
    folder: str | Path, count: int = 1, ends_of_epochs: bool = False
) -> list[str]:
    """Return the paths of up to `count` intact checkpoints of a directory, newest first.

    Reading every value verifies its checksum. A damaged checkpoint is reported on standard error,
    and an older one takes its place. ends_of_epochs: leave out all others, and the initial weights.
    Raises UserError if there are checkpoints but all are damaged.
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
            if not ends_of_epochs or (
                checkpoint_step(path) > 0 and reader.get_tensor(POSITION) == 0
            ):
                intact.append(str(path))
        except (tf.errors.OpError, IndexError, ValueError) as error:
            if path not in saved_checkpoints(folder):  # a running training has just replaced it
                return readable_checkpoints(folder, count, ends_of_epochs)
            damaged.append(path.name)
            warn(f"{path} is damaged, using an older checkpoint: {first_line(error)}")
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
    if differences := sorted({name for name, _ in saved.items() ^ needed.items()}):
        shapes = [shapes.get(name := differences[0], "missing") for shapes in (saved, needed)]
        raise RunError(
            f"{path} does not fit the model: {name} is {shapes[0]} there and {shapes[1]} here, and "
            f"{amount(len(differences), 'variable')} differ in all; if the code of the model has "
            "changed, use the programs in the source/ of the run"
        )


def restore_model(path: str | Path, model: "tf.Module") -> None:
    """Restore the variables of a model from a checkpoint of a run. Raises RunError."""
    import tensorflow as tf

    assert_fits(path, model)
    tf.train.Checkpoint(model=model).restore(str(path)).expect_partial()  # without the optimizer


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
    """Return the paths of all checkpoints of a directory, without `.index`, oldest first.

    Those of checkpoints/ include the one that was saved within an epoch: see `Checkpoints`.
    """
    names = ("ckpt-*.index", f"{UNFINISHED}/ckpt-*.index")
    paths = (path.with_suffix("") for name in names for path in Path(folder).glob(name))
    return sorted(paths, key=checkpoint_step)


def checkpoint_step(path: str | Path) -> int:
    """Return the step of a checkpoint, such as 7 for ckpt-7, or −1 for other names."""
    match = re.fullmatch(r"ckpt-(\d+)", Path(path).name)
    return int(match[1]) if match else -1
