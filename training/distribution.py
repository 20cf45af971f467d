"""Several GPUs or machines on one batch: tf.distribute around the same train step.

Every worker reads the same batch, and each replica computes its rows of it, so n replicas with
`--shards s` make the same update as one with `--shards n · s`.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from model import IDS
from model.layers import Seed
from training.records import RunError
from utils import first_line

LOST_WORKER = "lost a worker, or out of memory: restart all workers with --resume RUN"
TF_CONFIG = (
    '{"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, "task": {"type": "worker", "index": 0}}'
)


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Create the strategy of `--strategy`. Call this before the first TensorFlow operation.

    "none": one replica. "mirrored": one replica per local GPU, or per logical CPU device if there
    is no GPU. "multi_worker": one per worker in TF_CONFIG. Raises RunError.
    """
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if name == "multi_worker":
        try:
            cluster = json.loads(os.environ["TF_CONFIG"])
            if [*cluster["cluster"], cluster["task"]["type"]] != ["worker", "worker"]:
                raise ValueError
            address = cluster["cluster"]["worker"][cluster["task"]["index"]]
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (KeyError, TypeError, IndexError, ValueError):
            text = "each worker needs TF_CONFIG in its environment, with tasks of type worker only"
            raise RunError(f"{text}: {TF_CONFIG}") from None
        except tf.errors.OpError as error:
            raise RunError(
                f"this worker cannot listen on {address}: {first_line(error)}; give every worker "
                "its own index and a free host:port in TF_CONFIG"
            ) from None
    return tf.distribute.get_strategy()


def replicated(step: Callable) -> Callable:
    """Run a train step on every replica of the current strategy.

    step: (source, target), the ids of a whole batch → a dict of scalars, equal on all replicas.
    It is traced once, for batches of any shape. AutoGraph is not needed, and tracing is faster
    without it.
    """
    strategy = tf.distribute.get_strategy()

    @tf.function(input_signature=[IDS, IDS], autograph=False)
    def run(source, target):
        results = strategy.run(step, args=(source, target))
        return {
            name: strategy.experimental_local_results(value)[0] for name, value in results.items()
        }

    return run


def sum_over_parts(
    function: Callable,
    source: tf.Tensor,
    target: tf.Tensor,
    seed: Seed,
    shards: int,
    accumulate: int,
) -> Any:
    """Add up what `function(source, target, seed)` returns for all parts of a batch.

    function: returns a structure of tensors, equal in shape for all parts, each a sum over rows. It
    is traced once.

    With r replicas there are n = accumulate · r · shards parts. A replica computes its parts in
    `accumulate` turns, one after another, which needs memory for one turn at a time. The shards of
    a turn are independent branches of the graph, which TensorFlow computes in parallel. At step t,
    part i has the rows i, i + n, i + 2n, … of the batch, and its seed the counter n · t + i.
    """

    @tf.function(input_signature=[IDS, IDS, tf.TensorSpec([], seed.counter.dtype)], autograph=False)
    def part(source, target, counter):
        return function(source, target, seed._replace(counter=counter))

    replica = tf.distribute.get_replica_context()
    per_turn = replica.num_replicas_in_sync * shards
    count = accumulate * per_turn
    if count == 1:
        return function(source, target, seed)
    first = int(tf.get_static_value(replica.replica_id_in_sync_group)) * shards

    def one_turn(turn):
        parts = []
        for shard in range(shards):
            i = turn * per_turn + first + shard
            counter = seed.counter * count + tf.cast(i, seed.counter.dtype)
            parts.append(part(source[i::count], target[i::count], counter))
        return tf.nest.map_structure(lambda *values: tf.add_n(values), *parts)

    def add_turn(turn, sums):
        return turn + 1, tf.nest.map_structure(tf.add, sums, one_turn(turn))

    sums = one_turn(0)
    if accumulate > 1:
        _, sums = tf.while_loop(
            lambda turn, _: turn < accumulate, add_turn, (1, sums), parallel_iterations=1
        )
    if replica.num_replicas_in_sync == 1:
        return sums
    totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(sums))
    return tf.nest.pack_sequence_as(sums, totals)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process writes the run directory: the only one, or worker 0."""
    return strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0


def all_gather(strategy: tf.distribute.Strategy, *numbers: int) -> np.ndarray:
    """Return the numbers that each worker passes: (workers, count), int64.

    All workers must call it together. With one worker, returns its own numbers.
    """
    if strategy.cluster_resolver is None:
        return np.array([numbers])
    return gather_function(strategy)(tf.constant([numbers], tf.int64)).numpy()


@cache
def gather_function(strategy: tf.distribute.Strategy) -> Callable:
    """Return a graph that gathers the rows of all workers; traced once."""

    @tf.function(input_signature=[tf.TensorSpec([1, None], tf.int64)], autograph=False)
    def gather(own):
        return strategy.gather(strategy.run(lambda: own), axis=0)

    return gather


def assert_same_across_workers(strategy: tf.distribute.Strategy, **texts: str) -> None:
    """Raise RunError, in every worker, if the workers have different texts."""
    hashes = [hashlib.sha256(text.encode()).digest()[:7] for text in texts.values()]
    gathered = all_gather(strategy, *(int.from_bytes(digest, "big") for digest in hashes))
    different = (gathered != gathered[0]).any(axis=0)
    if different.any():
        names = " and ".join(name for name, unlike in zip(texts, different, strict=True) if unlike)
        raise RunError(
            f"the workers have different {names}: start all of them with the same command, code, "
            "corpus and run directory"
        )


def lost_worker_errors(strategy_name: str) -> tuple[type[Exception], ...]:
    """Return the errors that mean another worker is gone, for a --strategy."""
    if strategy_name != "multi_worker":
        return ()
    errors = tf.errors
    return (
        errors.UnavailableError,
        errors.AbortedError,
        errors.CancelledError,
        errors.DeadlineExceededError,
    )
