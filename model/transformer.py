"""The Transformer: "Attention Is All You Need" (Vaswani et al. 2017), section 3."""

from collections.abc import Callable

import tensorflow as tf

from config import Config
from model.attention import KeysValues, MultiHeadAttention
from model.interface import Intermediates, TeacherForcing
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


def make_norms(config: Config) -> tuple[Callable, Callable]:
    """Create the layer norms before and after a sublayer. One of the two is the identity.

    Pre-norm: x + dropout(sublayer(norm(x))), Xiong et al. 2020. Post-norm, as in section 3.1:
    norm(x + dropout(sublayer(x))).
    """
    norm = LayerNorm(config.d_model)
    return (norm, no_norm) if config.norm == "pre" else (no_norm, norm)


class Layer(tf.Module):
    """Self-attention, in a decoder cross-attention, and a feed-forward network: figure 1.

    Encoders, classifiers and language models have no cross-attention.
    """

    def __init__(self, config: Config, seed: Seed, cross: bool = False):
        attention_seed = fold_in(seed, "self_attention" if cross else "attention")
        self.attention = MultiHeadAttention(config, attention_seed)
        self.attention_pre_norm, self.attention_post_norm = make_norms(config)
        self.cross_attention = None
        if cross:
            self.cross_attention = MultiHeadAttention(config, fold_in(seed, "cross_attention"))
            self.cross_pre_norm, self.cross_post_norm = make_norms(config)
        self.feed_forward = FeedForward(config, fold_in(seed, "feed_forward"))
        self.feed_forward_pre_norm, self.feed_forward_post_norm = make_norms(config)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: tf.Tensor,
        mask: tf.Tensor,
        seed: Seed | None = None,
        cache: KeysValues | None = None,
        memory: KeysValues | None = None,
        memory_mask: tf.Tensor | None = None,
        real: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Intermediates, KeysValues]:
        """x (batch, length, d_model) → the same shape, intermediates, and the next cache.

        cache: see `self_attend`. memory: `cross_attention.keys_values` of the encoder's output.
        real: (batch, length), bool, False at padding; for edits that combine positions of x.
        """
        name = "self_attention" if self.cross_attention else "attention"
        rate, attention_seed = self.dropout_rate, fold_in(seed, name)
        y, weights, cache = self.attention.self_attend(
            self.attention_pre_norm(x), mask, attention_seed, cache
        )
        x = self.attention_post_norm(x + dropout(y, rate, attention_seed))
        intermediates = {"self": weights}

        if self.cross_attention:
            cross_seed = fold_in(seed, "cross_attention")
            y, intermediates["cross"] = self.cross_attention.cross_attend(
                self.cross_pre_norm(x), memory, memory_mask, cross_seed
            )
            x = self.cross_post_norm(x + dropout(y, rate, cross_seed))

        y = self.feed_forward(self.feed_forward_pre_norm(x))
        x = self.feed_forward_post_norm(x + dropout(y, rate, fold_in(seed, "feed_forward")))
        return x, intermediates, cache


class Stack(tf.Module):
    """Embedding, positions, layers and final norm: an encoder, a decoder or a language model.

    cross: whether the layers have cross-attention, as those of a decoder (section 3.1).
    """

    def __init__(self, config: Config, embedding: Embedding, seed: Seed, cross: bool = False):
        self.embedding, self.dropout_rate = embedding, config.dropout_rate
        # One more than max_length: a source ends in eos, and target_in begins with bos.
        self.positions = POSITIONS[config.positions](
            config.d_model, config.max_length + 1, fold_in(seed, "positions")
        )
        self.layers = [
            Layer(config, fold_in(seed, f"layer_{i}"), cross) for i in range(config.num_layers)
        ]
        # Pre-norm leaves the last sum without a norm.
        self.final_norm = LayerNorm(config.d_model) if config.norm == "pre" else no_norm

    def embed(self, ids: tf.Tensor, seed: Seed | None, start: int | tf.Tensor = 0) -> tf.Tensor:
        """ids (batch, length), at positions start, start + 1, … → (batch, length, d_model)."""
        x = self.embedding(ids) + self.positions(start, start + tf.shape(ids)[1])
        return dropout(x, self.dropout_rate, fold_in(seed, "embedding"))

    def __call__(
        self,
        ids: tf.Tensor,
        mask: tf.Tensor,
        seed: Seed | None = None,
        caches: list[KeysValues] | None = None,
        memory: list[KeysValues] | None = None,
        memory_mask: tf.Tensor | None = None,
        start: int | tf.Tensor = 0,
    ) -> tuple[tf.Tensor, list[Intermediates], list[KeysValues]]:
        """ids (batch, length) → (batch, length, d_model), intermediates and next caches, per layer.

        mask: of the keys in self-attention. caches: in decoding, those of earlier positions; ids
        are then the newest token only, (batch, 1), at position start. memory: of `project_memory`.
        """
        caches = caches or [None] * len(self.layers)
        memory = memory or [None] * len(self.layers)
        real = padding_mask(ids)[:, 0, 0]  # (batch, length)
        x, intermediates, next_caches = self.embed(ids, seed, start), [], []
        for i, layer in enumerate(self.layers):
            layer_seed = fold_in(seed, f"layer_{i}")
            x, of_layer, cache = layer(x, mask, layer_seed, caches[i], memory[i], memory_mask, real)
            intermediates.append(of_layer)
            next_caches.append(cache)
        return self.final_norm(x), intermediates, next_caches

    def project_memory(self, memory: tf.Tensor) -> list[KeysValues]:
        """Return the keys and values of each layer's cross-attention, once per source."""
        return [layer.cross_attention.keys_values(memory) for layer in self.layers]

    def empty_caches(self, batch: int | tf.Tensor) -> list[KeysValues]:
        """Return the cache of each layer's self-attention before the first position."""
        return [layer.attention.empty_cache(batch) for layer in self.layers]


class Transformer(TeacherForcing):
    """The encoder-decoder model, from ids to logits. Its methods are described in `Model`."""

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int):
        seed = initial_seed(config.seed)
        source_embedding, target_embedding, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.encoder = Stack(config, source_embedding, fold_in(seed, "encoder"))
        self.decoder = Stack(config, target_embedding, fold_in(seed, "decoder"), cross=True)

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of source tokens."""
        return self.encoder.embedding

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """source (batch, source_len) → memory (batch, source_len, d_model), intermediates."""
        return self.encoder(source, source_mask, fold_in(seed, "encoder"))[:2]

    def decode(
        self,
        target_in: tf.Tensor,
        memory: tf.Tensor,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """target_in (batch, target_len) → hidden (batch, target_len, d_model), intermediates."""
        memory, seed = self.decoder.project_memory(memory), fold_in(seed, "decoder")
        hidden, intermediates, _ = self.decoder(
            target_in, self_mask, seed, memory=memory, memory_mask=cross_mask
        )
        return hidden, intermediates

    def init_decode(self, source: tf.Tensor) -> dict:
        """source (batch, source_len) → the state of decoding. "memory" is of `project_memory`."""
        source_mask = padding_mask(source)
        memory = self.decoder.project_memory(self.encode(source, source_mask)[0])
        batch = tf.shape(source)[0]
        caches, position = self.decoder.empty_caches(batch), tf.zeros([batch], tf.int32)
        state = {"memory": memory, "source_mask": source_mask}
        return state | {"position": position, "caches": caches}

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """token (rows,), the newest, and the state → logits (rows, vocab_size), next state."""
        position = state["position"][0]
        hidden, _, caches = self.decoder(
            token[:, tf.newaxis],
            look_ahead_mask(position + 1, start=position),
            caches=state["caches"],
            memory=state["memory"],
            memory_mask=state["source_mask"],
            start=position,
        )  # hidden (rows, 1, d_model)
        state = state | {"position": state["position"] + 1, "caches": caches}
        return self.logits(hidden[:, 0]), state
