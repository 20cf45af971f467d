"""The recurrent encoder-decoder, with attention and without: what the Transformer replaced.

Sutskever et al. 2014 and Cho et al. 2014 (the context vector alone), Bahdanau et al. 2015 (additive
attention), Luong et al. 2015 (dot-product attention).
"""

import tensorflow as tf

from model.layers import Dense, dropout, fold_in, glorot_uniform, initial_seed, make_embeddings
from model.masks import masks, padding_mask


class GRU(tf.Module):
    """A gated recurrent unit: Cho et al. 2014, section 2.3. With update gate z and reset gate r:

        z = σ(W_z x + U_z h)      r = σ(W_r x + U_r h)      h̃ = tanh(W x + r ⊙ (U h))
        h ← z ⊙ h + (1 − z) ⊙ h̃

    The reset gate acts after the product with U, as in cuDNN and Keras, not before it: so the three
    products with h are one.
    """

    def __init__(self, d_in, units, seed):
        self.input = Dense(d_in, 3 * units, fold_in(seed, "input"))
        self.recurrent = Dense(units, 3 * units, fold_in(seed, "recurrent"))

    def step(self, projected, h):
        """One place: projected = self.input(x), (batch, 3 · units), h (batch, units) → new h."""
        from_x, from_h = tf.split(projected, 3, axis=-1), tf.split(self.recurrent(h), 3, axis=-1)
        z = tf.sigmoid(from_x[0] + from_h[0])
        r = tf.sigmoid(from_x[1] + from_h[1])
        candidate = tf.tanh(from_x[2] + r * from_h[2])
        return z * h + (1.0 - z) * candidate  # (batch, units)

    def __call__(self, x, real, h):
        """One place after another: x (batch, length, d_in) → h at each, (batch, length, units).

        real (batch, length), bool: at padding h stays as it is. h (batch, units): where to begin.
        """
        projected = tf.transpose(self.input(x), (1, 0, 2))  # (length, batch, 3 · units)
        real = tf.transpose(real)[:, :, tf.newaxis]  # (length, batch, 1)
        step = lambda h, place: tf.where(place[1], self.step(place[0], h), h)  # noqa: E731
        return tf.transpose(tf.scan(step, (projected, real), h), (1, 0, 2))


class Bidirectional(tf.Module):
    """A GRU forwards beside a GRU backwards: Bahdanau et al. 2015, section 3.2."""

    def __init__(self, size, seed):
        self.forwards = GRU(size, size // 2, fold_in(seed, "forwards"))
        self.backwards = GRU(size, size // 2, fold_in(seed, "backwards"))

    def __call__(self, x, real):
        """x (batch, length, size) → the same; the halves of a vector saw what is before and after.

        Backwards the padding comes first, where h stays zero.
        """
        start = tf.zeros((tf.shape(x)[0], self.forwards.recurrent.kernel.shape[0]))
        before = self.forwards(x, real, start)  # (batch, length, size / 2)
        after = self.backwards(tf.reverse(x, [1]), tf.reverse(real, [1]), start)
        return tf.concat([before, tf.reverse(after, [1])], axis=-1)


class DecoderCell(tf.Module):
    """One place of the target: its embedding x, the states h so far → new h, context, weights.

    x (rows, size); h, a list of (rows, size), a GRU each, the top one last; source, a dict:
    memory (sources, source_len, size), keys (the same, or as `Additive` needs them), mask (sources,
    1, source_len), summary (sources, size). In beam search several rows are hypotheses of one
    source: they ask its memory together. context (rows, size), weights (rows, source_len).
    """

    def __init__(self, config, d_in, seed):
        self.size = size = config.d_model
        self.layers = [
            GRU(size if i else d_in, size, fold_in(seed, f"layer_{i}"))
            for i in range(config.num_layers)
        ]

    def stack(self, x, h):
        """Through the GRUs, from the lowest to the top."""
        new = []
        for layer, state in zip(self.layers, h, strict=True):
            x = layer.step(layer.input(x), state)
            new.append(x)
        return new

    def keys(self, memory):
        """What queries are compared with; computed once a source."""
        return memory

    def attend(self, query, source):
        """The memory by the weights that the top state gives it: Bahdanau et al. 2015, eq. 5."""
        rows, sources = tf.shape(query)[0], tf.shape(source["memory"])[0]
        query = tf.reshape(query, (sources, -1, self.size))  # (sources, hypotheses, size)
        scores = self.scores(query, source["keys"])  # (sources, hypotheses, source_len)
        weights = tf.nn.softmax(scores + tf.where(source["mask"], 0.0, -1e9))
        context = tf.matmul(weights, source["memory"])  # (sources, hypotheses, size)
        return tf.reshape(context, (rows, self.size)), tf.reshape(weights, (rows, -1))


class FixedContext(DecoderCell):
    """No attention: at every place the same context, as in Cho et al. 2014."""

    def __init__(self, config, seed):
        super().__init__(config, 2 * config.d_model, seed)

    def __call__(self, x, h, source):
        rows, sources = tf.shape(x)[0], tf.shape(source["summary"])[0]
        # Of an empty shard there are 0 sources.
        context = tf.repeat(source["summary"], rows // tf.maximum(sources, 1), axis=0)
        weights = tf.zeros((rows, tf.shape(source["memory"])[1]))  # it looks at nothing
        return self.stack(tf.concat([x, context], axis=1), h), context, weights


class Additive(DecoderCell):
    """Attention before the step, by the state before it: Bahdanau et al. 2015, appendix A.1.2."""

    def __init__(self, config, seed):
        size = config.d_model
        super().__init__(config, 2 * size, seed)
        self.query, self.key = (
            Dense(size, size, fold_in(seed, "query")),
            Dense(size, size, fold_in(seed, "key")),
        )
        self.score = tf.Variable(glorot_uniform((size, 1), fold_in(seed, "score"))[:, 0])

    def keys(self, memory):
        return self.key(memory)

    def scores(self, query, keys):
        """vᵀ tanh(W q + U k) for each query and key."""
        together = self.query(query)[:, :, tf.newaxis] + keys[:, tf.newaxis]
        return tf.reduce_sum(tf.tanh(together) * self.score, axis=-1)

    def __call__(self, x, h, source):
        context, weights = self.attend(h[-1], source)
        return self.stack(tf.concat([x, context], axis=1), h), context, weights


class Dot(DecoderCell):
    """Attention after the step, by the new state: Luong et al. 2015, section 3.1, `dot`."""

    def __init__(self, config, seed):
        super().__init__(config, config.d_model, seed)

    def scores(self, query, keys):
        return tf.matmul(query, keys, transpose_b=True)

    def __call__(self, x, h, source):
        h = self.stack(x, h)
        return h, *self.attend(h[-1], source)


CELLS = {"none": FixedContext, "additive": Additive, "dot": Dot}


class Recurrent(tf.Module):
    """The whole model, from ids to logits; the same methods as the Transformer's.

    config: d_model, num_layers (of the encoder, and as many of the decoder), dropout_rate,
    recurrent_attention, shared_vocabulary, tie_embeddings, seed.
    """

    def __init__(self, config, source_vocab_size, target_vocab_size):
        seed = initial_seed(config.seed)
        size, self.dropout_rate = config.d_model, config.dropout_rate
        self.source_embedding, self.target_embedding, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.encoder = [
            Bidirectional(size, fold_in(seed, f"encoder_{i}")) for i in range(config.num_layers)
        ]
        self.first = [
            Dense(size, size, fold_in(seed, f"first_{i}")) for i in range(config.num_layers)
        ]
        self.cell = CELLS[config.recurrent_attention](config, fold_in(seed, "cell"))
        self.readout = Dense(2 * size, size, fold_in(seed, "readout"))

    def encode(self, source, source_mask, seed=None):
        """source (batch, source_len), int → memory (batch, source_len, d_model)."""
        x, real = self.source_embedding(source), source_mask[:, 0, 0]  # (batch, source_len)
        for i, layer in enumerate(self.encoder):
            x = layer(dropout(x, self.dropout_rate, fold_in(seed, f"encoder_{i}")), real)
        return x

    def init_decoder(self, memory, source_mask):
        """What a DecoderCell asks, and the states that it begins with."""
        half = memory.shape[-1] // 2
        # Forwards has seen all at the last place, which padding repeats; backwards at the first.
        summary = tf.concat([memory[:, -1, :half], memory[:, 0, half:]], axis=-1)  # (batch, size)
        source = {"memory": memory, "keys": self.cell.keys(memory), "mask": source_mask[:, 0],
                  "summary": summary}  # fmt: skip
        return source, [tf.tanh(dense(summary)) for dense in self.first]

    def hidden(self, h, context, seed=None):
        """The top state and what it looked at, as one: Luong et al. 2015, eq. 5."""
        hidden = tf.tanh(self.readout(tf.concat([h, context], axis=-1)))
        return dropout(hidden, self.dropout_rate, fold_in(seed, "readout"))

    def decode(self, target_in, memory, self_mask, cross_mask, seed=None):
        """target_in (batch, target_len), int → hidden (batch, target_len, d_model), weights.

        weights: a list of one dict, "cross" (batch, 1, target_len, source_len). The mask of the
        target is not needed: what comes later has not been read yet.
        """
        x = dropout(self.target_embedding(target_in), self.dropout_rate, fold_in(seed, "target"))
        source, h = self.init_decoder(memory, cross_mask)
        context = tf.zeros_like(source["summary"])
        weights = tf.zeros(tf.shape(memory)[:2])
        h, context, weights = tf.scan(  # each (target_len, …)
            lambda before, x: self.cell(x, before[0], source),
            tf.transpose(x, (1, 0, 2)),
            (h, context, weights),
        )
        top, context = (tf.transpose(x, (1, 0, 2)) for x in (h[-1], context))
        weights = tf.transpose(weights, (1, 0, 2))[:, tf.newaxis]
        return self.hidden(top, context, seed), [{"cross": weights}]

    def logits(self, hidden):
        """hidden (…, d_model) → (…, vocab_size)."""
        return self.output(hidden)

    def attention(self, source, target_in):
        """What each place looked at, where it looked: (batch, 1, 1, target_len, source_len)."""
        target_mask, source_mask = masks(source, target_in)
        memory = self.encode(source, source_mask)
        _, (weights,) = self.decode(target_in, memory, target_mask, source_mask)
        return (
            {}
            if isinstance(self.cell, FixedContext)
            else {"cross": weights["cross"][:, tf.newaxis]}
        )

    def start(self, source):
        """Decoding's state before the first token, from source (batch, source_len)."""
        source_mask = padding_mask(source)
        source, h = self.init_decoder(self.encode(source, source_mask), source_mask)
        return {"source": source, "past": h}

    def step(self, token, state):
        """The last token of each row, (batch,), and the state → logits (batch, vocab), state."""
        x = self.target_embedding(token)
        h, context, _ = self.cell(x, state["past"], state["source"])
        return self.logits(self.hidden(h[-1], context)), state | {"past": h}
