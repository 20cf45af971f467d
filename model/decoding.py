"""Search for a translation, over `start` and `step` of any model.

A state is a dict of tensors. Those under "past" have a row for each hypothesis, which beam search
puts into a new order; the others have a row for each source, which its hypotheses share. Sentences
that are done leave the batch: the rest is decoded without them.
"""

import tensorflow as tf

from model.kernels import blockwise_top_k, log_sum_exp
from model.masks import PAD


def output_limit(source):
    """The most tokens an output may have: twice its own source's and 20 → (batch,), int.

    It hangs on the sentence alone, so that a sentence's output does not hang on its batch.
    """
    return 2 * tf.math.count_nonzero(source != PAD, axis=1, dtype=tf.int32) + 20


def loop(running, step, variables):
    """`tf.while_loop` over tensors any axis of which may grow."""
    shapes = tf.nest.map_structure(lambda x: tf.TensorShape([None] * x.shape.rank), variables)
    return tf.while_loop(running, step, variables, shape_invariants=shapes)


def drop_finished(done, variables):
    """`variables` without the rows that are done, if these are at least a third: copying costs."""
    going_on = tf.where(~done)[:, 0]
    return tf.cond(
        3 * tf.size(going_on) <= 2 * tf.size(done),
        lambda: tf.nest.map_structure(lambda x: tf.gather(x, going_on), variables),
        lambda: variables,
    )


def decode_loop(model, source, bos, eos, choose, limit=None):
    """The token that `choose` takes at each place, until `eos`: → (batch, output_len).

    choose: logits (rows, vocab_size) and place → ids (rows,). Rows end in `eos` (unless they
    reached the limit) and are filled up with padding. limit: the most tokens of an output, (batch,)
    [output_limit].
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source) if limit is None else tf.convert_to_tensor(limit)
    batch = tf.shape(source)[0]

    def step(outputs, rows, token, done, state):
        logits, state = model.step(token, state)
        token = tf.where(done, PAD, choose(logits, tf.shape(outputs)[1]))
        column = tf.scatter_nd(rows[:, tf.newaxis], token, [batch])
        outputs = tf.concat([outputs, column[:, tf.newaxis]], axis=1)  # (batch, length + 1)
        done |= (token == eos) | (tf.shape(outputs)[1] >= tf.gather(limit, rows))
        return outputs, *drop_finished(done, (rows, token, done, state))

    outputs, *_ = loop(
        lambda outputs, rows, token, done, state: tf.size(rows) > 0,
        step,
        (tf.zeros((batch, 0), tf.int32), tf.range(batch), tf.fill([batch], bos),
         tf.zeros(batch, tf.bool), model.start(source)),
    )  # fmt: skip
    return outputs


def greedy(model, source, bos, eos, limit=None):
    """The likeliest token at each place: (batch, source_len) → (batch, output_len)."""
    argmax = lambda logits, place: tf.argmax(logits, axis=-1, output_type=tf.int32)  # noqa: E731
    return decode_loop(model, source, bos, eos, argmax, limit)


def filter_logits(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Logits to sample from, −∞ where no draw may fall: (batch, vocab_size) → the same.

    temperature: divides them; below 1 the likely become likelier. top_k: only the k likeliest (Fan
    et al. 2018), 0 for all. top_p: only the likeliest that together have p (Holtzman et al. 2020).
    """
    logits = logits / temperature
    if top_k:
        lowest = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[:, -1:]
        logits = tf.where(logits < lowest, -float("inf"), logits)
    if top_p < 1:
        ordered = tf.sort(logits, direction="DESCENDING")
        above = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)  # of all likelier ones
        lowest = tf.reduce_min(tf.where(above < top_p, ordered, float("inf")), -1, keepdims=True)
        logits = tf.where(logits < lowest, -float("inf"), logits)
    return logits


def sample(model, source, bos, eos, seed, temperature=1.0, top_k=0, top_p=1.0, limit=None):
    """A token drawn at each place, a function of (seed, batch, place) → (batch, output_len).

    seed: (2,), int. The rest: see `filter_logits` and `decode_loop`.
    """

    def choose(logits, place):
        # Of logits and noise of this kind, the highest is a draw from their softmax: Gumbel 1954.
        where = tf.cast(seed, tf.int64) + tf.stack([0, tf.cast(place, tf.int64)])
        uniform = tf.random.stateless_uniform(tf.shape(logits), where, 1e-20, 1.0)
        noise = -tf.math.log(-tf.math.log(uniform))
        logits = filter_logits(logits, temperature, top_k, top_p)
        return tf.argmax(logits + noise, axis=-1, output_type=tf.int32)

    return decode_loop(model, source, bos, eos, choose, limit)


def beam_search(model, source, bos, eos, beam, length_penalty=0.0, n_best=1, limit=None):
    """The best outputs that a beam finds: (batch, n_best, output_len) and scores (batch, n_best).

    A score is log P(output | source) / ((5 + length) / 6)^length_penalty, length with `eos`: Wu et
    al. 2016, eq. 14. Rows are ordered by it, end in `eos` (unless they reached the limit) and are
    filled up with padding. With a beam of 1 and no penalty this is `greedy`.

    length_penalty: at least 0. n_best: at most `beam`. limit: the most tokens of an output,
    (batch,) [output_limit].
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source) if limit is None else tf.convert_to_tensor(limit)
    batch, nothing = tf.shape(source)[0], -float("inf")

    def penalty(length):
        return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** length_penalty

    def step(found, found_scores, sources, alive, log_probs, finished, scores, state):
        """The hypotheses alive are extended by a token each; those that end so are finished.

        alive (rows, beam, length), log_probs (rows, beam); finished (rows, n_best, length), scores
        (rows, n_best); sources (rows,): whose they are. All hypotheses begin with `bos`; length is
        that of what they say after this step.
        """
        rows, length = tf.size(sources), tf.shape(alive)[2]
        logits, state = model.step(tf.reshape(alive[:, :, -1], [-1]), state)
        # The best of all extensions are among each hypothesis' best. Twice as many as the beam:
        # should half of them end, there is still a beam to go on with.
        width = min(2 * beam, logits.shape[-1])
        top, token = blockwise_top_k(logits, width)  # (rows · beam, width)
        top -= log_sum_exp(logits, tf.nn.softmax(logits))[:, tf.newaxis]
        top = log_probs[:, :, tf.newaxis] + tf.reshape(top, (rows, beam, width))
        top = tf.reshape(top, (rows, beam * width))
        top, index = tf.math.top_k(top, min(2 * beam, beam * width))  # (rows, 2 · beam)
        token = tf.gather(tf.reshape(token, (rows, beam * width)), index, batch_dims=1)
        parent = index // width
        extended = tf.concat(
            [tf.gather(alive, parent, batch_dims=1), token[:, :, tf.newaxis]], axis=2
        )  # (rows, 2 · beam, length + 1)

        # Only the first `beam` may end, else a beam would end in what it would never go on with.
        last_place = length >= tf.gather(limit, sources)
        ends = ((token == eos) | last_place[:, tf.newaxis])[:, :beam]
        ended = tf.where(ends, top[:, :beam] / penalty(length), nothing)
        scores, kept = tf.math.top_k(tf.concat([scores, ended], axis=1), n_best)
        finished = tf.pad(finished, [[0, 0], [0, 0], [0, 1]], constant_values=PAD)
        finished = tf.gather(tf.concat([finished, extended[:, :beam]], axis=1), kept, batch_dims=1)

        log_probs, kept = tf.math.top_k(tf.where(token == eos, nothing, top), beam)
        alive = tf.gather(extended, kept, batch_dims=1)
        parent = tf.gather(parent, kept, batch_dims=1) + beam * tf.range(rows)[:, tf.newaxis]
        # A log probability only falls, and no later penalty divides it by more than the limit's:
        # where this best of all futures is no better than what is finished, the search is over.
        best = log_probs[:, 0] / penalty(tf.gather(limit, sources))
        done = (scores[:, -1] >= best) | last_place
        # What is over may stay for a while: nothing is found in it any more.
        log_probs = tf.where(done[:, tf.newaxis], nothing, log_probs)

        found = tf.pad(found, [[0, 0], [0, 0], [0, 1]], constant_values=PAD)
        found = tf.tensor_scatter_nd_update(found, sources[:, tf.newaxis], finished)
        found_scores = tf.tensor_scatter_nd_update(found_scores, sources[:, tf.newaxis], scores)
        past = state["past"]
        shared = {name: state[name] for name in state if name != "past"}
        sources, alive, log_probs, finished, scores, parent, shared = drop_finished(
            done, (sources, alive, log_probs, finished, scores, parent, shared)
        )
        parent = tf.reshape(parent, [-1])  # the row in "past" that each hypothesis goes on from
        past = tf.nest.map_structure(lambda x: tf.gather(x, parent), past)
        state = shared | {"past": past}
        return found, found_scores, sources, alive, log_probs, finished, scores, state

    state = model.start(source)
    past = tf.nest.map_structure(lambda x: tf.repeat(x, beam, axis=0), state["past"])
    none, no_scores = tf.fill((batch, n_best, 1), bos), tf.fill((batch, n_best), nothing)
    found, found_scores, *_ = loop(
        lambda found, found_scores, sources, *_: tf.size(sources) > 0,
        step,
        (none, no_scores, tf.range(batch), tf.fill((batch, beam, 1), bos),
         # In the beginning there is one hypothesis.
         tf.tile([[0.0] + [nothing] * (beam - 1)], (batch, 1)), none, no_scores,
         state | {"past": past}),
    )  # fmt: skip
    return found[:, :, 1:], found_scores
