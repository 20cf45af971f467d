"""Translation of text, attention weights, and loss and accuracy, with a trained model."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from config import Config
from data import tokenizer
from data.batches import Pairs, Ragged, plan_batches
from data.tokenizer import BOS, EOS, PAD, Labels, Tokenizer
from evaluation.page import Attention
from evaluation.search import Search
from model import IDS, build
from model.decoding import beam_search, greedy, sample
from model.loss import loss_sums, teacher_forced_logits
from same_code import changed_files
from training.checkpoints import checkpoint_folder, readable_checkpoints, restore_model
from training.records import load_config
from utils import UserError, warn

GREEDY = Search()
# Name of each kind of attention in the models: its title, its query tokens, its key tokens.
ATTENTION = {
    "encoder": ("encoder self-attention", "source", "source"),
    "decoder": ("decoder self-attention", "target_out", "target_in"),
    "cross": ("cross-attention", "target_out", "source"),
}


def decode_with(
    search: Search,
    model: tf.Module,
    source: tf.Tensor,
    batch_number: tf.Tensor | int = 0,
    scores: bool = True,
    one_token: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode source (batch, source_len) → ids (batch, n_best, output_len), scores (batch, n_best).

    Scores are log probabilities, divided by the length penalty in beam search. They are NaN for
    samples, and for greedy search with scores=False, which is faster. Samples depend on
    `batch_number`, a scalar. one_token: the outputs are labels.
    """
    special = (BOS, EOS)
    limit = tf.ones(tf.shape(source)[0], tf.int32) if one_token else None
    if search.sample:
        filters = (search.temperature, search.top_k, search.top_p)
        stream = tf.cast(batch_number, tf.int64) * 2**20
        seed = tf.stack([tf.constant(search.seed, tf.int64), stream])
        outputs = sample(model, source, *special, seed, *filters, limit)
    elif search.beam == 1 and not scores:
        outputs = greedy(model, source, *special, limit)
    else:
        penalty = search.length_penalty if search.beam > 1 else 0.0
        return beam_search(model, source, *special, search.beam, penalty, search.n_best, limit)
    return outputs[:, tf.newaxis], tf.fill((tf.shape(source)[0], 1), float("nan"))


class Translator:
    """A model with its tokenizers. Each graph is traced once, at its first call."""

    def __init__(
        self,
        model: tf.Module,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | Labels,
        max_length: int,
        search: Search = GREEDY,
    ):
        self.model, self.max_length, self.search = model, max_length, search
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.labelled = isinstance(target_tokenizer, Labels)
        self.warned = False  # that a text was truncated
        self.pool = ThreadPoolExecutor(tf.config.threading.get_inter_op_parallelism_threads() or 1)
        # evaluate.py reports the probability of a label, but not that of a translation.
        scores = search.n_best > 1 or self.labelled

        @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int64)], autograph=False)
        def decode(source, batch_number):
            return decode_with(search, model, source, batch_number, scores, self.labelled)

        @tf.function(input_signature=[IDS, IDS], autograph=False)
        def totals(source, target):
            logits, labels = teacher_forced_logits(model, source, target)
            _, loss, correct = loss_sums(logits, labels)
            return tf.stack([loss, correct, tf.cast(tf.size(labels), tf.float32)])

        self.decode, self.totals = decode, totals

    def trace(self) -> None:
        """Call both graphs on a tiny batch: the first call traces them, which takes seconds."""
        ids = np.array([[BOS, EOS]], np.int32)
        self.decode(ids, 0)
        self.totals(ids, ids)

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(variable.shape.num_elements() for variable in self.model.trainable_variables)

    def loss_and_accuracy(
        self, pairs: Pairs, batches: Sequence[np.ndarray] | None = None
    ) -> tuple[float, float]:
        """Return loss (nats per token) and accuracy (0 to 1) over the target tokens of batches.

        batches: index arrays into the Pairs; by default, those of all Pairs. Without dropout and
        label smoothing.
        """
        batches = batches or plan_batches(pairs, batch_tokens=4096, batch_sentences=4096)
        totals = list(self.pool.map(lambda batch: self.totals(*pairs.batch(batch)), batches))
        loss, correct, tokens = np.sum(totals, axis=0, dtype=float)
        return float(loss / tokens), float(correct / tokens)

    def translate(
        self,
        texts: Sequence[str],
        batch_tokens: int = 4096,
        batch_sentences: int = 128,
        progress: bool = False,
    ) -> list[str]:
        """Return the best translation, or the label, of each text; "" for an empty text."""
        outputs = self.n_best(texts, batch_tokens, batch_sentences, progress)
        return [best[0][1] for best in outputs]

    def n_best(
        self,
        texts: Sequence[str],
        batch_tokens: int = 4096,
        batch_sentences: int = 128,
        progress: bool = False,
        first: int = 1,
    ) -> list[list[tuple[float, str]]]:
        """Return `search.n_best` pairs of score and translation for each text, best first.

        Texts of more than `max_length` tokens are truncated, with a warning for the first of them,
        which numbers the texts from `first`.
        """
        texts = [" ".join(text.split("\n")) for text in texts]
        indices = [i for i, text in enumerate(texts) if text.strip()]
        rows = self.source_tokenizer.encode([texts[i] for i in indices])
        long = [i for i, row in zip(indices, rows, strict=True) if len(row) > self.max_length]
        # Texts with labels are truncated in training, too.
        if long and not self.labelled and not self.warned:
            self.warned = True
            warn(
                f"text {first + long[0]:,} has more than {self.max_length} tokens: of such texts, "
                f"only the first {self.max_length} tokens are translated"
            )
        source = Ragged.of([[*row[: self.max_length], EOS] for row in rows])
        # The lengths of the outputs are unknown, so the sources take their place. The longest batch
        # comes first: no core should be left with a long batch at the end.
        batches = plan_batches(Pairs(source, source), batch_tokens, batch_sentences)[::-1]

        def decode(batch):
            batch_number = first + int(batch[0])  # unique
            return [x.numpy() for x in self.decode(source.padded(batch), batch_number)]

        outputs = [[(0.0, "")] * self.search.n_best for _ in texts]
        # The progress bar appears only on a terminal.
        with tqdm(total=len(rows), unit="line", leave=False, disable=not progress or None) as bar:
            for batch, (ids, scores) in zip(batches, self.pool.map(decode, batches), strict=True):
                for i, row, row_scores in zip(batch, ids, scores, strict=True):
                    decoded = self.target_tokenizer.decode(row)
                    # Some programs also end a line at U+2028 and other characters.
                    lines = [" ".join(text.splitlines()) for text in decoded]
                    outputs[indices[i]] = list(zip(row_scores.tolist(), lines, strict=True))
                bar.update(len(batch))
        return outputs

    def attention(self, text: str, target: str | None = None) -> dict[str, Attention]:
        """Return the attention weights of a text by kind of attention, such as "cross-attention".

        weights (num_layers, num_heads, query_len, key_len) come with their query and key tokens. A
        row of the decoder has the token that is predicted there, target_out. target: used in place
        of the model's own output. Raises UserError for an empty text.
        """
        source = self.source_tokenizer.encode([text])[0][: self.max_length]
        if not source:
            raise UserError("the text is empty: give one with words")
        source = np.int32([[*source, EOS]])
        if target is None:
            target_out = self.decode(source, 0)[0].numpy()[0, 0]
            target_out = target_out[target_out != PAD].tolist()
        else:
            target_out = self.target_tokenizer.encode([target])[0] + self.target_tokenizer.ending
        target_in = [BOS, *target_out[:-1]]
        tokens = {
            "source": self.source_tokenizer.tokens(source[0]),
            "target_in": self.target_tokenizer.tokens(target_in),
            "target_out": self.target_tokenizer.tokens(target_out),
        }
        kinds = {}
        for kind, weights in self.model.attention_weights(source, np.int32([target_in])).items():
            name, queries, keys = ATTENTION[kind]
            kinds[name] = Attention(weights[0].numpy(), tokens[queries], tokens[keys])
        return kinds


def load(
    run: str | Path,
    config: Config | None = None,
    checkpoint: str = "last",
    average: int = 1,
    search: Search = GREEDY,
) -> Translator:
    """Load the model of a run directory from its `last` or `best` checkpoint, in float32.

    config: by default the run's own; a warning says if the code of the model has changed since.
    average: number of latest epochs whose final weights are averaged (section 6.1). Raises OSError
    for a missing file, and UserError if a checkpoint is missing or does not fit the model.
    """
    if config is None:
        config, source = load_config(run), Path(run, "source")
        if names := source.exists() and changed_files("evaluation", source):
            warn(f"{names[0]} has changed since {run} was trained")
    tokenizers = tokenizer.load_pair(run, config.lowercase, config.tokenizer == "word")
    config = dataclasses.replace(config, precision="float32")
    model = build(config, *(each.vocab_size for each in tokenizers))
    folder = checkpoint_folder(run, checkpoint, average)
    paths = readable_checkpoints(folder, average, ends_of_epochs=average > 1)
    if len(paths) < average:
        count = len(paths)
        raise UserError(
            f"{folder} has {count} intact checkpoints at ends of epochs: lower --average {average}"
        )
    restore(model, paths)
    return Translator(model, *tokenizers, config.max_length, search)


def restore(model: tf.Module, paths: list[str]) -> None:
    """Restore a model from a checkpoint, or from the mean of several. Raises RunError."""
    variables = [variable for variable in model.variables if variable.dtype.is_floating]
    totals = [0.0] * len(variables)
    for path in paths:
        restore_model(path, model)
        totals = [t + v.numpy().astype(float) for t, v in zip(totals, variables, strict=True)]
    if len(paths) > 1:
        for variable, total in zip(variables, totals, strict=True):
            variable.assign(total / len(paths))
