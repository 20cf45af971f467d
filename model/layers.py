"""Basic layers: seeds, dropout, dense layers, embeddings, layer norm and feed-forward networks."""

import copy
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from config import Config


class Seed(NamedTuple):
    """A random seed: `key` identifies the draw, `counter` the step and the part of its batch.

    If a batch is divided into n parts, `counter` is n times the step plus the index of the part. A
    schedule, such as one of the dropout rate, should use `step`, the number of updates so far.
    Without dropout, as in validation and decoding, there is no seed: it is None.

    Every draw is a function of (run seed, name, counter) and of its shape. An edit elsewhere that
    does not change this shape leaves it unchanged: two runs with the same seed differ only by the
    edit.
    """

    key: int
    counter: int | tf.Tensor
    step: int | tf.Tensor = 0

    def tensor(self) -> tf.Tensor:
        """Return the seed of `tf.random.stateless_*` functions, int64 of shape (2,)."""
        return tf.stack([tf.constant(self.key, tf.int64), tf.cast(self.counter, tf.int64)])


def initial_seed(seed: int) -> Seed:
    """Return the seed of initial weights. Training steps count from 0, so −1 is free."""
    return Seed(seed, -1)


def step_seed(seed: int, step: tf.Tensor) -> Seed:
    """Return the seed of one training step. step: the number of updates so far."""
    step = tf.convert_to_tensor(step)
    return Seed(seed, step, step)


def fold_in(seed: Seed | None, name: str) -> Seed | None:
    """Derive the seed of a named part from `seed`. None, which means no dropout, stays None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed.key}/{name}".encode(), digest_size=8).digest()
    return seed._replace(key=int.from_bytes(digest, "big", signed=True))


def glorot_uniform(shape: tuple[int, int], seed: Seed) -> tf.Tensor:
    """Draw initial weights of a (fan_in, fan_out) matrix: Glorot & Bengio 2010, eq. 16."""
    limit = (6.0 / (shape[0] + shape[1])) ** 0.5
    return tf.random.stateless_uniform(shape, seed.tensor(), -limit, limit)


def normal(shape: tuple[int, ...], stddev: float, seed: Seed) -> tf.Tensor:
    """Draw initial weights from a normal distribution with mean zero."""
    return tf.random.stateless_normal(shape, seed.tensor(), stddev=stddev)


def dropout(x: tf.Tensor, rate: float | tf.Tensor, seed: Seed | None) -> tf.Tensor:
    """Set a fraction `rate` of x to zero and scale up the rest (section 5.4).

    Without a seed, or with a rate of 0, x is returned unchanged. The same seed and shape give the
    same draws, so each call needs a seed of its own: see `fold_in`.
    """
    if seed is None or (not tf.is_tensor(rate) and rate == 0.0):
        return x
    draws = tf.random.stateless_uniform(tf.shape(x), seed.tensor())
    return x * tf.where(draws >= rate, 1.0 / (1.0 - rate), 0.0)


def matmul(
    x: tf.Tensor, kernel: tf.Tensor, compute_dtype: str, transpose_b: bool = False
) -> tf.Tensor:
    """Multiply (rows, d_in) by a weight matrix in `compute_dtype` → (rows, d_out), float32.

    kernel: (d_in, d_out), or with transpose_b (d_out, d_in). Only products with weight matrices,
    and their gradients, use lower precision: Micikevicius et al. 2018.
    """
    x, kernel = tf.cast(x, compute_dtype), tf.cast(kernel, compute_dtype)
    return tf.cast(tf.matmul(x, kernel, transpose_b=transpose_b), tf.float32)


class Dense(tf.Module):
    """x W + b: (…, d_in) → (…, d_out)."""

    def __init__(self, d_in: int, d_out: int, seed: Seed, compute_dtype: str = "float32"):
        self.kernel = tf.Variable(glorot_uniform((d_in, d_out), fold_in(seed, "kernel")))
        self.bias = tf.Variable(tf.zeros(d_out))
        self.compute_dtype = compute_dtype

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        # One matrix of all positions: the kernel's gradient is then a single product. The gradient
        # of `tf.nn.bias_add` is a faster reduction than that of `+`.
        rows = tf.reshape(x, (-1, self.kernel.shape[0]))  # (batch · length, d_in)
        rows = tf.nn.bias_add(matmul(rows, self.kernel, self.compute_dtype), self.bias)
        shape = tf.concat([tf.shape(x)[:-1], self.bias.shape], axis=0)
        return tf.reshape(rows, shape)  # (…, d_out)


class Embedding(tf.Module):
    """Look up the vector of each id, times √d_model (section 3.4): (…) → (…, d_model)."""

    def __init__(self, vocab_size: int, d_model: int, seed: Seed):
        # Variance 1 / d_model, so that the table also serves as output projection.
        stddev = d_model**-0.5
        self.table = tf.Variable(normal((vocab_size, d_model), stddev, fold_in(seed, "table")))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Gather from the value: `tf.gather` on a variable makes each later read of it a copy.
        rows = tf.gather(tf.convert_to_tensor(self.table), ids)
        return rows * self.table.shape[1] ** 0.5  # (…, d_model)


class TiedProjection(tf.Module):
    """The output projection that shares the weights of an Embedding: section 3.4."""

    def __init__(self, embedding: Embedding, compute_dtype: str = "float32"):
        self.embedding, self.compute_dtype = embedding, compute_dtype

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """hidden (rows, d_model) → logits (rows, vocab_size)."""
        return matmul(hidden, self.embedding.table, self.compute_dtype, transpose_b=True)


def make_embeddings(
    config: Config, source_vocab_size: int, target_vocab_size: int, seed: Seed
) -> tuple[Embedding, Embedding, Callable]:
    """Create the source Embedding, the target Embedding and the output projection (section 3.4).

    With tied embeddings, the output projection shares the table of the target embedding; if the
    languages share their vocabulary, the source embedding does, too. Only an output projection
    without a shared table has a bias.
    """
    d_model, precision = config.d_model, config.precision
    source = target = Embedding(target_vocab_size, d_model, fold_in(seed, "target_embedding"))
    if not (config.tie_embeddings and config.shared_vocabulary):
        source = Embedding(source_vocab_size, d_model, fold_in(seed, "source_embedding"))
    if config.tie_embeddings:
        return source, target, TiedProjection(target, precision)
    return source, target, Dense(d_model, target_vocab_size, fold_in(seed, "output"), precision)


EPSILON = 1e-6  # added to the variance before the square root; not given in the paper


class LayerNorm(tf.Module):
    """Normalize the last axis, then scale and shift it: Ba et al. 2016, section 3.

    The mean becomes 0 and the variance 1; the scale and the offset are learned.
    """

    def __init__(self, d_model: int):
        self.scale = tf.Variable(tf.ones(d_model))
        self.offset = tf.Variable(tf.zeros(d_model))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        size = x.shape[-1]  # sums, because the gradient of a mean has many small operations
        centered = x - tf.reduce_sum(x, axis=-1, keepdims=True) / size
        variance = tf.reduce_sum(tf.square(centered), axis=-1, keepdims=True) / size
        normalized = centered * tf.math.rsqrt(variance + EPSILON)
        return tf.nn.bias_add(normalized * self.scale, self.offset)  # a faster gradient than `+`


def no_norm(x: tf.Tensor) -> tf.Tensor:
    """Return x unchanged: what pre-norm has after a sublayer, and post-norm before it."""
    return x


class FeedForward(tf.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at each position: section 3.3, eq. 2."""

    def __init__(self, config: Config, seed: Seed):
        d_model, dff, precision = config.d_model, config.dff, config.precision
        self.inner = Dense(d_model, dff, fold_in(seed, "inner"), precision)
        self.outer = Dense(dff, d_model, fold_in(seed, "outer"), precision)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.outer(tf.nn.relu(self.inner(x)))  # (batch, length, d_model)


def named_variables(model: tf.Module) -> dict[str, tf.Variable]:
    """Return each variable of a model by its path of attributes.

    An example is `encoder/layers/0/attention/query/kernel`. The names are those in checkpoints. A
    shared variable has the shortest of its paths, and of several the one that `__init__` sets
    first: a table that is also the output projection is `output/embedding/table`.

    Every class that holds variables must be a tf.Module. Raises ValueError if a module has a
    variable that cannot be reached in this way.
    """
    visited, queue = {}, [("", model)]
    for path, value in queue:  # breadth-first, as in tf.train.Checkpoint: the loop extends it
        if id(value) not in visited:
            visited[id(value)] = path.removeprefix("/"), value
            for name, child in tf.train.TrackableView.children(value).items():
                queue.append((f"{path}/{name}", child))
    variables = {id(variable): variable for variable in model.variables}
    if missing := [variables[i] for i in variables if i not in visited]:
        modules = sorted((*model.submodules, model), key=lambda module: len(module.variables))
        owner = next(x for x in modules if any(missing[0] is variable for variable in x.variables))
        text = f"{type(owner).__name__} has a variable of shape {missing[0].shape}"
        raise ValueError(f"{text} outside attributes, lists, tuples and dicts")
    return {path: value for path, value in visited.values() if id(value) in variables}


def trainable_variables(model: tf.Module) -> dict[str, tf.Variable]:
    """Return those of `named_variables` that the optimizer updates."""
    variables = named_variables(model).items()
    return {name: variable for name, variable in variables if variable.trainable}


def in_float32(model: tf.Module) -> tf.Module:
    """Return a model that shares all variables with `model` and multiplies in float32.

    A module that calls `matmul` must keep its data type in an attribute named `compute_dtype`.
    """
    copied = copy.deepcopy(model, {id(variable): variable for variable in model.variables})
    for module in copied.submodules:
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = "float32"
    return copied
