"""Find the checkpoints of a directory that can be read, and skip truncated or altered ones."""

import re
import sys
from pathlib import Path

import tensorflow as tf

from config import UserError, first_line

UNREADABLE = (tf.errors.OpError, IndexError, ValueError)  # raised for damaged files


def readable_checkpoints(folder: str | Path, count: int = 1) -> list[str]:
    """Return the paths of up to `count` intact checkpoints of a directory, newest first.

    Reading every value verifies its checksum. A damaged checkpoint is reported on standard error,
    and an older one takes its place. Raises UserError if there are checkpoints but none is intact.
    """
    folder, intact, damaged = Path(folder), [], []
    paths = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    for path in sorted(paths, key=checkpoint_step, reverse=True):
        if len(intact) == count:
            break
        try:
            reader = tf.train.load_checkpoint(str(path))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            intact.append(str(path))
        except UNREADABLE as error:
            damaged.append(path.name)
            print(
                f"warning: {path} is damaged, using an older checkpoint: {first_line(error)}",
                file=sys.stderr,
            )
    if damaged and not intact:
        raise UserError(f"{folder}: every checkpoint is damaged ({', '.join(damaged)})")
    return intact


def rewrite_checkpoint_list(folder: str | Path) -> None:
    """Make TensorFlow's list of checkpoints name exactly those in the directory, in order.

    CheckpointManager deletes what the list names, wherever that is; a copied run would otherwise
    delete checkpoints of the original.
    """
    folder = Path(folder)
    (folder / "checkpoint").unlink(missing_ok=True)
    steps = [checkpoint_step(path.with_suffix("")) for path in folder.glob("ckpt-*.index")]
    if steps := sorted(step for step in steps if step >= 0):
        lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}"']
        for step in steps:  # a checkpoint without a timestamp would never be deleted
            lines.append(f'all_model_checkpoint_paths: "ckpt-{step}"')
            lines.append("all_model_checkpoint_timestamps: 1")
        (folder / "checkpoint").write_text("\n".join(lines) + "\n", "utf-8")


def checkpoint_step(path: str | Path) -> int:
    """Return the step of a checkpoint, such as 7 for ckpt-7, or −1 for other names."""
    match = re.fullmatch(r"ckpt-(\d+)", Path(path).name)
    return int(match[1]) if match else -1
