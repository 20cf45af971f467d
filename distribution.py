"""Several processors, or several machines, on one batch: tf.distribute around the same train step.

Every worker draws the same global batch, and each replica takes its rows of it; so n replicas make
the step that one makes.
"""

import json
import os

import tensorflow as tf

from run_folder import RunError

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
        tf.errors.DeadlineExceededError)  # fmt: skip


def strategy(kind):
    """none: one replica; mirrored: one on each processor of this machine; multi_worker: the workers
    that TF_CONFIG names. To be called before TensorFlow's first operation. Raises RunError.
    """
    if kind == "mirrored":
        # Where there is no GPU: the logical CPU devices that have been configured, usually one.
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if kind == "multi_worker":
        check_environment(os.environ.get("TF_CONFIG"))
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.get_strategy()


def check_environment(text):
    """Raise RunError where TF_CONFIG does not say who works and who is asked."""
    cluster = '"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}'
    example = f'{{{cluster}, "task": {{"type": "worker", "index": 0}}}}'
    try:
        given = json.loads(text or "")
        workers, task = given["cluster"]["worker"], given["task"]
        good = task["type"] == "worker" and workers[task["index"]].count(":") >= 1
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        good = False
    if not good:
        raise RunError(
            f"--strategy multi_worker needs TF_CONFIG in the environment of each worker: {example}"
        )


def advice(error):
    """What to do when a step could not be made together; the last checkpoint is as it was."""
    return (
        "another worker is gone; start all of them again with --resume and the run's folder, which "
        f"goes on from its last checkpoint ({type(error).__name__})"
    )


def is_chief(strategy):
    """Whether this process is the one that writes."""
    resolver = strategy.cluster_resolver
    return resolver is None or not resolver.task_id
