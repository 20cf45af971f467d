"""The Transformer: "Attention Is All You Need" (Vaswani et al. 2017), section 3."""

import tensorflow as tf

from model.attention import MultiHeadAttention
from model.layers import FeedForward, LayerNorm, dropout, fold_in, make_embeddings
from model.masks import look_ahead_mask, masks, padding_mask
from model.positions import POSITIONS


class Residual(tf.Module):
    """The way around a sublayer: y = sublayer(way.enter(x)), then x = way.leave(x, y, seed)."""

    def __init__(self, d_model, dropout_rate):
        self.norm, self.dropout_rate = LayerNorm(d_model), dropout_rate


class PostNorm(Residual):
    """LayerNorm(x + Dropout(Sublayer(x))), as in sections 3.1 and 5.4."""

    def enter(self, x):
        return x

    def leave(self, x, y, seed):
        return self.norm(x + dropout(y, self.dropout_rate, seed))


class PreNorm(Residual):
    """x + Dropout(Sublayer(LayerNorm(x))): Xiong et al. 2020. The stacks end in one more norm."""

    def enter(self, x):
        return self.norm(x)

    def leave(self, x, y, seed):
        return x + dropout(y, self.dropout_rate, seed)


RESIDUAL = {"post": PostNorm, "pre": PreNorm}


class EncoderLayer(tf.Module):
    """Self-attention, then a feed-forward network: figure 1, left."""

    def __init__(self, config, seed):
        size = config.d_model
        residual = RESIDUAL[config.norm]
        self.attention = MultiHeadAttention(
            size, config.num_heads, config.depth, fold_in(seed, "attention")
        )
        self.feed_forward = FeedForward(size, config.dff, fold_in(seed, "feed_forward"))
        self.attention_residual = residual(size, config.dropout_rate)
        self.feed_forward_residual = residual(size, config.dropout_rate)

    def __call__(self, x, mask, seed=None):
        """x (batch, length, d_model) → the same, and weights (batch, num_heads, length, length)."""
        y = self.attention_residual.enter(x)
        y, weights = self.attention(y, self.attention.project_keys_values(y), mask)
        x = self.attention_residual.leave(x, y, fold_in(seed, "attention"))
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, y, fold_in(seed, "feed_forward")), weights


class DecoderLayer(tf.Module):
    """Masked self-attention, attention to the memory, a feed-forward network: figure 1, right."""

    def __init__(self, config, seed):
        size, heads = config.d_model, (config.num_heads, config.depth)
        residual = RESIDUAL[config.norm]
        self.self_attention = MultiHeadAttention(size, *heads, fold_in(seed, "self_attention"))
        self.cross_attention = MultiHeadAttention(size, *heads, fold_in(seed, "cross_attention"))
        self.feed_forward = FeedForward(size, config.dff, fold_in(seed, "feed_forward"))
        self.self_residual = residual(size, config.dropout_rate)
        self.cross_residual = residual(size, config.dropout_rate)
        self.feed_forward_residual = residual(size, config.dropout_rate)

    def __call__(self, x, memory_keys_values, self_mask, cross_mask, seed=None, past=None):
        """x (batch, query_len, d_model) → the same, this layer's keys and values, and weights.

        past: the keys and values of earlier positions, which come before x's own in decoding.
        """
        y = self.self_residual.enter(x)
        present = self.self_attention.project_keys_values(y)
        if past is not None:
            present = [tf.concat(pair, axis=2) for pair in zip(past, present, strict=True)]
        y, self_weights = self.self_attention(y, present, self_mask)
        x = self.self_residual.leave(x, y, fold_in(seed, "self_attention"))
        y = self.cross_residual.enter(x)
        # In beam search, several rows are hypotheses of one source: they ask its memory together.
        shape, sources = tf.shape(y), tf.shape(memory_keys_values[0])[0]
        y = tf.reshape(y, (sources, -1, y.shape[-1]))
        y, cross_weights = self.cross_attention(y, memory_keys_values, cross_mask)
        y = tf.reshape(y, shape)
        x = self.cross_residual.leave(x, y, fold_in(seed, "cross_attention"))
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, y, fold_in(seed, "feed_forward"))
        return x, present, {"self": self_weights, "cross": cross_weights}


class Stack(tf.Module):
    """What encoder and decoder share: embedding, positions, dropout, layers, a last norm."""

    def __init__(self, config, embedding, layer, seed):
        self.embedding, self.dropout_rate = embedding, config.dropout_rate
        # The longest source comes with its eos, the longest target_in with its bos.
        self.positions = POSITIONS[config.positions](
            config.d_model, config.max_length + 1, fold_in(seed, "positions")
        )
        self.layers = [layer(config, fold_in(seed, f"layer_{i}")) for i in range(config.num_layers)]
        self.last_norm = LayerNorm(config.d_model) if config.norm == "pre" else tf.identity

    def embed(self, ids, start, seed):
        """ids (batch, length), the first at position `start` → (batch, length, d_model)."""
        x = self.embedding(ids) + self.positions(start, start + tf.shape(ids)[1])
        return dropout(x, self.dropout_rate, fold_in(seed, "embedding"))


class Encoder(Stack):
    """Section 3.1: a stack of EncoderLayers."""

    def __call__(self, source, mask, seed=None):
        """source (batch, source_len) → memory (batch, source_len, d_model), weights a layer."""
        x, weights = self.embed(source, 0, seed), []
        for i, layer in enumerate(self.layers):
            x, layer_weights = layer(x, mask, fold_in(seed, f"layer_{i}"))
            weights.append(layer_weights)
        return self.last_norm(x), weights


class Decoder(Stack):
    """Section 3.1: a stack of DecoderLayers."""

    def memory_keys_values(self, memory):
        """What the memory offers to each layer's cross-attention."""
        return [layer.cross_attention.project_keys_values(memory) for layer in self.layers]

    def __call__(self, ids, memory_keys_values, self_mask, cross_mask, seed=None, past=None):
        """ids (batch, query_len) → (batch, query_len, d_model), keys and values, weights a layer.

        past: the second result of the call for the earlier positions, None at the beginning.
        """
        start = 0 if past is None else tf.shape(past[0][0])[2]
        x, present, weights = self.embed(ids, start, seed), [], []
        for i, layer in enumerate(self.layers):
            x, layer_present, layer_weights = layer(
                x, memory_keys_values[i], self_mask, cross_mask, fold_in(seed, f"layer_{i}"),
                None if past is None else past[i],
            )  # fmt: skip
            present.append(layer_present)
            weights.append(layer_weights)
        return self.last_norm(x), present, weights


class Transformer(tf.Module):
    """The whole model, from ids to logits.

    config: d_model, num_heads, key_dim, dff, num_layers, dropout_rate, norm, positions, max_length,
    shared_vocabulary, tie_embeddings, seed. All variables exist when `__init__` returns. A seed of
    None, everywhere below, means: no dropout.
    """

    def __init__(self, config, source_vocab_size, target_vocab_size):
        seed = tf.constant([config.seed, -1], tf.int64)  # steps count from 0: −1 is the beginning
        source, target, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.encoder = Encoder(config, source, EncoderLayer, fold_in(seed, "encoder"))
        self.decoder = Decoder(config, target, DecoderLayer, fold_in(seed, "decoder"))

    @property
    def source_embedding(self):
        """What pieces of the source mean, before any context."""
        return self.encoder.embedding

    def encode(self, source, source_mask, seed=None):
        """source (batch, source_len), int → memory (batch, source_len, d_model)."""
        return self.encoder(source, source_mask, fold_in(seed, "encoder"))[0]

    def decode(self, target_in, memory, self_mask, cross_mask, seed=None):
        """target_in (batch, target_len), int → hidden (batch, target_len, d_model), weights.

        weights: a dict for each layer, "self" (batch, num_heads, target_len, target_len) and
        "cross" (batch, num_heads, target_len, source_len).
        """
        keys_values = self.decoder.memory_keys_values(memory)
        seed = fold_in(seed, "decoder")
        hidden, _, weights = self.decoder(target_in, keys_values, self_mask, cross_mask, seed)
        return hidden, weights

    def logits(self, hidden):
        """hidden (…, d_model) → (…, vocab_size): section 3.4."""
        return self.output(hidden)

    def attention(self, source, target_in):
        """All weights: a dict of (batch, num_layers, num_heads, query_len, key_len), by kind."""
        target_mask, source_mask = masks(source, target_in)
        memory, encoder = self.encoder(source, source_mask)
        _, decoder = self.decode(target_in, memory, target_mask, source_mask)
        return {
            "encoder": tf.stack(encoder, axis=1),
            "decoder": tf.stack([weights["self"] for weights in decoder], axis=1),
            "cross": tf.stack([weights["cross"] for weights in decoder], axis=1),
        }

    def start(self, source):
        """Decoding's state before the first token, from source (batch, source_len)."""
        source_mask = padding_mask(source)
        memory = self.encode(source, source_mask)
        keys_values = self.decoder.memory_keys_values(memory)
        past = [[pair[0][:, :, :0], pair[1][:, :, :0]] for pair in keys_values]  # of length 0
        return {"memory": keys_values, "source_mask": source_mask, "past": past}

    def step(self, token, state):
        """The last token of each row, (batch,), and the state → logits (batch, vocab), state."""
        length = tf.shape(state["past"][0][0])[2] + 1
        self_mask = look_ahead_mask(1, length)
        hidden, past, _ = self.decoder(
            token[:, tf.newaxis], state["memory"], self_mask, state["source_mask"],
            past=state["past"],
        )  # fmt: skip
        return self.logits(hidden[:, 0]), state | {"past": past}
