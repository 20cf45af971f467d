"""Several GPUs, or several machines, on one batch: tf.distribute around the same train step.

Every worker draws the same global batch, and each replica takes its rows of it; so n replicas make
the step that one makes.
"""

import dataclasses
import hashlib
import json
import os
from functools import cache

import numpy as np
import tensorflow as tf

from config import MAY_CHANGE_ON_RESUME, first_line
from training.provenance import fingerprint
from training.run import Run, RunError, WorkerRun


def strategy(kind):
    """none: one replica; mirrored: one on each GPU of this machine; multi_worker: the workers
    that TF_CONFIG names. To be called before TensorFlow's first operation. Raises RunError.
    """
    if kind == "mirrored":
        # Where there is no GPU: the logical CPU devices that have been configured, usually one.
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if kind == "multi_worker":
        address = own_address(os.environ.get("TF_CONFIG"))
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.OpError as error:
            raise RunError(
                f"this worker cannot listen on {address}: {first_line(error)}; does another one? "
                "Each wants an index, a host and port of its own in TF_CONFIG"
            ) from None
    return tf.distribute.get_strategy()


def own_address(text):
    """HOST:PORT of this worker, by the text of TF_CONFIG. Raises RunError where it does not say who
    works and who is asked.
    """
    cluster = '"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}'
    example = f'{{{cluster}, "task": {{"type": "worker", "index": 0}}}}'
    try:
        given = json.loads(text or "")
        workers, task = given["cluster"]["worker"], given["task"]
        address = workers[task["index"]]
        good = task["type"] == "worker" and task["index"] >= 0 and address.count(":") >= 1
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        good = False
    if not good:
        raise RunError(
            f"--strategy multi_worker needs TF_CONFIG in the environment of each worker: {example}"
        )
    return address


def lost_worker_errors(kind):
    """The errors by which a worker learns that another one is gone, for a --strategy."""
    if kind != "multi_worker":
        return ()
    return (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
            tf.errors.DeadlineExceededError)  # fmt: skip


def advice(error):
    """What to do when a step could not be made together; the last checkpoint is as it was."""
    return (
        "another worker is gone; start all of them again with --resume and the run's folder, which "
        f"goes on from its last checkpoint ({type(error).__name__})"
    )


def open_run(strategy, config, data):
    """The run's folder: one worker, the chief, writes in it. Raises RunError, also where the
    workers have not begun alike, and OSError.
    """
    resolver = strategy.cluster_resolver
    if resolver is None:
        return Run(config, data)
    kept = ("epochs", "max_steps")
    flags = {
        n: v
        for n, v in dataclasses.asdict(config).items()
        if n in kept or n not in MAY_CHANGE_ON_RESUME
    }
    tokenizers = [made.model.hex() for made in (data.source_tokenizer, data.target_tokenizer)]
    assert_same_across_workers(
        strategy,
        flags=repr([flags | {"name": None}, bool(config.resume)]),
        corpus=json.dumps([data.facts, tokenizers]),
        code=fingerprint(),
    )
    return WorkerRun(config, data) if resolver.task_id else Run(config, data)


def all_gather(strategy, *numbers):
    """What each worker says here: (workers, count), int64. All of them must come by; to one that
    works alone, its own numbers.
    """
    if strategy.cluster_resolver is None:
        return np.array([numbers])
    return gather(strategy)(tf.constant([numbers], tf.int64)).numpy()


@cache
def gather(strategy):
    """A graph: rows of this worker → those of all of them. Traced once."""

    @tf.function(input_signature=[tf.TensorSpec([1, None], tf.int64)], autograph=False)
    def rows(own):
        return strategy.gather(strategy.run(lambda: own), axis=0)

    return rows


def assert_same_across_workers(strategy, **parts):
    """Raise RunError, in every worker, where the workers do not have the same parts: texts."""
    hashes = [hashlib.sha256(text.encode()).digest()[:7] for text in parts.values()]
    found = all_gather(strategy, *(int.from_bytes(part, "big") for part in hashes))
    unlike = (found != found[0]).any(axis=0)
    if unlike.any():
        names = " and ".join(name for name, is_so in zip(parts, unlike, strict=True) if is_so)
        raise RunError(
            f"the workers do not have the same {names}: start all of them with the same command, "
            "code, corpus and run folder"
        )
