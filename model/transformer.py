"""The Transformer: "Attention Is All You Need" (Vaswani et al. 2017), section 3."""

from collections.abc import Callable

import tensorflow as tf

from config import Config
from model.attention import KeysValues, MultiHeadAttention
from model.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    Seed,
    dropout,
    fold_in,
    initial_seed,
    make_embeddings,
    no_norm,
)
from model.masks import masks, padding_mask
from model.positions import POSITIONS

Weights = dict[str, tf.Tensor]  # attention weights: "self" and "cross"


def make_norms(config: Config) -> tuple[Callable, Callable]:
    """Create the layer norms before and after a sublayer. One of the two is the identity.

    Pre-norm: x + dropout(sublayer(norm(x))), Xiong et al. 2020. Post-norm, as in section 3.1:
    norm(x + dropout(sublayer(x))).
    """
    norm = LayerNorm(config.d_model)
    return (norm, no_norm) if config.norm == "pre" else (no_norm, norm)


class EncoderLayer(tf.Module):
    """Self-attention and a feed-forward network: figure 1, left."""

    def __init__(self, config: Config, seed: Seed):
        self.attention = MultiHeadAttention(config, fold_in(seed, "attention"))
        self.feed_forward = FeedForward(config, fold_in(seed, "feed_forward"))
        self.attention_pre_norm, self.attention_post_norm = make_norms(config)
        self.feed_forward_pre_norm, self.feed_forward_post_norm = make_norms(config)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self, x: tf.Tensor, mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """x (batch, length, d_model) → the same, and weights (batch, num_heads, length, length)."""
        rate = self.dropout_rate
        y = self.attention_pre_norm(x)
        y, weights = self.attention(y, y, y, mask)
        x = self.attention_post_norm(x + dropout(y, rate, fold_in(seed, "attention")))

        y = self.feed_forward(self.feed_forward_pre_norm(x))
        x = self.feed_forward_post_norm(x + dropout(y, rate, fold_in(seed, "feed_forward")))
        return x, weights


class DecoderLayer(tf.Module):
    """Masked self-attention, cross-attention and a feed-forward network: figure 1, right."""

    def __init__(self, config: Config, seed: Seed):
        self.self_attention = MultiHeadAttention(config, fold_in(seed, "self_attention"))
        self.cross_attention = MultiHeadAttention(config, fold_in(seed, "cross_attention"))
        self.feed_forward = FeedForward(config, fold_in(seed, "feed_forward"))
        self.self_pre_norm, self.self_post_norm = make_norms(config)
        self.cross_pre_norm, self.cross_post_norm = make_norms(config)
        self.feed_forward_pre_norm, self.feed_forward_post_norm = make_norms(config)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: tf.Tensor,
        projected_memory: KeysValues,
        self_mask: tf.Tensor | None,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
        past: KeysValues | None = None,
    ) -> tuple[tf.Tensor, Weights, KeysValues | None]:
        """x (batch, target_len, d_model) → the same, a dict of weights, and the extended `past`.

        projected_memory: from `cross_attention.project_keys_values`.
        past: in decoding, the keys and values of earlier tokens; x is then the newest token of each
            hypothesis, (sources, hypotheses, d_model).
        """
        rate = self.dropout_rate
        y = self.self_pre_norm(x)
        if past is None:
            y, self_weights = self.self_attention(y, y, y, self_mask)
        else:
            y, self_weights, past = self.self_attention.attend_to_past(y, past)
        x = self.self_post_norm(x + dropout(y, rate, fold_in(seed, "self_attention")))

        y = self.cross_pre_norm(x)
        y, cross_weights = self.cross_attention.attend(y, *projected_memory, cross_mask)
        x = self.cross_post_norm(x + dropout(y, rate, fold_in(seed, "cross_attention")))

        y = self.feed_forward(self.feed_forward_pre_norm(x))
        x = self.feed_forward_post_norm(x + dropout(y, rate, fold_in(seed, "feed_forward")))
        return x, {"self": self_weights, "cross": cross_weights}, past


class Stack(tf.Module):
    """Embedding, positions, layers and final norm: common to the encoder and the decoder."""

    layer_class: type

    def __init__(self, config: Config, embedding: Embedding, seed: Seed):
        self.embedding, self.dropout_rate = embedding, config.dropout_rate
        # One more than max_length: a source ends in eos, and target_in begins with bos.
        self.positions = POSITIONS[config.positions](
            config.d_model, config.max_length + 1, fold_in(seed, "positions")
        )
        self.layers = [
            self.layer_class(config, fold_in(seed, f"layer_{i}")) for i in range(config.num_layers)
        ]
        # Pre-norm leaves the last sum without a norm.
        self.final_norm = LayerNorm(config.d_model) if config.norm == "pre" else no_norm

    def embed(self, ids: tf.Tensor, positions: tf.Tensor, seed: Seed | None) -> tf.Tensor:
        """ids (batch, length), positions (length, d_model) → (batch, length, d_model)."""
        x = self.embedding(ids) + positions
        return dropout(x, self.dropout_rate, fold_in(seed, "embedding"))


class Encoder(Stack):
    """A stack of EncoderLayers: section 3.1."""

    layer_class = EncoderLayer

    def __call__(
        self, source: tf.Tensor, mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """source (batch, source_len) → memory (batch, source_len, d_model), weights per layer."""
        x = self.embed(source, self.positions(0, tf.shape(source)[1]), seed)
        weights = []
        for i, layer in enumerate(self.layers):
            x, layer_weights = layer(x, mask, fold_in(seed, f"layer_{i}"))
            weights.append(layer_weights)
        return self.final_norm(x), weights


class Decoder(Stack):
    """A stack of DecoderLayers: section 3.1."""

    layer_class = DecoderLayer

    def project_memory(self, memory: tf.Tensor) -> list[KeysValues]:
        """Return the keys and values of each layer's cross-attention."""
        return [layer.cross_attention.project_keys_values(memory, memory) for layer in self.layers]

    def __call__(
        self,
        target_in: tf.Tensor,
        memory: tf.Tensor,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Weights]]:
        """target_in (batch, target_len) → (batch, target_len, d_model), weights per layer."""
        x = self.embed(target_in, self.positions(0, tf.shape(target_in)[1]), seed)
        weights, projected_memory = [], self.project_memory(memory)
        for i, layer in enumerate(self.layers):
            seed_i = fold_in(seed, f"layer_{i}")
            x, layer_weights, _ = layer(x, projected_memory[i], self_mask, cross_mask, seed_i)
            weights.append(layer_weights)
        return self.final_norm(x), weights

    def step(
        self,
        token: tf.Tensor,
        projected_memory: list[KeysValues],
        cross_mask: tf.Tensor,
        past: list[KeysValues],
    ) -> tuple[tf.Tensor, list[KeysValues]]:
        """token (sources, hypotheses) → (sources, hypotheses, d_model), extended `past`.

        token: the newest token of each hypothesis. projected_memory: from `project_memory`. past:
        the keys and values of earlier tokens in each layer, a row per hypothesis. The hypotheses of
        a source lie along the length axis, so that cross-attention reads one memory for all of
        them; self-attention separates them (`attend_to_past`).
        """
        position = tf.shape(past[0][0])[2]
        x = self.embed(token, self.positions(position, position + 1), seed=None)
        extended = []
        for layer, projected, layer_past in zip(self.layers, projected_memory, past, strict=True):
            x, _, layer_past = layer(x, projected, None, cross_mask, past=layer_past)
            extended.append(layer_past)
        return self.final_norm(x), extended


class Transformer(tf.Module):
    """The encoder-decoder model, from ids to logits.

    All variables exist when `__init__` returns. A seed of None, everywhere below, means no dropout.
    """

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int):
        seed = initial_seed(config.seed)
        source_embedding, target_embedding, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.encoder = Encoder(config, source_embedding, fold_in(seed, "encoder"))
        self.decoder = Decoder(config, target_embedding, fold_in(seed, "decoder"))

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of source tokens."""
        return self.encoder.embedding

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tf.Tensor:
        """source (batch, source_len), int → memory (batch, source_len, d_model)."""
        return self.encoder(source, source_mask, fold_in(seed, "encoder"))[0]

    def decode(
        self,
        target_in: tf.Tensor,
        memory: tf.Tensor,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Weights]]:
        """target_in (batch, target_len), int → hidden (batch, target_len, d_model), weights.

        weights: for each layer a dict with "self" (batch, num_heads, target_len, target_len) and
        "cross" (batch, num_heads, target_len, source_len).
        """
        return self.decoder(target_in, memory, self_mask, cross_mask, fold_in(seed, "decoder"))

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """hidden (rows, d_model) → (rows, vocab_size): section 3.4."""
        return self.output(hidden)

    def attention_weights(self, source: tf.Tensor, target_in: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return all attention weights, (batch, num_layers, num_heads, query_len, key_len) each.

        Keys: "encoder" and "decoder" (self-attention), and "cross".
        """
        target_mask, source_mask = masks(source, target_in)
        memory, encoder = self.encoder(source, source_mask)
        _, decoder = self.decoder(target_in, memory, target_mask, source_mask)
        return {
            "encoder": tf.stack(encoder, axis=1),
            "decoder": tf.stack([weights["self"] for weights in decoder], axis=1),
            "cross": tf.stack([weights["cross"] for weights in decoder], axis=1),
        }

    def start(self, source: tf.Tensor) -> dict:
        """Encode source (batch, source_len) → the state of decoding before the first token.

        "past" has a row for each hypothesis; "projected_memory" and "source_mask" have a row for
        each source.
        """
        source_mask = padding_mask(source)
        projected = self.decoder.project_memory(self.encode(source, source_mask))
        past = [(keys[:, :, :0], values[:, :, :0]) for keys, values in projected]  # of length 0
        return {"projected_memory": projected, "source_mask": source_mask, "past": past}

    def step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """The last token of each row, (rows,), and the state → logits (rows, vocab_size), state.

        In beam search, consecutive rows are hypotheses of one source: they share its memory.
        """
        sources = tf.shape(state["source_mask"])[0]
        token = tf.reshape(token, (sources, -1))  # (sources, hypotheses)
        hidden, past = self.decoder.step(
            token, state["projected_memory"], state["source_mask"], state["past"]
        )
        hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))  # (rows, d_model)
        return self.logits(hidden), state | {"past": past}
