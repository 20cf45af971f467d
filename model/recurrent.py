"""Recurrent encoder-decoder, with and without attention: the predecessors of the Transformer.

Without attention: Sutskever et al. 2014, Cho et al. 2014. Additive attention: Bahdanau et al. 2015.
Dot-product attention: Luong et al. 2015.
"""

import tensorflow as tf

from config import Config
from model.interface import Intermediates, TeacherForcing
from model.layers import (
    Dense,
    Seed,
    dropout,
    fold_in,
    glorot_uniform,
    initial_seed,
    make_embeddings,
)
from model.masks import padding_mask


class GRU(tf.Module):
    """Gated recurrent unit: Cho et al. 2014, section 2.3.

    With update gate z and reset gate r:

        z = σ(W_z x + U_z h)      r = σ(W_r x + U_r h)      h̃ = tanh(W x + r ⊙ (U h))
        h ← z ⊙ h + (1 − z) ⊙ h̃

    As in cuDNN and Keras, the reset gate acts after the product with U, not before it. So the three
    products with h are one matrix product.
    """

    def __init__(self, d_in: int, units: int, seed: Seed, compute_dtype: str = "float32"):
        self.input = Dense(d_in, 3 * units, fold_in(seed, "input"), compute_dtype)
        self.recurrent = Dense(units, 3 * units, fold_in(seed, "recurrent"), compute_dtype)

    def step(self, projected: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
        """Compute the new h at one position: h (…, units), projected = self.input(x)."""
        x_z, x_r, x_h = tf.split(projected, 3, axis=-1)  # each (…, units)
        h_z, h_r, h_h = tf.split(self.recurrent(h), 3, axis=-1)
        z = tf.sigmoid(x_z + h_z)
        r = tf.sigmoid(x_r + h_r)
        candidate = tf.tanh(x_h + r * h_h)
        return z * h + (1.0 - z) * candidate

    def __call__(self, x: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """Compute h at every position: x (batch, length, d_in) → (batch, length, units).

        real: (batch, length), bool; h does not change at padding. It is zero at first.
        """
        projected = tf.transpose(self.input(x), (1, 0, 2))  # (length, batch, 3 · units)
        real = tf.transpose(real)[:, :, tf.newaxis]  # (length, batch, 1)

        def step(h, inputs):
            projected, real = inputs
            return tf.where(real, self.step(projected, h), h)

        start = tf.zeros((tf.shape(x)[0], projected.shape[-1] // 3))  # (batch, units)
        return tf.transpose(tf.scan(step, (projected, real), start), (1, 0, 2))


class Bidirectional(tf.Module):
    """A forward GRU and a backward GRU, concatenated: Bahdanau et al. 2015, section 3.2."""

    def __init__(self, size: int, seed: Seed, compute_dtype: str = "float32"):
        self.forward = GRU(size, size // 2, fold_in(seed, "forward"), compute_dtype)
        self.backward = GRU(size, size // 2, fold_in(seed, "backward"), compute_dtype)

    def __call__(self, x: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """x (batch, length, size), real (batch, length), bool → (batch, length, size).

        The backward GRU reads the padding first, where its state remains zero.
        """
        forward = self.forward(x, real)  # (batch, length, size / 2)
        backward = self.backward(tf.reverse(x, [1]), tf.reverse(real, [1]))
        return tf.concat([forward, tf.reverse(backward, [1])], axis=-1)


class DecoderCell(tf.Module):
    """One position of the decoder: a stack of GRUs, and its attention to the memory.

    A call takes x (sources, hypotheses, size), the embedding of the last token; h, one state
    (sources, hypotheses, size) per GRU, the top one last; and `encoded`, the dict that
    `Recurrent.init_decoder` returns. It returns the new h, context (sources, hypotheses, size) and
    weights (sources, hypotheses, source_len). In training there is one hypothesis per source, the
    target.
    """

    inputs = 2  # vectors that the first GRU reads: x and the context

    def __init__(self, config: Config, seed: Seed):
        size = config.d_model
        sizes = [self.inputs * size] + [size] * (config.num_layers - 1)
        self.layers = [
            GRU(d_in, size, fold_in(seed, f"layer_{i}"), config.precision)
            for i, d_in in enumerate(sizes)
        ]

    def __call__(
        self, x: tf.Tensor, h: list[tf.Tensor], encoded: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        context, weights = self.attend(h[-1], encoded)
        return self.stack(tf.concat([x, context], axis=-1), h), context, weights

    def stack(self, x: tf.Tensor, h: list[tf.Tensor]) -> list[tf.Tensor]:
        """Compute the new state of each GRU; its input is the new state of the one below."""
        states = []
        for layer, state in zip(self.layers, h, strict=True):
            x = layer.step(layer.input(x), state)
            states.append(x)
        return states

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """Return the keys for `scores`, computed once per source."""
        return memory

    def attend(
        self, query: tf.Tensor, encoded: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Average the memory with the softmax of the scores as weights: eq. 5–6 of Bahdanau et al.

        query (sources, hypotheses, size) → context (sources, hypotheses, size), weights (sources,
        hypotheses, source_len).
        """
        scores = self.scores(query, encoded["keys"])  # (sources, hypotheses, source_len)
        weights = tf.nn.softmax(scores + tf.where(encoded["mask"], 0.0, -1e9))
        return tf.matmul(weights, encoded["memory"]), weights


class NoAttentionCell(DecoderCell):
    """No attention: the context is the same at every position, as in Cho et al. 2014."""

    def attend(
        self, query: tf.Tensor, encoded: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        context = tf.broadcast_to(encoded["summary"], tf.shape(query))
        return context, tf.zeros_like(encoded["mask"], tf.float32)


class BahdanauCell(DecoderCell):
    """Attention with the previous state as query: Bahdanau et al. 2015, appendix A.1.2."""

    def __init__(self, config: Config, seed: Seed):
        super().__init__(config, seed)
        size = config.d_model
        self.query = Dense(size, size, fold_in(seed, "query"), config.precision)
        self.key = Dense(size, size, fold_in(seed, "key"), config.precision)
        self.score = tf.Variable(glorot_uniform((size, 1), fold_in(seed, "score"))[:, 0])

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        return self.key(memory)

    def scores(self, query: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """vᵀ tanh(W q + U k) of each pair → (sources, hypotheses, source_len)."""
        pairs = self.query(query)[:, :, tf.newaxis] + keys[:, tf.newaxis]
        return tf.reduce_sum(tf.tanh(pairs) * self.score, axis=-1)


class LuongCell(DecoderCell):
    """Attention with the new state as query: Luong et al. 2015, section 3.1, `dot`."""

    inputs = 1  # x

    def scores(self, query: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """qᵀ k of each pair → (sources, hypotheses, source_len)."""
        return tf.matmul(query, keys, transpose_b=True)

    def __call__(
        self, x: tf.Tensor, h: list[tf.Tensor], encoded: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        h = self.stack(x, h)
        return h, *self.attend(h[-1], encoded)


CELLS = {"none": NoAttentionCell, "additive": BahdanauCell, "dot": LuongCell}


class Recurrent(TeacherForcing):
    """Recurrent translator from ids to logits. Its methods are described in `Model`.

    config: d_model, num_layers (of the encoder and of the decoder), dropout_rate,
    recurrent_attention, shared_vocabulary, tie_embeddings, precision, seed.
    """

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int):
        seed, dtype = initial_seed(config.seed), config.precision
        size, layers = config.d_model, range(config.num_layers)
        self.dropout_rate = config.dropout_rate
        self.source_embedding, self.target_embedding, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.encoder = [Bidirectional(size, fold_in(seed, f"encoder_{i}"), dtype) for i in layers]
        self.initial = [Dense(size, size, fold_in(seed, f"initial_{i}"), dtype) for i in layers]
        self.cell = CELLS[config.recurrent_attention](config, fold_in(seed, "cell"))
        self.readout = Dense(2 * size, size, fold_in(seed, "readout"), dtype)

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, list]:
        """source (batch, source_len) → memory (batch, source_len, d_model), no intermediates."""
        x, real = self.source_embedding(source), source_mask[:, 0, 0]  # real (batch, source_len)
        for i, layer in enumerate(self.encoder):
            x = layer(dropout(x, self.dropout_rate, fold_in(seed, f"encoder_{i}")), real)
        return x, []

    def init_decoder(
        self, memory: tf.Tensor, source_mask: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return the decoder's inputs from the source, and the initial state of each GRU.

        The inputs are a dict of memory and keys (batch, source_len, d_model), mask (batch, 1,
        source_len) and summary (batch, 1, d_model), the encoder's last states. An initial state is
        (batch, 1, d_model).
        """
        half = memory.shape[-1] // 2
        # The forward GRU's last state is at the last position (padding repeats it), the backward
        # GRU's at the first.
        summary = tf.concat([memory[:, -1, :half], memory[:, 0, half:]], axis=-1)[:, tf.newaxis]
        encoded = {
            "memory": memory,
            "keys": self.cell.keys(memory),
            "mask": source_mask[:, 0],
            "summary": summary,
        }
        return encoded, [tf.tanh(dense(summary)) for dense in self.initial]

    def hidden(self, h: tf.Tensor, context: tf.Tensor, seed: Seed | None = None) -> tf.Tensor:
        """tanh(W [h; context]) of the top state: Luong et al. 2015, eq. 5."""
        hidden = tf.tanh(self.readout(tf.concat([h, context], axis=-1)))
        return dropout(hidden, self.dropout_rate, fold_in(seed, "readout"))

    def decode(
        self,
        target_in: tf.Tensor,
        memory: tf.Tensor,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """target_in (batch, target_len) → hidden (batch, target_len, d_model), intermediates.

        The latter are of all layers: [{"cross": (batch, 1, target_len, source_len)}], or [] without
        attention. self_mask is ignored: a recurrent decoder reads from left to right.
        """
        x = dropout(self.target_embedding(target_in), self.dropout_rate, fold_in(seed, "target"))
        x = tf.transpose(x, (1, 0, 2))[:, :, tf.newaxis]  # (target_len, batch, 1, d_model)
        encoded, h = self.init_decoder(memory, cross_mask)
        context = tf.zeros_like(encoded["summary"])
        weights = tf.zeros_like(encoded["mask"], tf.float32)
        h, context, weights = tf.scan(  # each (target_len, batch, 1, …)
            lambda state, x: self.cell(x, state[0], encoded), x, (h, context, weights)
        )
        top, context = (tf.transpose(x[:, :, 0], (1, 0, 2)) for x in (h[-1], context))
        weights = tf.transpose(weights, (1, 2, 0, 3))  # (batch, 1, target_len, source_len)
        attends = not isinstance(self.cell, NoAttentionCell)
        return self.hidden(top, context, seed), [{"cross": weights}] if attends else []

    def init_decode(self, source: tf.Tensor) -> dict:
        """source (batch, source_len) → the state of decoding; "caches" has the GRUs' states."""
        source_mask = padding_mask(source)
        encoded, h = self.init_decoder(self.encode(source, source_mask)[0], source_mask)
        return {"encoded": encoded, "caches": [state[:, 0] for state in h]}  # each (batch, d_model)

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """token (rows,), the newest, and the state → logits (rows, vocab_size), next state."""
        x = self.target_embedding(token)  # (rows, d_model)
        sources, size = tf.shape(state["encoded"]["memory"])[0], x.shape[-1]
        x, *h = (tf.reshape(rows, (sources, -1, size)) for rows in (x, *state["caches"]))
        # h and context: (sources, hypotheses, d_model)
        h, context, _ = self.cell(x, h, state["encoded"])
        hidden = self.hidden(h[-1], context)
        hidden, *h = (tf.reshape(x, (-1, size)) for x in (hidden, *h))  # (rows, d_model)
        return self.logits(hidden), state | {"caches": h}
