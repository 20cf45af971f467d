"""Text from a language model, attention weights, and the loss of each token."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.arrays import Ragged, Text
from data.encoding import encode_texts
from data.tokenizer import EOS, UNK, Tokenizer
from evaluation.page import Attention
from evaluation.predictor import GREEDY, Predictor, decode_with
from evaluation.search import Search
from model import IDS
from model.interface import Model
from model.loss import UNKNOWN_LOSS
from utils import UserError

BATCH_TOKENS = 4096  # in scoring
TOKENS = 200  # that a prompt is continued by
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
        super().__init__(model, tokenizer, tokenizer, max_length, search)
        self.tokenizer, self.start = tokenizer, start
        self.read = tf.queue.FIFOQueue(2**20, tf.int32, ())  # the tokens of `stream`

        row, number = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int64)
        inputs, scores = [IDS, row, row, IDS, number], search.n_best > 1

        @tf.function(input_signature=inputs, autograph=False)
        def decode(source, first, limit, prefix, stream):
            return decode_with(search, model, source, stream, scores, first, limit, prefix)

        @tf.function(input_signature=inputs, autograph=False)
        def decode_stream(source, first, limit, prefix, stream):
            observed = Observed(model, self.read)
            return decode_with(search, observed, source, stream, scores, first, limit, prefix)

        @tf.function(input_signature=[IDS, IDS], autograph=False)
        def token_losses(source, target):
            logits, labels, _ = model.teacher_forced(source, target)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (tokens,)
            losses += tf.where(labels == UNK, UNKNOWN_LOSS, 0.0)
            best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
            return losses, (best == labels) & (labels != UNK)

        self.decode, self.decode_stream, self.token_losses = decode, decode_stream, token_losses

    def trace(self) -> None:
        """Call two graphs on a tiny input: the first call traces them, which takes seconds."""
        self.extend([[]], tokens=1)
        self.token_losses(np.zeros((1, 0), np.int32), np.int32([[self.start, EOS]]))

    # ---- Scores ----

    def encode(self, texts: Sequence[str], documents: bool) -> Text:
        """Encode texts. documents: whether each is a document, which ends in eos."""
        rows = encode_texts(texts, self.tokenizer, [EOS] if documents else [])
        return Text(rows, self.start, self.max_length)

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

    # ---- Texts ----

    def generate(
        self, prompts: str | Sequence[str], tokens: int = TOKENS, number: int = 0
    ) -> list[str]:
        """Continue each prompt by up to `tokens` tokens. Returns the continuations only.

        A prompt may be empty. Samples with another `number` differ. A last character of which not
        all bytes are generated is left out.
        """
        rows = self.tokenizer.encode([prompts] if isinstance(prompts, str) else prompts)
        before = self.tokenizer.decode(rows)
        texts = self.tokenizer.decode(self.extend(rows, tokens, number))
        continuations = (x[len(prompt) :] for x, prompt in zip(texts, before, strict=True))
        return [text.rstrip(INCOMPLETE) for text in continuations]

    def stream(self, prompt: str, tokens: int = TOKENS, number: int = 0) -> Iterator[str]:
        """Continue a prompt as `generate` does. Yields parts of the text as they are generated.

        A part ends after a whole character. Beam search has only one part. One stream at a time.
        """
        (row,), last = self.tokenizer.encode([prompt]), -1  # not the id of a token

        def run():
            try:
                return self.extend([row], tokens, number, stream=self.search.beam == 1)[0]
            finally:
                self.read.enqueue(last)

        output = self.pool.submit(run)
        parts, count, token = Parts(self.tokenizer, row), 0, None
        try:
            while (token := int(self.read.dequeue())) != last:
                count += 1
                if count > 1:  # the first one is the last one of the prompt
                    yield parts.add([token])
        finally:
            while token != last:  # the caller has stopped: leave nothing for the next stream
                token = int(self.read.dequeue())
        yield parts.add(output.result()[len(row) + max(0, count - 1) :], complete=True)

    def extend(
        self, rows: Sequence[list[int]], tokens: int, number: int = 0, stream: bool = False
    ) -> list[list[int]]:
        """Continue each row of ids by up to `tokens` ids, the last of which may be eos.

        The model reads at most `max_length` tokens. When they are full, the search continues after
        the latest half of them. stream: put the tokens of the only row into a queue.
        """
        rows, turn = [list(row) for row in rows], number * 2**20
        goals = [len(row) + tokens for row in rows]
        decode = self.decode_stream if stream else self.decode
        while left := [
            i for i in range(len(rows)) if len(rows[i]) < goals[i] and not ends(rows[i])
        ]:
            read = [self.latest([self.start, *rows[i]]) for i in left]
            # What all rows have is read in one pass, the rest token by token.
            common = min(map(len, read)) - 1
            source = np.int32([row[:common] for row in read]).reshape(len(read), common)
            first = np.int32([row[common] for row in read])
            rest = Ragged.of([row[common + 1 :] for row in read])
            needed = [goals[i] - len(rows[i]) for i in left]
            limit = np.minimum(rest.lengths + needed, self.max_length - common).astype(np.int32)
            prefix = rest.padded(np.arange(len(read)))
            outputs = decode(source, first, limit, prefix, turn)[0].numpy()[:, 0]
            for i, output, skipped, stop in zip(left, outputs, rest.lengths, limit, strict=True):
                new = output[skipped:stop].tolist()
                rows[i] += new[: new.index(EOS) + 1] if EOS in new else new
            turn += 1
        return rows

    def latest(self, row: list[int]) -> list[int]:
        """Return a row of ids, or the latest part of it if it leaves no room for another token."""
        return row if len(row) <= self.max_length else row[-max(1, self.max_length // 2) :]

    def attention(self, text: str, target: str | None = None) -> dict[str, Attention]:
        """Return {"decoder self-attention": …} of the first `max_length` tokens of a text.

        A row has the token that is predicted there. Raises UserError for an empty text.
        """
        ids = self.tokenizer.encode([text + (target or "")])[0][: self.max_length]
        if not ids:
            raise UserError("the text is empty: give one with words")
        return self.weights_by_kind([], ids, self.start)


def ends(row: Sequence[int]) -> bool:
    """Return whether a row of ids ends in eos."""
    return bool(row) and row[-1] == EOS


class Observed:
    """A model that puts each token that it reads in decoding, of one row, into a queue."""

    def __init__(self, model: Model, queue: tf.queue.FIFOQueue):
        self.model, self.queue = model, queue
        self.init_decode = model.init_decode

    def decode_step(self, token: tf.Tensor, state: dict) -> tuple[tf.Tensor, dict]:
        """Decode a token, (1,)."""
        self.queue.enqueue(token[0])
        return self.model.decode_step(token, state)


class Parts:
    """The text of tokens that arrive one after another, in whole characters.

    before: the ids before them, which are not part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]):
        self.tokenizer = tokenizer
        self.last, self.waiting = list(before), []  # the last ids of complete text; those after it

    def add(self, tokens: Sequence[int], complete: bool = False) -> str:
        """Return the text of new tokens, or "" if it ends within a character.

        complete: whether no more tokens follow. An incomplete character is then left out.
        """
        self.waiting += tokens
        before, text = self.tokenizer.decode([self.last, self.last + self.waiting])
        if text.endswith(INCOMPLETE) and not complete:
            return ""
        self.last, self.waiting = (self.last + self.waiting)[-4:], []
        return text[len(before) :].rstrip(INCOMPLETE)
