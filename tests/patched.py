"""Functions that tests run in a patched copy of the source, each call in its own process.

The processes are forked from one that has imported TensorFlow and nothing of the project, so that
they import the project from the copy. This module must not import the project either.
"""

import multiprocessing
import os
import sys
from pathlib import Path


def call(function, *arguments):
    """Call a function of this module in a new process and return its result."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow"])
    with context.Pool(1) as pool:
        return pool.apply_async(function, arguments).get(timeout=600)


def enter(folder):
    os.chdir(folder)
    sys.path[:] = [str(folder)] + [path for path in sys.path if Path(path).name != "tests"]


def run_test(folder, *arguments):
    """Run pytest on a test, or with other arguments. Returns its exit status."""
    enter(folder)
    import pytest

    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts="]
    return int(pytest.main([*arguments, *options]))


def train_and_decode(folder, flags):
    """Train two steps on random ids, decode two tokens. Returns the shape of the logits.

    Raises AssertionError unless the variables change, and all numbers are finite.
    """
    enter(folder)
    import numpy as np
    import tensorflow as tf

    from config import Config
    from model import build
    from train import make_optimizer, make_train_step
    from utils import add_flags, make_parser

    parser = make_parser("")
    add_flags(parser, Config)
    config = Config(**{"total_steps": 9} | vars(parser.parse_args(flags)))
    model = build(config, 20, 20)
    step = make_train_step(model, make_optimizer(model, config), config)
    ids = np.random.default_rng(0).integers(4, 20, (2, 4, 7), np.int32)
    source, target = ids[0], ids[1][:, :2] if config.task == "classification" else ids[1]
    source[0, 4:] = target[1, 3:] = 0
    before = [variable.numpy() for variable in model.trainable_variables]
    for _ in range(2):
        assert np.isfinite(step(source, target)["objective"])
    after = [variable.numpy() for variable in model.trainable_variables]
    changed = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
    assert np.mean(changed) > 0.3 and all(np.isfinite(values).all() for values in after)
    logits, state = model.decode_step(tf.constant([2, 2, 2, 2]), model.init_decode(source))
    logits, _ = model.decode_step(tf.argmax(logits, axis=-1, output_type=tf.int32), state)
    assert np.isfinite(logits).all()
    return tuple(logits.shape)
