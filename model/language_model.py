"""Language model: a decoder-only Transformer, which predicts each token from those before it.

The decoder of the Transformer without its cross-attention: Liu et al. 2018, section 4.2.3, and GPT,
Radford et al. 2018, section 3.1. As everywhere here, layer norm and positions are settings.
"""

import tensorflow as tf

from config import Config
from model.interface import Intermediates, TeacherForcing
from model.layers import Embedding, Seed, fold_in, initial_seed, make_embeddings
from model.masks import look_ahead_mask
from model.transformer import Stack


class LanguageModel(TeacherForcing):
    """A stack of layers with masked self-attention, and a projection to the vocabulary.

    It is trained and decoded as the encoder-decoders are, with a source of no tokens. A target is a
    block of text. The methods are described in `Model`.
    """

    # Whether `init_decode` lets each token of a prompt attend to the later ones, as in a prefix
    # language model.
    bidirectional_prompt = False

    def __init__(self, config: Config, source_vocab_size: int, target_vocab_size: int):
        seed = initial_seed(config.seed)
        _, embedding, self.output = make_embeddings(
            config, source_vocab_size, target_vocab_size, seed
        )
        self.decoder = Stack(config, embedding, fold_in(seed, "decoder"))

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of tokens."""
        return self.decoder.embedding

    def encode(
        self, source: tf.Tensor, source_mask: tf.Tensor, seed: Seed | None = None
    ) -> tuple[None, list]:
        """There is no memory, because there is no source."""
        return None, []

    def decode(
        self,
        target_in: tf.Tensor,
        memory: None,
        self_mask: tf.Tensor,
        cross_mask: tf.Tensor | None,
        seed: Seed | None = None,
    ) -> tuple[tf.Tensor, list[Intermediates]]:
        """target_in (batch, target_len) → hidden (batch, target_len, d_model), intermediates."""
        return self.decoder(target_in, self_mask, fold_in(seed, "decoder"))[:2]

    def init_decode(self, source: tf.Tensor) -> dict:
        """source (batch, source_len), the text before the target → the state of decoding.

        The source is read in one pass. It must not be padded.
        """
        batch, length = tf.unstack(tf.shape(source))
        caches = tf.cond(
            length > 0,
            lambda: self.decoder(source, look_ahead_mask(length))[2],
            lambda: self.decoder.empty_caches(batch),
        )
        return {"position": tf.fill([batch], length), "caches": caches}

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """token (rows,), the newest, and the state → logits (rows, vocab_size), next state."""
        position = state["position"][0]
        mask = look_ahead_mask(position + 1, start=position)
        hidden, _, caches = self.decoder(
            token[:, tf.newaxis], mask, caches=state["caches"], start=position
        )
        state = {"position": state["position"] + 1, "caches": caches}
        return self.logits(hidden[:, 0]), state
