"""Which checkpoints of a folder can be trusted: torn and altered ones are named and passed over."""

import re
import sys
from pathlib import Path

import tensorflow as tf

from config import first_line

UNREADABLE = (tf.errors.OpError, IndexError, ValueError)  # what TensorFlow says of a torn file


def readable(folder, count=1):
    """Up to `count` checkpoints of a folder, as paths, the newest first.

    Each value of a checkpoint is read once, which compares it with its checksum; one that cannot be
    read is named on standard error, and an older one takes its place. Raises ValueError where there
    are checkpoints and none of them can be read.
    """
    folder, good, bad = Path(folder), [], []
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    for path in sorted(found, key=number, reverse=True):
        if len(good) == count:
            break
        try:
            reader = tf.train.load_checkpoint(str(path))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            good.append(str(path))
        except UNREADABLE as error:
            bad.append(path.name)
            print(f"warning: {path} cannot be read, an older checkpoint takes its place: "
                  f"{first_line(error)}", file=sys.stderr)  # fmt: skip
    if bad and not good:
        raise ValueError(f"{folder} has no checkpoint that can be read: {', '.join(bad)} are torn")
    return good


def rewrite_checkpoint_list(folder):
    """Have TensorFlow's list of a folder's checkpoints name those that are there, by step, and
    nothing else: it will delete what the list names, wherever that lies.
    """
    listed = Path(folder) / "checkpoint"
    listed.unlink(missing_ok=True)
    found = [number(path.with_suffix("")) for path in Path(folder).glob("ckpt-*.index")]
    if steps := sorted(step for step in found if step >= 0):
        lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}"']
        for step in steps:  # those without a time would be kept for ever
            lines += [f'all_model_checkpoint_paths: "ckpt-{step}"',
                      "all_model_checkpoint_timestamps: 1"]  # fmt: skip
        listed.write_text("\n".join(lines) + "\n", "utf-8")


def number(path):
    """The step of a checkpoint: 7 of ckpt-7."""
    found = re.fullmatch(r"ckpt-(\d+)", Path(path).name)
    return int(found[1]) if found else -1
