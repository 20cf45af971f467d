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
from model.masks import look_ahead_mask, padding_mask
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
        rate, attention_seed = self.dropout_rate, fold_in(seed, "attention")
        y, weights, _ = self.attention.self_attend(self.attention_pre_norm(x), mask, attention_seed)
        x = self.attention_post_norm(x + dropout(y, rate, attention_seed))

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
        memory: KeysValues,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
        cache: KeysValues | None = None,
    ) -> tuple[tf.Tensor, Weights, KeysValues]:
        """x (batch, target_len, d_model) → the same shape, a dict of weights, the next cache.

        memory: `cross_attention.keys_values` of the encoder's output. cache: see `self_attend`.
        """
        rate = self.dropout_rate
        self_seed, cross_seed = fold_in(seed, "self_attention"), fold_in(seed, "cross_attention")
        y, self_weights, cache = self.self_attention.self_attend(
            self.self_pre_norm(x), self_mask, self_seed, cache
        )
        x = self.self_post_norm(x + dropout(y, rate, self_seed))

        y, cross_weights = self.cross_attention.cross_attend(
            self.cross_pre_norm(x), memory, cross_mask, cross_seed
        )
        x = self.cross_post_norm(x + dropout(y, rate, cross_seed))

        y = self.feed_forward(self.feed_forward_pre_norm(x))
        x = self.feed_forward_post_norm(x + dropout(y, rate, fold_in(seed, "feed_forward")))
        return x, {"self": self_weights, "cross": cross_weights}, cache


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

    def embed(self, ids: tf.Tensor, seed: Seed | None, start: int | tf.Tensor = 0) -> tf.Tensor:
        """ids (batch, length), at positions start, start + 1, … → (batch, length, d_model)."""
        x = self.embedding(ids) + self.positions(start, start + tf.shape(ids)[1])
        return dropout(x, self.dropout_rate, fold_in(seed, "embedding"))


class Encoder(Stack):
    """A stack of EncoderLayers: section 3.1."""

    layer_class = EncoderLayer

    def __call__(
        self, source: tf.Tensor, mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """source (batch, source_len) → memory (batch, source_len, d_model), weights per layer."""
        x, weights = self.embed(source, seed), []
        for i, layer in enumerate(self.layers):
            x, layer_weights = layer(x, mask, fold_in(seed, f"layer_{i}"))
            weights.append(layer_weights)
        return self.final_norm(x), weights


class Decoder(Stack):
    """A stack of DecoderLayers: section 3.1."""

    layer_class = DecoderLayer

    def project_memory(self, memory: tf.Tensor) -> list[KeysValues]:
        """Return the keys and values of each layer's cross-attention, once per source."""
        return [layer.cross_attention.keys_values(memory) for layer in self.layers]

    def empty_caches(self, batch: int | tf.Tensor) -> list[KeysValues]:
        """Return the cache of each layer's self-attention before the first position."""
        return [layer.self_attention.empty_cache(batch) for layer in self.layers]

    def __call__(
        self,
        target_in: tf.Tensor,
        memory: list[KeysValues],
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
        caches: list[KeysValues] | None = None,
    ) -> tuple[tf.Tensor, list[Weights], list[KeysValues]]:
        """target_in (batch, target_len) → (batch, target_len, d_model), weights and next caches.

        memory: from `project_memory`. caches: in decoding, those of earlier positions, one per
        layer; target_in then has the newest token only, (batch, 1). Weights: one dict per layer.
        """
        caches = caches or [None] * len(self.layers)
        start = 0 if caches[0] is None else cache_length(caches)
        x, weights, next_caches = self.embed(target_in, seed, start), [], []
        for i, layer in enumerate(self.layers):
            x, layer_weights, cache = layer(
                x, memory[i], self_mask, cross_mask, fold_in(seed, f"layer_{i}"), caches[i]
            )
            weights.append(layer_weights)
            next_caches.append(cache)
        return self.final_norm(x), weights, next_caches


def cache_length(caches: list[KeysValues]) -> tf.Tensor:
    """Return the number of positions in caches, a scalar: the position of the next token.

    It is the length of axis 2 of the first tensor of each cache.
    """
    keys, _ = caches[0]
    return tf.shape(keys)[2]


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
        """The embedding of source tokens. TensorBoard shows its `table` (vocab_size, d_model)."""
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

        memory: from `encode`, (batch, source_len, d_model).

        weights: for each layer a dict with "self" (batch, num_heads, target_len, target_len) and
        "cross" (batch, num_heads, target_len, source_len).
        """
        projected, seed = self.decoder.project_memory(memory), fold_in(seed, "decoder")
        return self.decoder(target_in, projected, self_mask, cross_mask, seed)[:2]

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """hidden (rows, d_model) → (rows, vocab_size): section 3.4."""
        return self.output(hidden)

    def attention_weights(self, source: tf.Tensor, target_in: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return all attention weights, (batch, num_layers, num_heads, query_len, key_len) each.

        Keys: "encoder" and "decoder" (self-attention), and "cross".
        """
        source_mask, self_mask = padding_mask(source), look_ahead_mask(tf.shape(target_in)[1])
        memory, encoder = self.encoder(source, source_mask)
        _, decoder = self.decode(target_in, memory, self_mask, source_mask)
        return {
            "encoder": tf.stack(encoder, axis=1),
            "decoder": tf.stack([weights["self"] for weights in decoder], axis=1),
            "cross": tf.stack([weights["cross"] for weights in decoder], axis=1),
        }

    def init_decode(self, source: tf.Tensor) -> dict:
        """Encode source (batch, source_len) → the state of decoding before the first token.

        "memory" is what `project_memory` returns. All tensors have a row for each source; beam
        search repeats those of "caches".
        """
        source_mask = padding_mask(source)
        memory = self.decoder.project_memory(self.encode(source, source_mask))
        caches = self.decoder.empty_caches(tf.shape(source)[0])
        return {"memory": memory, "source_mask": source_mask, "caches": caches}

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """The newest token of each hypothesis, (rows,), and the state → logits, next state.

        The logits are (rows, vocab_size). Consecutive rows are hypotheses of one source.
        """
        position = cache_length(state["caches"])
        hidden, _, caches = self.decoder(
            token[:, tf.newaxis],
            state["memory"],
            look_ahead_mask(position + 1, start=position),
            state["source_mask"],
            caches=state["caches"],
        )  # hidden (rows, 1, d_model)
        return self.logits(hidden[:, 0]), state | {"caches": caches}
