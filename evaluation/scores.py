"""The scores of a model on texts: in training, in evaluate.py and in experiments."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from data import encoding, pipeline
from data.arrays import Text
from data.splits import Split
from data.tokenizer import UNK
from evaluation import metrics
from utils import UserError

if TYPE_CHECKING:
    from evaluation.generator import Generator
    from evaluation.translator import Translator

Table = dict[str, list[str]]  # columns of equal length: source, reference, output and more
Samples = list[tuple[str, str, str]]  # (source, reference, output); the source may be a prompt


def validation_metrics(
    translator: "Translator | Generator", dataset: pipeline.Dataset, max_sentences: int
) -> tuple[dict[str, float], Samples]:
    """Return loss, accuracy and BLEU on the validation split, and three samples.

    BLEU is computed on at most `max_sentences` evenly spaced sentences. Labels have no BLEU, and
    language models have nats per character instead.
    """
    if isinstance(dataset.validation, Text):
        return text_metrics(translator, dataset)
    loss, accuracy = translator.loss_and_accuracy(dataset.validation)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    count = len(dataset.validation_texts.sources)
    spaced = np.linspace(0, count - 1, min(count, max_sentences)).astype(int)
    texts = dataset.validation_texts.take(spaced).match_case(translator.target_tokenizer.lowercase)
    sources, references, _ = texts
    shown = [0, len(sources) // 2, len(sources) - 1]
    if translator.labelled:
        outputs = translator.translate([sources[i] for i in shown])
    else:
        translations = translator.translate(sources, progress=True)
        values["validation_bleu"] = metrics.bleu(translations, references)
        outputs = [translations[i] for i in shown]
    samples = [(sources[i], references[i], out) for i, out in zip(shown, outputs, strict=True)]
    return values, samples


def text_metrics(
    generator: "Generator", dataset: pipeline.Dataset
) -> tuple[dict[str, float], Samples]:
    """Return the scores of a language model on the validation split, and three continuations."""
    text = dataset.validation
    loss, accuracy = generator.loss_and_accuracy(text)
    nats = loss * len(text.tokens.ids)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    values["validation_perplexity"] = math.exp(min(loss, 99))
    characters = sum(map(len, dataset.validation_texts.targets))
    values["validation_nats_per_character"] = nats / characters
    # From three evenly spaced texts: a prompt, what follows, and a continuation of equal length.
    length, offsets = min(text.block // 2, 50), text.tokens.offsets
    prompts, references = [], []
    for i in np.linspace(0, len(offsets) - 2, 4)[:3].astype(int):
        ids = text.tokens.ids[offsets[i] : offsets[i] + 2 * length]
        if dataset.corpus_info["documents"]:
            ids = text.tokens.ids[offsets[i] : min(offsets[i + 1], offsets[i] + 2 * length)]
        middle = min(length, len(ids) // 2)
        prompt, whole = generator.tokenizer.decode([ids[:middle], ids])
        prompt = prompt.rstrip("\ufffd")  # the first bytes of a character
        prompts.append(prompt)
        references.append(whole[len(prompt) :])
    outputs = generator.generate(prompts, length)
    return values, list(zip(prompts, references, outputs, strict=True))


def measure(translator: "Translator", split: Split, full: bool = True) -> tuple[dict, Table]:
    """Decode a split and score it. Returns the scores, and a row for each text with its output.

    Scores of translations: see `metrics.score`; of labels: see `label_scores`. The loss is in nats
    per token, over the pairs that are not longer than `max_length`. References are in lower case if
    outputs are. full: False leaves out all metrics of translations but BLEU and exact match. Raises
    UserError for a label that the model does not have.
    """
    split = split.match_case(translator.target_tokenizer.lowercase)
    translator.trace()
    start = time.perf_counter()
    outputs = [best[0] for best in translator.n_best(split.sources, progress=True)]
    seconds = time.perf_counter() - start
    texts = [text for _, text in outputs]
    loss, too_long = loss_scores(translator, split)
    common = {"parameters": translator.num_parameters, "search": str(translator.search)}
    table = {"source": split.sources, "reference": split.targets, "output": texts}
    if translator.labelled:
        scores = label_scores(texts, split.targets, translator.target_tokenizer.names)
        scores |= {
            "loss": loss["loss"],
            "texts_per_second": len(texts) / seconds,
            "texts": len(texts),
            "texts_cut": too_long,
            **common,
        }
        return scores, table | {"probability": [f"{math.exp(score):.4f}" for score, _ in outputs]}
    scores = metrics.score(texts, split.targets, full) | loss
    if split.tags:
        scores["exact_match_by_tag"] = metrics.by_tag(texts, split.targets, split.tags)
        table["tag"] = split.tags
    if not full:
        return scores | common, table
    scores |= {
        "sentences_per_second": len(texts) / seconds,
        "tokens_per_second": sum(map(len, translator.target_tokenizer.encode(texts))) / seconds,
        "sentences": len(texts),
        "sentences_too_long_for_loss": too_long,
        **common,
    }
    for metric, values in metrics.sentence_scores(texts, split.targets).items():
        table[metric] = [f"{value:.2f}" for value in values]
    return scores, table


def loss_scores(translator: "Translator", split: Split) -> tuple[dict[str, float], int]:
    """Return loss and accuracy of a split, and the number of pairs longer than `max_length`.

    They are over the other pairs; {} if there are none. Of translations, also the nats per
    character of the references. Raises UserError if data/encoding.py keeps other pairs.
    """
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    pairs, too_long = encoding.encode(split, *tokenizers, translator.max_length)
    if not len(pairs.source.lengths):
        return {}, too_long
    loss, accuracy = translator.loss_and_accuracy(pairs)
    scores = {"loss": loss, "accuracy": accuracy}
    if translator.labelled:
        return scores, too_long
    source, target = (each.encode(x) for each, x in zip(tokenizers, split[:2], strict=True))
    lengths = (max(len(one), len(other)) for one, other in zip(source, target, strict=True))
    fits = [length <= translator.max_length for length in lengths]
    if sum(fits) != len(pairs.target.lengths):
        raise UserError(
            f"data/encoding.py keeps {len(pairs.target.lengths)} of the {len(fits)} pairs to score "
            f"instead of the {sum(fits)} that have at most {translator.max_length} tokens: filter "
            "the training pairs only, in data/pipeline.py"
        )
    characters = sum(map(len, itertools.compress(split.targets, fits)))
    nats = loss * sum(pairs.target.lengths - 1)  # all tokens but bos
    return scores | {"nats_per_character": float(nats / characters)}, too_long


def measure_text(
    generator: "Generator", split: Split, documents: bool, stride: int | None = None
) -> tuple[dict, Table]:
    """Score a split with a language model. Returns the scores, and a row for each text.

    The loss is in nats per token. stride: see `Generator.token_scores`. Raises UserError if the
    texts have no tokens.
    """
    texts = split.match_case(generator.tokenizer.lowercase).targets
    text = generator.encode(texts, documents)
    if not len(text.tokens.ids):
        raise UserError("the texts have no tokens to score")
    generator.trace()
    start = time.perf_counter()
    tokens = generator.token_scores(text, stride)
    seconds = time.perf_counter() - start
    counts = text.tokens.lengths
    of_texts = np.add.reduceat(np.append(tokens.losses.astype(float), 0), text.tokens.offsets[:-1])
    of_texts = np.where(counts, of_texts, 0.0)
    # With a stride, only tokens of the first block have less context than others.
    least = min(text.block - stride, tokens.context.max() - 1) if stride else 0
    usual = tokens.context > least
    nats, loss = tokens.losses.sum(dtype=float), tokens.losses.mean(dtype=float)
    characters, octets = [len(x) for x in texts], [len(x.encode()) for x in texts]
    blocks = f"blocks of {text.block} tokens"
    scores = {
        "loss": float(loss),
        "perplexity": math.exp(min(loss, 99)),
        "nats_per_character": nats / sum(characters),
        "bits_per_byte": nats / math.log(2) / sum(octets),
        "accuracy": float(tokens.correct.mean()),
        "context": float(tokens.context.mean()),
        "loss_by_context": loss_by_context(tokens.losses[usual], tokens.context[usual]),
        "tokens": len(tokens.losses),
        "characters": sum(characters),
        "tokens_per_second": len(tokens.losses) / seconds,
        "parameters": generator.num_parameters,
        "search": blocks + (f", one every {stride} tokens" if stride else ""),
    }
    if unknown := np.count_nonzero(text.tokens.ids == UNK):
        scores["unknown"] = unknown / len(text.tokens.ids)
    columns = {"text": texts, "characters": map(str, characters), "tokens": map(str, counts)}
    columns |= {"nats": (f"{value:.4f}" for value in of_texts)}
    return scores, {name: [*column] for name, column in columns.items()}


def loss_by_context(losses: np.ndarray, context: np.ndarray) -> list[tuple[int, int, float]]:
    """Return the mean loss of tokens with 1, 2, 3–4, 5–8, … tokens of context: (from, to, nats)."""
    result, high = [], 1
    while high // 2 < context.max():
        low = high // 2 + 1
        chosen = (context >= low) & (context <= high)
        if chosen.any():
            bounds = int(context[chosen].min()), int(context[chosen].max())
            result.append((*bounds, float(losses[chosen].mean(dtype=float))))
        high *= 2
    return result


def label_scores(predicted: Sequence[str], true: Sequence[str], names: Sequence[str]) -> dict:
    """Return accuracy and macro-averaged F1 (van Rijsbergen 1979), 0 to 1, with the F1 of each
    label and the confusion matrix, {true label: {predicted label: count}} without zeros.
    """
    index = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), int)  # row: true label; column: predicted
    for label, prediction in zip(true, predicted, strict=True):
        if prediction in index:  # not "", the prediction for an empty text
            matrix[index[label], index[prediction]] += 1
    counts = Counter(true)
    total = matrix.sum(axis=0) + [counts[name] for name in names]
    # 0 for a label that was neither true nor predicted.
    f1 = 2 * np.diag(matrix) / np.maximum(total, 1)
    return {
        "accuracy": float(np.mean([a == b for a, b in zip(predicted, true, strict=True)])),
        "f1": float(np.mean(f1)),
        "f1_by_label": dict(zip(names, f1.tolist(), strict=True)),
        "confusion": {
            name: {names[i]: int(row[i]) for i in np.flatnonzero(row)}
            for name, row in zip(names, matrix, strict=True)
        },
    }
