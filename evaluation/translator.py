"""A trained model at work: translating text, and being measured under teacher forcing."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from config import first_line
from data import tokenizer
from data.batches import Pairs, Rows, plan
from evaluation.search import Search
from model import IDS, build
from model.decoding import beam_search, greedy, sample
from model.loss import teacher_forcing, token_sums
from training.checkpoints import readable_checkpoints


def decode_with(search, model, source, number=0, scores=True, one_token=False):
    """source (batch, source_len) → ids (batch, n_best, output_len), scores (batch, n_best).

    number: a scalar, the batch's own; samples are drawn from it. scores: log probabilities, over
    the length penalty with a beam; NaN where none are asked for, which makes greedy search quicker,
    and where translations are drawn. one_token: outputs are labels.
    """
    ends = (tokenizer.BOS, tokenizer.EOS)
    limit = tf.ones(tf.shape(source)[0], tf.int32) if one_token else None
    if search.sample:
        how = (search.temperature, search.top_k, search.top_p)
        seed = tf.stack([tf.constant(search.seed, tf.int64), tf.cast(number, tf.int64) * 2**20])
        outputs = sample(model, source, *ends, seed, *how, limit)
    elif search.beam == 1 and not scores:
        outputs = greedy(model, source, *ends, limit)
    else:
        penalty = search.length_penalty if search.beam > 1 else 0.0
        return beam_search(model, source, *ends, search.beam, penalty, search.n_best, limit)
    return outputs[:, tf.newaxis], tf.fill((tf.shape(source)[0], 1), float("nan"))


GREEDY = Search()


class Translator:
    """A model with its tokenizers. Each graph is traced once, at its first call."""

    def __init__(self, model, source_tokenizer, target_tokenizer, max_length, search=GREEDY):
        self.model, self.max_length, self.search = model, max_length, search
        self.tokenizers = source_tokenizer, target_tokenizer
        self.pool = ThreadPoolExecutor(tf.config.threading.get_inter_op_parallelism_threads() or 1)
        self.labelled = isinstance(target_tokenizer, tokenizer.Labels)
        # A greedy translation's score is never shown; a label's says how sure the model is.
        scores = search.n_best > 1 or self.labelled
        self.decode = tf.function(
            lambda source, number: decode_with(
                search, model, source, number, scores, self.labelled
            ),
            [IDS, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

        def totals(source, target):
            logits, labels = teacher_forcing(model, source, target)
            _, loss, correct = token_sums(logits, labels)
            return tf.stack([loss, correct, tf.cast(tf.size(labels), tf.float32)])

        self.totals = tf.function(totals, [IDS, IDS], autograph=False)

    @property
    def parameters(self):
        """How many numbers training may change."""
        return sum(variable.shape.num_elements() for variable in self.model.trainable_variables)

    def mean(self, pairs, batches):
        """Loss, nats a token, and accuracy, 0 to 1, over all real target tokens of the batches.

        batches: index arrays into the Pairs. Neither dropout nor smoothing.
        """
        totals = list(self.pool.map(lambda batch: self.totals(*pairs.batch(batch)), batches))
        totals = np.sum(totals, axis=0, dtype=float)
        return float(totals[0] / totals[2]), float(totals[1] / totals[2])

    def loss_and_accuracy(self, pairs, batch_tokens=4096):
        """`mean` of all Pairs."""
        # No batch has more sentences than tokens.
        return self.mean(pairs, plan(pairs, batch_tokens, batch_tokens))

    def translate(self, texts, batch_tokens=4096, batch_sentences=128, progress=False, first=1):
        """The best translation, or the label, of each line, in the same order; an empty line stays
        empty.

        A line of more than `max_length` pieces is cut there, as the model never saw longer ones,
        and that is said on standard error, by its number counted from `first`.
        """
        found = self.n_best(texts, batch_tokens, batch_sentences, progress, first)
        return [best[0][1] for best in found]

    def n_best(self, texts, batch_tokens=4096, batch_sentences=128, progress=False, first=1):
        """`translate`, but a list of (score, translation) for each line, best first."""
        texts = [" ".join(text.split("\n")) for text in texts]
        asked = [i for i, text in enumerate(texts) if text.strip()]
        source_tokenizer, target_tokenizer = self.tokenizers
        rows = source_tokenizer.encode([texts[i] for i in asked])
        for i, row in zip(asked, rows, strict=True):
            if len(row) > self.max_length and not self.labelled:  # labelled texts always are cut
                print(
                    f"warning: line {first + i} has {len(row):,} pieces: only the first "
                    f"{self.max_length} are read",
                    file=sys.stderr,
                )
        source = Rows.of([[*row[: self.max_length], tokenizer.EOS] for row in rows])
        found = [[(0.0, "")] * self.search.n_best for _ in texts]
        # Of the outputs' lengths nothing is known yet: the sources stand in for them.
        # The longest first: so no core has a long batch to do when the others are done.
        batches = plan(Pairs(source, source), batch_tokens, batch_sentences)[::-1]

        def decode(indices):
            number = first + int(indices[0])  # no other batch has it
            return [x.numpy() for x in self.decode(source.padded(indices), number)]

        bar = tqdm(total=len(asked), unit="line", leave=False, disable=not progress or None)
        with bar:  # on a terminal only
            for indices, (ids, scores) in zip(batches, self.pool.map(decode, batches), strict=True):
                for i, row, row_scores in zip(indices, ids, scores, strict=True):
                    # Whatever some reader takes for the end of a line: U+2028 and its kin too.
                    lines = (" ".join(text.splitlines()) for text in target_tokenizer.decode(row))
                    found[asked[i]] = list(zip(row_scores.tolist(), lines, strict=True))
                bar.update(len(indices))
        return found


def load(folder, config, checkpoint="last", average=1, search=GREEDY):
    """The Translator of a run folder at its `last` or `best` checkpoint.

    average: how many of the latest checkpoints' weights are averaged (section 6.1), 1 for none.
    Raises FileNotFoundError where a file or a checkpoint is missing, and ValueError where a
    checkpoint does not fit the model.
    """
    folder = Path(folder)
    tokenizers = tokenizer.load_pair(folder, config.lowercase, config.tokenizer == "word")
    model = build(config, *(made.vocab_size for made in tokenizers))
    where = folder / "checkpoints" / ("best" if checkpoint == "best" else "")
    paths = readable_checkpoints(where, average)
    if len(paths) < average:
        raise FileNotFoundError(f"{where} holds {len(paths)} checkpoints of {average}")
    saved = tf.train.Checkpoint(model=model)
    totals = [np.zeros(variable.shape) for variable in model.trainable_variables]
    for path in paths[::-1]:
        try:
            # The optimizer's values stay unread; each of the model's own must be there.
            saved.restore(path).assert_existing_objects_matched().expect_partial()
        except Exception as error:  # whatever TensorFlow says of a graph that is none
            raise ValueError(f"{path} does not fit this model: {first_line(error)}") from error
        for total, variable in zip(totals, model.trainable_variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(totals, model.trainable_variables, strict=True):
        variable.assign(total / average)
    return Translator(model, *tokenizers, config.max_length, search)
