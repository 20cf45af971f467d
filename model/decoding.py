"""Search for a translation, over `start` and `step` of any model.

A state is a dict. What lies under "past" has a row for each hypothesis, and beam search puts these
rows into a new order; all else belongs to the sources, and is shared by their hypotheses.
"""

import tensorflow as tf

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


def one_by_one(model, source, bos, eos, choose):
    """The token that `choose` takes at each place, until `eos`: → (batch, output_len).

    choose: logits (batch, vocab_size) and place → ids (batch,). Rows end in `eos` (unless they
    reached `output_limit`) and are filled up with padding.
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source)
    batch = tf.shape(source)[0]
    state = model.start(source)

    def step(outputs, token, finished, past):
        logits, new_state = model.step(token, state | {"past": past})
        token = tf.where(finished, PAD, choose(logits, tf.shape(outputs)[1]))
        outputs = tf.concat([outputs, token[:, tf.newaxis]], axis=1)  # (batch, length + 1)
        finished |= (token == eos) | (tf.shape(outputs)[1] >= limit)
        return outputs, token, finished, new_state["past"]

    outputs, *_ = loop(
        lambda outputs, token, finished, past: ~tf.reduce_all(finished),
        step,
        (tf.zeros((batch, 0), tf.int32), tf.fill([batch], bos), tf.zeros(batch, tf.bool),
         state["past"]),
    )  # fmt: skip
    return outputs


def greedy(model, source, bos, eos):
    """The likeliest token at each place: (batch, source_len) → (batch, output_len)."""
    argmax = lambda logits, place: tf.argmax(logits, axis=-1, output_type=tf.int32)  # noqa: E731
    return one_by_one(model, source, bos, eos, argmax)


def truncated(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Logits to sample from, −∞ where no draw may fall: (batch, vocab_size) → the same.

    temperature: divides them; below 1 the likely become likelier. top_k: only the k likeliest (Fan
    et al. 2018), 0 for all. top_p: only the likeliest that together have p (Holtzman et al. 2020).
    """
    logits = logits / temperature
    if top_k:
        lowest = tf.math.top_k(logits, top_k).values[:, -1:]
        logits = tf.where(logits < lowest, -float("inf"), logits)
    if top_p < 1:
        ordered = tf.sort(logits, direction="DESCENDING")
        above = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)  # of all likelier ones
        lowest = tf.reduce_min(tf.where(above < top_p, ordered, float("inf")), -1, keepdims=True)
        logits = tf.where(logits < lowest, -float("inf"), logits)
    return logits


def sample(model, source, bos, eos, seed, temperature=1.0, top_k=0, top_p=1.0):
    """A token drawn at each place, a function of (seed, row, place) → (batch, output_len).

    seed: (2,), int. The rest: see `truncated`.
    """

    def choose(logits, place):
        # Of logits and noise of this kind, the highest is a draw from their softmax: Gumbel 1954.
        where = tf.cast(seed, tf.int64) + tf.stack([0, tf.cast(place, tf.int64)])
        uniform = tf.random.stateless_uniform(tf.shape(logits), where, 1e-20, 1.0)
        noise = -tf.math.log(-tf.math.log(uniform))
        logits = truncated(logits, temperature, top_k, top_p)
        return tf.argmax(logits + noise, axis=-1, output_type=tf.int32)

    return one_by_one(model, source, bos, eos, choose)


def beam_search(model, source, bos, eos, beam, length_penalty=0.0, n_best=1, limit=None):
    """The best outputs that a beam finds: (batch, n_best, output_len) and scores (batch, n_best).

    A score is log P(output | source) / ((5 + length) / 6)^length_penalty, length with `eos`: Wu et
    al. 2016, eq. 14. Rows are ordered by it, end in `eos` (unless they reached the limit) and are
    filled up with padding. With a beam of 1 and no penalty this is `greedy`.

    length_penalty: at least 0. n_best: at most `beam`. limit: the most tokens of an output,
    (batch,) [output_limit].
    """
    source = tf.convert_to_tensor(source)
    limit = output_limit(source) if limit is None else limit
    batch = tf.shape(source)[0]
    state = model.start(source)

    def penalty(length):
        return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** length_penalty

    def step(alive, log_probs, past, finished, scores, _):
        """alive, finished (batch, beam or n_best, length); log_probs, scores the same less length.

        The hypotheses alive are extended by a token each; those that end so are finished.
        """
        length = tf.shape(alive)[2] + 1  # of what this step makes
        last = tf.cond(length > 1, lambda: alive[:, :, -1], lambda: tf.fill([batch, beam], bos))
        logits, new_state = model.step(tf.reshape(last, [-1]), state | {"past": past})
        # The best of all extensions are among each hypothesis' best. Twice as many as the beam:
        # should half of them end, there is still a beam to go on with.
        width = min(2 * beam, logits.shape[-1])
        top, token = tf.math.top_k(logits, width)  # (batch · beam, width)
        top -= tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
        top = log_probs[:, :, tf.newaxis] + tf.reshape(top, (batch, beam, width))
        top, index = tf.math.top_k(tf.reshape(top, (batch, beam * width)), width)  # (batch, width)
        token = tf.gather(tf.reshape(token, (batch, beam * width)), index, batch_dims=1)
        parent = index // width
        extended = tf.concat(
            [tf.gather(alive, parent, batch_dims=1), token[:, :, tf.newaxis]], axis=2
        )  # (batch, width, length)

        # Only the first `beam` may end, else a beam would end in what it would never go on with.
        ends = ((token == eos) | (length >= limit)[:, tf.newaxis])[:, :beam]
        ended = tf.where(ends, top[:, :beam] / penalty(length), -float("inf"))
        scores, kept = tf.math.top_k(tf.concat([scores, ended], axis=1), n_best)  # (batch, n_best)
        finished = tf.pad(finished, [[0, 0], [0, 0], [0, 1]], constant_values=PAD)
        finished = tf.gather(tf.concat([finished, extended[:, :beam]], axis=1), kept, batch_dims=1)

        log_probs, kept = tf.math.top_k(tf.where(token == eos, -float("inf"), top), beam)
        # A log probability only falls, and no later penalty divides it by more than the limit's:
        # where this best of all futures is no better than what is finished, the search is over.
        best = log_probs[:, 0] / penalty(limit)
        over = (scores[:, -1] >= best) | (length >= limit)
        log_probs = tf.where(over[:, tf.newaxis], -float("inf"), log_probs)
        alive = tf.gather(extended, kept, batch_dims=1)
        rows = tf.gather(parent, kept, batch_dims=1) + beam * tf.range(batch)[:, tf.newaxis]
        rows = tf.reshape(rows, [-1])  # each new hypothesis' parent, in the order of "past"
        past = tf.nest.map_structure(lambda x: tf.gather(x, rows), new_state["past"])
        return alive, log_probs, past, finished, scores, ~tf.reduce_all(over)

    nothing = -float("inf")
    outcome = loop(
        lambda *variables: variables[-1],
        step,
        (
            tf.zeros((batch, beam, 0), tf.int32),
            # In the beginning there is one hypothesis.
            tf.tile([[0.0] + [nothing] * (beam - 1)], (batch, 1)),
            tf.nest.map_structure(lambda x: tf.repeat(x, beam, axis=0), state["past"]),
            tf.zeros((batch, n_best, 0), tf.int32),
            tf.fill((batch, n_best), nothing),
            batch > 0,
        ),
    )
    return outcome[3], outcome[4]
