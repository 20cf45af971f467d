"""The base of all predictors: a model with its tokenizers, searches, and attention weights."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from data.tokenizer import BOS, EOS, UNK, Labels, Tokenizer
from evaluation.page import Attention
from evaluation.search import Search
from model.decoding import beam_search, greedy, sample
from model.interface import Model
from utils import amount, warn

GREEDY = Search()
# Name of each kind of attention in the models: its title, its query tokens, its key tokens.
ATTENTION = {
    "encoder": ("encoder self-attention", "source", "source"),
    "decoder": ("decoder self-attention", "target_out", "target_in"),
    "cross": ("cross-attention", "target_out", "source"),
}


def decode_with(
    search: Search,
    model: Model,
    source: tf.Tensor,
    batch_number: tf.Tensor | int = 0,
    scores: bool = True,
    bos: tf.Tensor | int = BOS,
    limit: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode source (batch, source_len) → ids (batch, n_best, output_len), scores (batch, n_best).

    Scores are log probabilities, divided by the length penalty in beam search. They are NaN for
    samples, and for greedy search with scores=False, which is faster. Samples depend on
    `batch_number`, a scalar. bos, limit: see `decode_loop`.
    """
    if search.sample:
        seed = tf.stack([search.seed or 0, tf.cast(batch_number, tf.int64) * 2**20])
        filters = search.temperature, search.top_k, search.top_p
        outputs = sample(model, source, bos, EOS, seed, *filters, limit=limit)
    elif search.beam == 1 and not scores:
        outputs = greedy(model, source, bos, EOS, limit)
    else:
        penalty = search.length_penalty if search.beam > 1 else 0.0
        return beam_search(model, source, bos, EOS, search.beam, penalty, search.n_best, limit)
    return outputs[:, tf.newaxis], tf.fill((tf.shape(source)[0], 1), float("nan"))


class Predictor:
    """A trained model with its tokenizers: what translators and text generators share."""

    def __init__(
        self,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | Labels,
        max_length: int,
        search: Search = GREEDY,
        start: int = BOS,
    ):
        """start: the id before the first token of an output."""
        self.model, self.max_length, self.search, self.start = model, max_length, search, start
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.labelled = isinstance(target_tokenizer, Labels)
        self.unknown = 0  # number of unknown tokens so far
        self.pool = ThreadPoolExecutor(tf.config.threading.get_inter_op_parallelism_threads() or 1)

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(variable.shape.num_elements() for variable in self.model.trainable_variables)

    def encode_source(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts that the model reads, and count their unknown tokens.

        These are left out, because an id that does not occur in training has a random embedding. An
        unknown word of a tokenizer of words occurs in training, and is read as one.
        """
        rows = self.source_tokenizer.encode(texts)
        if unknown := sum(row.count(UNK) for row in rows):
            self.unknown += unknown
            if not self.source_tokenizer.words:
                rows = [[token for token in row if token != UNK] for row in rows]
        return rows

    def print_warnings(self) -> None:
        """Warn if texts had unknown tokens."""
        if self.unknown:
            effect = "read as unknown words" if self.source_tokenizer.words else "left out"
            warn(f"{amount(self.unknown, 'token')} not in the vocabulary of the model: {effect}")

    def weights_by_kind(self, source: list[int], target_out: list[int]) -> dict[str, Attention]:
        """Return the attention weights of a source and a target by kind, for `attention`."""
        target_in = [self.start, *target_out[:-1]]
        tokens = {
            "source": self.source_tokenizer.tokens(source),
            "target_in": self.target_tokenizer.tokens(target_in),
            "target_out": self.target_tokenizer.tokens(target_out),
        }
        # A line feed that is not in the vocabulary is a byte.
        tokens = {name: ["\n" if x == "<0x0A>" else x for x in tokens[name]] for name in tokens}
        kinds = {}
        ids = np.int32([source]), np.int32([target_in])
        for kind, weights in self.model.attention_weights(*ids).items():
            name, queries, keys = ATTENTION[kind]
            kinds[name] = Attention(weights[0].numpy(), tokens[queries], tokens[keys])
        return kinds
