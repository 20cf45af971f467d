"""Text from a language model, attention weights, and the loss of each token."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.arrays import Text
from data.tokenizer import EOS, UNK, Tokenizer
from evaluation.page import Attention
from evaluation.predictor import GREEDY, Predictor
from evaluation.search import Search
from model import IDS
from model.decoding import draw, filter_logits, loop
from model.interface import Model
from model.loss import UNKNOWN_LOSS

BATCH_TOKENS = 4096  # in scoring
TOKENS = 200  # that a prompt is continued by
PART = 8  # tokens that are generated before they are printed
INCOMPLETE = "\ufffd"  # what bytes that are not a whole character are decoded to


class TokenScores(NamedTuple):
    """Scores of each token of a text: (tokens,) each."""

    losses: np.ndarray  # in nats
    correct: np.ndarray  # whether the token was the most likely one
    context: np.ndarray  # number of tokens before it that the model has read


class Generator(Predictor):
    """A language model with its tokenizer. Each graph is traced once, at its first call.

    start: the id before the first token of a text.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        max_length: int,
        start: int,
        search: Search = GREEDY,
    ):
        super().__init__(model, tokenizer, tokenizer, max_length, search, start)
        self.tokenizer = tokenizer

        @tf.function(input_signature=[IDS, IDS], autograph=False)
        def token_losses(source, target):
            logits, labels, _ = model.teacher_forced(source, target)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (tokens,)
            losses += tf.where(labels == UNK, UNKNOWN_LOSS, 0.0)
            best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
            return losses, (best == labels) & (labels != UNK)

        self.token_losses = token_losses
        self.read = tf.function(model.init_decode, input_signature=[IDS], autograph=False)

    def token_scores(self, text: Text, stride: int | None = None) -> TokenScores:
        """Score each token of a text once, in blocks that begin every `stride` tokens.

        Of a block, only the tokens that the one before it does not have are scored. So a stride
        smaller than a block gives them more context. By default, blocks do not overlap.
        """
        count, stride = len(text.tokens.ids), stride or text.block
        first = np.arange(0, max(1, count - text.block + stride), stride)
        stop = np.minimum(first + text.block, count)
        blocks = np.stack([first, stop], axis=1)  # (blocks, 2)
        rows = max(1, BATCH_TOKENS // text.block)
        batches = np.split(blocks, range(rows, len(blocks), rows))

        def score(batch):
            return [x.numpy() for x in self.token_losses(*text.batch(batch))]

        losses, correct = map(np.concatenate, zip(*self.pool.map(score, batches), strict=True))
        sizes, index = stop - first, np.concatenate([np.arange(*block) for block in blocks])
        scored = index >= np.repeat([0, *stop[:-1]], sizes)
        context = index - np.repeat(first, sizes) + 1
        return TokenScores(losses[scored], correct[scored], context[scored])

    def loss_and_accuracy(self, text: Text) -> tuple[float, float]:
        """Return the loss (nats per token) and the accuracy (0 to 1) on a text."""
        scores = self.token_scores(text)
        return float(np.mean(scores.losses, dtype=float)), float(np.mean(scores.correct))

    def generate(self, prompt: str, tokens: int = TOKENS, number: int = 0) -> str:
        """Return a continuation of a prompt, which may be empty. Samples depend on `number`."""
        return "".join(self.stream(prompt, tokens, number))

    def stream(self, prompt: str, tokens: int = TOKENS, number: int = 0) -> Iterator[str]:
        """Yield the parts of a continuation as they are generated, whole characters.

        A last character of which not all bytes are generated is left out.
        """
        (row,) = self.encode_source([prompt])
        before, waiting, text = row, [], ""  # the last ids of complete text; those after it
        for token in self.ids(row, tokens, number):
            waiting.append(token)
            start, whole = self.tokenizer.decode([before, before + waiting])
            text = whole[len(start) :]
            if not text.endswith(INCOMPLETE):
                yield text
                before, waiting = (before + waiting)[-4:], []
        if waiting:
            yield text.rstrip(INCOMPLETE)

    def ids(self, row: Sequence[int], tokens: int, number: int = 0) -> Iterator[int]:
        """Yield up to `tokens` ids that continue a row of ids, the last of which may be eos.

        The model reads at most `max_length` ids. When they are full, it continues after the latest
        half of them.
        """
        ids, state, left = [self.start, *row], None, tokens
        while left:
            if len(ids) > self.max_length:
                ids, state = ids[-max(1, self.max_length // 2) :], None
            if state is None:
                state = self.read(np.int32([ids[:-1]]))
            count = min(PART, left, self.max_length - len(ids) + 1)
            seed = tf.constant(number * 2**40 + tokens - left, tf.int64)
            new, state = self.extend(tf.constant(ids[-1:]), state, seed, tf.constant(count))
            left -= count
            for token in new.numpy().tolist():
                yield token
                if token == EOS:
                    return
                ids.append(token)

    @functools.cached_property
    def extend(self) -> Callable:
        """A graph that generates tokens after the last of `ids`, for states of every length.

        It is concrete: a tf.function would search for it by the shapes of the state.
        """
        search = self.search

        def step(loop_state):
            ids, state, seed = loop_state
            logits, state = self.model.decode_step(ids[-1:], state)  # (1, vocab_size)
            if search.sample:
                logits = filter_logits(logits, search.temperature, search.top_k, search.top_p)
                token = draw(logits, tf.stack([search.seed or 0, seed]))
            else:
                token = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return tf.concat([ids, token], axis=0), state, seed + 1

        def extend(ids, state, seed, count):
            start = ids, state, seed
            ids, state, _ = loop(lambda loop_state: tf.size(loop_state[0]) <= count, step, start)
            return ids[1:], state

        state = tf.nest.map_structure(
            lambda x: tf.TensorSpec([None] * x.shape.rank, x.dtype), self.read(np.int32([[]]))
        )
        number = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)
        ids = tf.TensorSpec([None], tf.int32)
        return tf.function(extend, autograph=False).get_concrete_function(ids, state, *number)

    def attention(self, text: str, target: str | None = None) -> dict[str, Attention]:
        """Return {"decoder self-attention": …} of the first `max_length` tokens of a text.

        A row has the token that is predicted there. Returns {} if no token is known.
        """
        ids = self.encode_source([text + (target or "")])[0][: self.max_length]
        return self.weights_by_kind([], ids) if ids else {}
