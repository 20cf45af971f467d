"""Translation of text, attention weights, and loss and accuracy, with a trained model."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from data.arrays import Pairs, Ragged
from data.batches import plan_batches
from data.text import normalize_source, to_line
from data.tokenizer import EOS, PAD, Labels, Tokenizer
from evaluation.page import Attention
from evaluation.predictor import GREEDY, Predictor, decode_with
from evaluation.search import Search
from model import IDS
from model.decoding import output_limit
from model.interface import Model
from model.loss import loss_sums
from utils import UserError, amount, progress_bar, warn


class Translator(Predictor):
    """A translator or a classifier. Each graph is traced once, at its first call."""

    def __init__(
        self,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | Labels,
        max_length: int,
        search: Search = GREEDY,
        margin: int = 20,
    ):
        """margin: of the maximum length of an output, see `model.decoding.output_limit`."""
        super().__init__(model, source_tokenizer, target_tokenizer, max_length, search)
        self.margin = margin
        if self.labelled and search.n_best > len(target_tokenizer.names):
            raise UserError(f"there are {len(target_tokenizer.names)} labels: lower --n-best")
        self.truncated = self.incomplete = 0  # number of texts, and of outputs, so far
        # evaluate.py reports the probability of a label, but not that of a translation.
        scores = search.n_best > 1 or self.labelled

        @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int64)], autograph=False)
        def decode(source, batch_number):
            limit = self.output_limit(source)
            return decode_with(search, model, source, batch_number, scores, limit=limit)

        @tf.function(input_signature=[IDS, IDS], autograph=False)
        def totals(source, target):
            logits, labels, _ = model.teacher_forced(source, target)
            sums = loss_sums(logits, labels)
            return tf.stack([sums.loss, sums.correct, tf.cast(tf.size(labels), tf.float32)])

        self.decode, self.totals = decode, totals

    def output_limit(self, source: tf.Tensor) -> tf.Tensor:
        """Maximum number of tokens of each output: source (batch, source_len) → (batch,), int32."""
        if maximum := 1 if self.labelled else self.search.max_tokens:
            return tf.fill([tf.shape(source)[0]], maximum)
        return output_limit(source, self.margin)

    def loss_and_accuracy(self, pairs: Pairs) -> tuple[float, float]:
        """Return loss (nats per token) and accuracy (0 to 1) over the target tokens of pairs.

        Without dropout and label smoothing.
        """
        batches = plan_batches(pairs, batch_tokens=4096, batch_sentences=4096)
        totals = list(self.pool.map(lambda batch: self.totals(*pairs.batch(batch)), batches))
        loss, correct, tokens = np.sum(totals, axis=0, dtype=float)
        return float(loss / tokens), float(correct / tokens)

    def translate(self, texts: Sequence[str], **options) -> list[str]:
        """Return the best translation, or the label, of each text; "" for an empty text.

        options: those of `n_best`.
        """
        return [best[0][1] for best in self.n_best(texts, **options)]

    def n_best(
        self,
        texts: Sequence[str],
        batch_tokens: int = 4096,
        batch_sentences: int = 128,
        progress: bool = False,
        first: int = 1,
    ) -> list[list[tuple[float, str]]]:
        """Return `search.n_best` pairs of score and translation for each text, best first.

        Texts of more than `max_length` tokens are truncated. Samples depend on `first`, the number
        of the first text.
        """
        if isinstance(texts, str):
            raise UserError("texts is a single string: give a list of texts, such as [text]")
        texts = [normalize_source(text) for text in texts]
        indices = [i for i, text in enumerate(texts) if text]
        rows = self.encode_source([texts[i] for i in indices])
        self.truncated += sum(len(row) > self.max_length for row in rows)
        source = Ragged.of([[*row[: self.max_length], EOS] for row in rows])
        # The lengths of the outputs are unknown, so the sources take their place. The longest batch
        # comes first: no core should be left with a long batch at the end.
        batches = plan_batches(Pairs(source, source), batch_tokens, batch_sentences)[::-1]

        def decode(batch):
            return self.decode(source.padded(batch), first + int(batch[0]))  # a unique number

        outputs = [[(0.0, "")] * self.search.n_best for _ in texts]
        results = zip(batches, self.pool.map(decode, batches), strict=True)
        bar = progress_bar(results, total=len(batches), unit="batch", disable=not progress)
        for batch, (ids, scores) in bar:
            for i, row, row_scores in zip(batch, ids.numpy(), scores.numpy(), strict=True):
                self.incomplete += not self.labelled and EOS not in row[0]
                lines = map(to_line, self.target_tokenizer.decode(row))
                outputs[indices[i]] = list(zip(row_scores.tolist(), lines, strict=True))
        return outputs

    def print_warnings(self) -> None:
        """Warn of unknown characters, and of texts and outputs at their maximum length."""
        super().print_warnings()
        if self.truncated and not self.labelled:  # with labels, in training, too
            warn(f"{amount(self.truncated, 'text')} cut off after {self.max_length} tokens")
        if self.incomplete:
            warn(
                f"{amount(self.incomplete, 'output')} cut off at the maximum number of tokens; "
                "raise it with --max-tokens, unless these outputs only repeat themselves"
            )

    def attention(self, text: str, target: str | None = None) -> dict[str, Attention]:
        """Return the attention weights of a text by kind of attention, such as "cross-attention".

        weights (num_layers, num_heads, query_len, key_len) come with their query and key tokens. A
        row of the decoder has the token that is predicted there, target_out. target: used in place
        of the model's own output. Text and target are truncated to `max_length` tokens.
        """
        source = [*self.encode_source([normalize_source(text)])[0][: self.max_length], EOS]
        if target is None:
            target_out = self.decode(np.int32([source]), 0)[0].numpy()[0, 0]
            target_out = target_out[target_out != PAD].tolist()
        else:
            target_out = self.target_tokenizer.encode([target])[0][: self.max_length]
            target_out += self.target_tokenizer.ending
        return self.weights_by_kind(source, target_out)
