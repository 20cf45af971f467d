"""The interface of every model for training, scoring and decoding."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from model.layers import Embedding, Seed
from model.loss import real_targets
from model.masks import look_ahead_mask, padding_mask

# What a layer computes besides its output, by name: its attention weights, "self" and "cross", each
# (batch, num_heads, query_len, key_len). An edit may add other tensors, such as an auxiliary loss.
Intermediates = dict[str, tf.Tensor]


class Predictions(NamedTuple):
    """The output of `teacher_forced`: one row for each target token that is predicted.

    A model may predict fewer than all real tokens: the means of training are over these rows.
    """

    logits: tf.Tensor  # (tokens, vocab_size)
    labels: tf.Tensor  # (tokens,), int32
    intermediates: list[Intermediates]  # of each layer, those of the encoder first


class Model(Protocol):
    """The methods of a model, which is a tf.Module. All variables exist when `__init__` returns.

    Everywhere, ids are int32 and 0 is padding. A seed of None means no dropout. Language models are
    trained with a source of no tokens, (batch, 0).
    """

    source_embedding: Embedding  # TensorBoard shows its table, (source_vocab_size, d_model)
    output: Callable  # hidden (rows, d_model) → logits (rows, vocab_size)

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[Any, list[Intermediates]]:
        """Return the memory of source (batch, source_len), for `decode`, and intermediates.

        source_mask: of `padding_mask`, (batch, 1, 1, source_len). The memory is usually (batch,
        source_len, d_model).
        """

    def decode(
        self,
        target_in: tf.Tensor,
        memory: Any,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """target_in (batch, target_len) → hidden (batch, target_len, d_model), intermediates.

        memory: of `encode`. self_mask: of `look_ahead_mask`. cross_mask: the source's mask.
        """

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """hidden (rows, d_model) → (rows, vocab_size)."""

    def teacher_forced(
        self, source: tf.Tensor, target: tf.Tensor, seed: Seed | None = None
    ) -> Predictions:
        """Predict every target token from the true tokens before it.

        source (batch, source_len), target (batch, target_len).
        """

    def attention_weights(self, source: tf.Tensor, target_in: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return all attention weights, (batch, num_layers, num_heads, query_len, key_len) each.

        Keys: "encoder" and "decoder" (self-attention), and "cross", or those of them that the model
        has.
        """

    def init_decode(self, source: tf.Tensor) -> dict:
        """Encode source (batch, source_len) → the state of decoding before the first token.

        A dict of tensors, which may be nested. The first axis of each has the rows: under "caches"
        one for each hypothesis, elsewhere one for each source. Decoding gathers the rows of those
        that are not finished, and knows nothing of the other axes: a cache may grow, be trimmed or
        have a constant size. A model that needs its position keeps it, for each source, in the
        state.
        """

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """The newest token of each hypothesis, (rows,), and the state → logits, next state.

        The logits are (rows, vocab_size). Consecutive rows are hypotheses of one source.
        Every source has the same number of them.
        """


class TeacherForcing(tf.Module):
    """What models have in common: the methods that are built on `encode`, `decode` and `output`.

    A model may replace them.
    """

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """hidden (rows, d_model) → (rows, vocab_size): section 3.4."""
        return self.output(hidden)

    def teacher_forced(
        self: Model, source: tf.Tensor, target: tf.Tensor, seed: Seed | None = None
    ) -> Predictions:
        """See `Model`. Padding is left out before the projection to the vocabulary."""
        target_in, target_out = target[:, :-1], target[:, 1:]  # (batch, target_len − 1)
        source_mask = padding_mask(source)  # (batch, 1, 1, source_len)
        self_mask = look_ahead_mask(tf.shape(target_in)[1])  # (target_len − 1, target_len − 1)
        memory, encoder = self.encode(source, source_mask, seed)
        hidden, decoder = self.decode(target_in, memory, self_mask, source_mask, seed)
        real = tf.where(real_targets(target))  # (tokens, 2): row and position of each
        logits = self.logits(tf.gather_nd(hidden, real))
        return Predictions(logits, tf.gather_nd(target_out, real), [*encoder, *decoder])

    def attention_weights(
        self: Model, source: tf.Tensor, target_in: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """See `Model`."""
        source_mask, self_mask = padding_mask(source), look_ahead_mask(tf.shape(target_in)[1])
        memory, encoder = self.encode(source, source_mask)
        _, decoder = self.decode(target_in, memory, self_mask, source_mask)
        weights = {
            "encoder": [layer["self"] for layer in encoder if "self" in layer],
            "decoder": [layer["self"] for layer in decoder if "self" in layer],
            "cross": [layer["cross"] for layer in decoder if "cross" in layer],
        }
        return {name: tf.stack(each, axis=1) for name, each in weights.items() if each}
