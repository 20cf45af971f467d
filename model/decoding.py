"""Greedy search, sampling and beam search, with `init_decode` and `decode_step` of any `Model`.

Finished sentences are removed from the batch while the others continue.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from model.interface import Model
from model.masks import PAD

INF = float("inf")


def output_limit(source: tf.Tensor, margin: int = 20) -> tf.Tensor:
    """Maximum output length, 2 · source length + margin: (batch, source_len) → (batch,), int32.

    Depends only on the sentence, not on its batch. margin: see `data.pipeline.output_margin`.
    """
    return 2 * tf.math.count_nonzero(source != PAD, axis=1, dtype=tf.int32) + margin


def loop(running: Callable, step: Callable, state: Any) -> Any:
    """`tf.while_loop` over one structure of tensors, all of whose axes may change size."""
    shapes = tf.nest.map_structure(lambda x: tf.TensorShape([None] * x.shape.rank), state)
    return tf.while_loop(running, lambda state: (step(state),), (state,), (shapes,))[0]


def drop_finished(done: tf.Tensor, tensors: Any) -> Any:
    """Remove the finished rows from a structure of tensors. done: (rows,), bool.

    Does nothing until a third of the rows are done, because removing copies the others.
    """
    remaining = tf.where(~done)[:, 0]
    return tf.cond(
        3 * tf.size(remaining) <= 2 * tf.size(done),
        lambda: tf.nest.map_structure(lambda x: tf.gather(x, remaining), tensors),
        lambda: tensors,
    )


class DecodeState(NamedTuple):
    """Loop variables of `decode_loop`; rows are the sentences still in the batch."""

    outputs: tf.Tensor  # (batch, length)
    rows: tf.Tensor  # (rows,): index of each row in the batch
    token: tf.Tensor  # (rows,): the last token
    done: tf.Tensor  # (rows,), bool
    model_state: Any


def decode_loop(
    model: Model,
    source: tf.Tensor,
    bos: int | tf.Tensor,
    eos: int,
    choose: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    limit: tf.Tensor | None = None,
) -> tf.Tensor:
    """Generate one token at a time until `eos`: (batch, source_len) → (batch, output_len), int32.

    bos: what precedes the outputs: one id for all, or (batch,).

    choose: function of logits (rows, vocab_size) and position, returns ids (rows,). limit: maximum
    tokens per output, (batch,), by default `output_limit(source)`. Outputs end in `eos` unless they
    reach the limit, and are padded.
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source) if limit is None else tf.convert_to_tensor(limit)
    batch = tf.shape(source)[0]

    def step(state: DecodeState) -> DecodeState:
        outputs, rows, token, done, model_state = state
        logits, model_state = model.decode_step(token, model_state)
        token = tf.where(done, PAD, choose(logits, tf.shape(outputs)[1]))
        # Rows that are no longer in the batch get 0, which is PAD.
        column = tf.scatter_nd(rows[:, tf.newaxis], token, [batch])
        outputs = tf.concat([outputs, column[:, tf.newaxis]], axis=1)  # (batch, length + 1)
        done |= (token == eos) | (tf.shape(outputs)[1] >= tf.gather(limit, rows))
        return DecodeState(outputs, *drop_finished(done, (rows, token, done, model_state)))

    start = DecodeState(
        outputs=tf.zeros((batch, 0), tf.int32),
        rows=tf.range(batch),
        token=tf.broadcast_to(bos, [batch]),
        done=tf.zeros(batch, tf.bool),
        model_state=model.init_decode(source),
    )
    return loop(lambda state: tf.size(state.rows) > 0, step, start).outputs


def greedy(
    model: Model, source: tf.Tensor, bos: int | tf.Tensor, eos: int, limit: tf.Tensor | None = None
) -> tf.Tensor:
    """Generate the most likely token at each position: arguments and result as `decode_loop`."""

    def choose(logits, position):
        return tf.argmax(logits, axis=-1, output_type=tf.int32)

    return decode_loop(model, source, bos, eos, choose, limit)


def filter_logits(
    logits: tf.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tf.Tensor:
    """Apply temperature, top-k and top-p, in this order: (rows, vocab_size) → the same shape.

    Filtered tokens get −∞. temperature: divides the logits. top_k: keep the k most likely tokens,
    and any as likely as the last of them (Fan et al. 2018); 0 for all. top_p: keep the smallest set
    of most likely tokens whose probabilities sum to at least p (Holtzman et al. 2020).
    """
    logits = logits / temperature
    if top_k:
        threshold = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[:, -1:]
        logits = tf.where(logits < threshold, -INF, logits)
    if top_p < 1:
        ordered = tf.sort(logits, direction="DESCENDING")
        # For each token, the total probability of all more likely ones.
        preceding = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)
        kept = tf.where(preceding < top_p, ordered, INF)
        threshold = tf.reduce_min(kept, axis=-1, keepdims=True)
        logits = tf.where(logits < threshold, -INF, logits)
    return logits


def draw(logits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draw an id from each softmax: logits (rows, vocab_size), seed (2,) → (rows,), int32.

    Gumbel-max trick (Gumbel 1954): the argmax of logits + noise is a draw from their softmax.
    """
    uniform = tf.random.stateless_uniform(tf.shape(logits), seed, 1e-20, 1.0)
    noise = -tf.math.log(-tf.math.log(uniform))
    return tf.argmax(logits + noise, axis=-1, output_type=tf.int32)


def sample(
    model: Model,
    source: tf.Tensor,
    bos: int | tf.Tensor,
    eos: int,
    seed: tf.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    limit: tf.Tensor | None = None,
) -> tf.Tensor:
    """Draw each token from the filtered softmax: (batch, source_len) → (batch, output_len), int32.

    seed: (2,), int. Draws depend on the seed, the position, and the row's index among those that
    are left (`drop_finished`). Other arguments: see `filter_logits` and `decode_loop`.
    """

    def choose(logits, position):
        position_seed = tf.cast(seed, tf.int64) + tf.stack([0, tf.cast(position, tf.int64)])
        return draw(filter_logits(logits, temperature, top_k, top_p), position_seed)

    return decode_loop(model, source, bos, eos, choose, limit)


class Hypotheses(NamedTuple):
    """Several outputs per source, best first."""

    tokens: tf.Tensor  # (rows, n, length), int32, with bos
    scores: tf.Tensor  # (rows, n), float32; −∞ for an empty slot


class BeamState(NamedTuple):
    """Loop variables of `beam_search`; rows are the sources still in the batch."""

    outputs: Hypotheses  # n_best per source of the whole batch
    sources: tf.Tensor  # (rows,): index of each row in the batch
    alive: Hypotheses  # `beam` unfinished hypotheses per row; scores are log probabilities
    finished: Hypotheses  # n_best finished hypotheses per row; scores include the length penalty
    model_state: dict  # "caches" has rows · beam rows


def penalty(length: tf.Tensor, alpha: float) -> tf.Tensor:
    """Length penalty ((5 + length) / 6)^alpha: Wu et al. 2016, eq. 14."""
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def best_hypotheses(tokens: tf.Tensor, scores: tf.Tensor, n: int) -> tuple[Hypotheses, tf.Tensor]:
    """Return the n hypotheses with the highest scores, and their indices (rows, n)."""
    scores, index = tf.math.top_k(scores, n)
    return Hypotheses(tf.gather(tokens, index, batch_dims=1), scores), index


def blockwise_top_k(x: tf.Tensor, k: int, block: int = 32) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k(x, k)` of (rows, n), n static → values and indices, each (rows, k).

    The k highest values lie in the k blocks of columns with the highest maxima. Only these are
    sorted, together with the columns after the last whole block.
    """
    whole = x.shape[-1] // block * block
    if whole < 2 * k * block:
        return tf.math.top_k(x, k)
    blocks = tf.reshape(x[:, :whole], (-1, whole // block, block))  # (rows, blocks, block)
    best = tf.math.top_k(tf.reduce_max(blocks, axis=-1), k).indices  # (rows, k)
    values = tf.reshape(tf.gather(blocks, best, batch_dims=1), (-1, k * block))  # (rows, k · block)
    index = tf.reshape(best[:, :, tf.newaxis] * block + tf.range(block), (-1, k * block))
    rest = tf.tile(tf.range(whole, x.shape[-1])[tf.newaxis], (tf.shape(x)[0], 1))
    values, index = tf.concat([values, x[:, whole:]], 1), tf.concat([index, rest], 1)
    values, position = tf.math.top_k(values, k)
    return values, tf.gather(index, position, batch_dims=1)


def extend_hypotheses(
    alive: Hypotheses, logits: tf.Tensor, beam: int
) -> tuple[Hypotheses, tf.Tensor]:
    """Return the 2 · beam best extensions by one token, and each one's parent (rows, 2 · beam).

    logits: (rows · beam, vocab_size). With 2 · beam extensions, `beam` unfinished ones remain even
    if every hypothesis is extended by eos. Fewer are returned if the vocabulary is smaller.
    """
    rows = tf.shape(alive.scores)[0]
    # The best of all extensions are among the best `width` of each hypothesis.
    width = min(2 * beam, logits.shape[-1])
    log_probs, token = blockwise_top_k(logits, width)  # (rows · beam, width)
    log_probs -= tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    scores = alive.scores[:, :, tf.newaxis] + tf.reshape(log_probs, (rows, beam, width))
    scores, index = tf.math.top_k(
        tf.reshape(scores, (rows, beam * width)), min(2 * beam, beam * width)
    )  # (rows, 2 · beam)
    token = tf.gather(tf.reshape(token, (rows, beam * width)), index, batch_dims=1)
    parent = index // width
    tokens = tf.gather(alive.tokens, parent, batch_dims=1)  # (rows, 2 · beam, length)
    tokens = tf.concat([tokens, token[:, :, tf.newaxis]], axis=2)  # (rows, 2 · beam, length + 1)
    return Hypotheses(tokens, scores), parent


def pad_one(tokens: tf.Tensor) -> tf.Tensor:
    """Append one padding token: (rows, n, length) → (rows, n, length + 1)."""
    return tf.pad(tokens, [[0, 0], [0, 0], [0, 1]], constant_values=PAD)


def keep_finished(finished: Hypotheses, ended: Hypotheses, n_best: int) -> Hypotheses:
    """Add those that have just ended to the finished hypotheses, and keep the n_best."""
    tokens = tf.concat([pad_one(finished.tokens), ended.tokens], axis=1)
    scores = tf.concat([finished.scores, ended.scores], axis=1)
    return best_hypotheses(tokens, scores, n_best)[0]


def update_outputs(outputs: Hypotheses, sources: tf.Tensor, finished: Hypotheses) -> Hypotheses:
    """Copy the finished hypotheses of the remaining sources to the outputs of the whole batch."""
    index = sources[:, tf.newaxis]
    return Hypotheses(
        tf.tensor_scatter_nd_update(pad_one(outputs.tokens), index, finished.tokens),
        tf.tensor_scatter_nd_update(outputs.scores, index, finished.scores),
    )


def start_beams(
    model: Model, source: tf.Tensor, bos: int | tf.Tensor, beam: int, n_best: int
) -> BeamState:
    """Return the initial state of `beam_search`: one empty hypothesis per source."""
    batch = tf.shape(source)[0]
    state = model.init_decode(source)
    caches = tf.nest.map_structure(lambda x: tf.repeat(x, beam, axis=0), state["caches"])
    first = tf.reshape(tf.broadcast_to(bos, [batch]), (batch, 1, 1))
    empty = Hypotheses(tf.tile(first, (1, n_best, 1)), tf.fill((batch, n_best), -INF))
    # The first hypothesis of each beam is empty, with probability 1; the others do not exist yet.
    scores = tf.tile([[0.0] + [-INF] * (beam - 1)], (batch, 1))
    alive = Hypotheses(tf.tile(first, (1, beam, 1)), scores)
    return BeamState(empty, tf.range(batch), alive, empty, state | {"caches": caches})


def beam_search(
    model: Model,
    source: tf.Tensor,
    bos: int | tf.Tensor,
    eos: int,
    beam: int,
    length_penalty: float = 0.0,
    n_best: int = 1,
    limit: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the best outputs, (batch, n_best, output_len), int32, and scores (batch, n_best).

    A score is log P(output | source) / ((5 + length) / 6)^length_penalty, where length includes
    `eos`: Wu et al. 2016, eq. 14. Outputs are sorted by score, end in `eos` unless they reach the
    limit, and are padded. With a beam of 1 and no penalty, equal to `greedy`.

    length_penalty: at least 0. n_best: at most `beam`. limit: maximum tokens per output, (batch,),
    by default `output_limit(source)`.
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source) if limit is None else tf.convert_to_tensor(limit)

    def step(search: BeamState) -> BeamState:
        outputs, sources, alive, finished, state = search
        length = tf.shape(alive.tokens)[2]  # of the extended hypotheses, without bos
        source_limit = tf.gather(limit, sources)  # (rows,)
        at_limit = length >= source_limit
        logits, state = model.decode_step(tf.reshape(alive.tokens[:, :, -1], [-1]), state)
        extended, parent = extend_hypotheses(alive, logits, beam)
        is_eos = extended.tokens[:, :, -1] == eos  # (rows, 2 · beam)

        # Only the best `beam` extensions may end: the others would have left the beam.
        ends = (is_eos | at_limit[:, tf.newaxis])[:, :beam]
        scores = tf.where(ends, extended.scores[:, :beam] / penalty(length, length_penalty), -INF)
        finished = keep_finished(finished, Hypotheses(extended.tokens[:, :beam], scores), n_best)
        outputs = update_outputs(outputs, sources, finished)

        scores = tf.where(is_eos, -INF, extended.scores)
        alive, index = best_hypotheses(extended.tokens, scores, beam)
        parent = tf.gather(parent, index, batch_dims=1)  # (rows, beam)
        cache_rows = parent + beam * tf.range(tf.size(sources))[:, tf.newaxis]

        # Upper bound of the score of every continuation: log probabilities only decrease, and the
        # penalty is largest at the limit.
        bound = alive.scores[:, 0] / penalty(source_limit, length_penalty)
        done = (finished.scores[:, -1] >= bound) | at_limit
        # Rows that are done may stay in the batch, but their hypotheses must not be finished again.
        alive = alive._replace(scores=tf.where(done[:, tf.newaxis], -INF, alive.scores))

        # A cache belongs to a hypothesis and follows its parent. Everything else belongs to the
        # source, whose hypotheses share it: see `MultiHeadAttention.cross_attend`.
        caches = state["caches"]
        shared = {name: state[name] for name in state if name != "caches"}
        sources, alive, finished, cache_rows, shared = drop_finished(
            done, (sources, alive, finished, cache_rows, shared)
        )
        cache_rows = tf.reshape(cache_rows, [-1])  # (rows · beam,)
        caches = tf.nest.map_structure(lambda x: tf.gather(x, cache_rows), caches)
        return BeamState(outputs, sources, alive, finished, shared | {"caches": caches})

    start = start_beams(model, source, bos, beam, n_best)
    outputs = loop(lambda search: tf.size(search.sources) > 0, step, start).outputs
    return outputs.tokens[:, :, 1:], outputs.scores
