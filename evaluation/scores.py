"""The scores of a model on texts: in training, in evaluate.py and in experiments."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from data import encoding, pipeline
from data.arrays import Text
from data.splits import Split
from data.tokenizer import BOS, EOS, UNK
from evaluation import metrics
from utils import UserError

if TYPE_CHECKING:
    from evaluation.loading import Generator, Translator

Table = dict[str, list[str]]  # columns of equal length: source, reference, output and more
Samples = list[tuple[str, str, str]]  # (source, reference, output); the source may be a prompt


def validation_metrics(
    predictor: "Translator | Generator", dataset: pipeline.Dataset, max_sentences: int
) -> tuple[dict[str, float], Samples]:
    """Return loss, accuracy and BLEU on the validation split, and three samples.

    BLEU is computed on at most `max_sentences` evenly spaced sentences. Labels have no BLEU, and
    language models have nats per character instead.
    """
    if isinstance(dataset.validation, Text):
        return text_metrics(predictor, dataset)
    loss, accuracy = predictor.loss_and_accuracy(dataset.validation)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    count = len(dataset.validation_texts.sources)
    spaced = np.linspace(0, count - 1, min(count, max_sentences)).astype(int)
    texts = dataset.validation_texts.take(spaced).match_case(predictor.target_tokenizer.lowercase)
    sources, references, _ = texts
    shown = [0, len(sources) // 2, len(sources) - 1]
    if not predictor.labelled:
        translations = predictor.translate(sources, progress=True)
        values["validation_bleu"] = metrics.bleu(translations, references)
    outputs = predictor.translate([sources[i] for i in shown])
    return values, [(sources[i], references[i], x) for i, x in zip(shown, outputs, strict=True)]


def text_metrics(
    generator: "Generator", dataset: pipeline.Dataset
) -> tuple[dict[str, float], Samples]:
    """Return the scores of a language model on the validation split, and three continuations."""
    text = dataset.validation
    loss, accuracy = generator.loss_and_accuracy(text)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    values["validation_perplexity"] = math.exp(min(loss, 99))
    characters = sum(map(len, dataset.validation_texts.targets))
    values["validation_nats_per_character"] = loss * len(text.tokens.ids) / characters
    # From three evenly spaced texts: a prompt, what follows, and a continuation of equal length.
    length, offsets, samples = min(text.block // 2, 50), text.tokens.offsets, []
    for i in np.linspace(0, len(offsets) - 2, 4)[:3].astype(int):
        start, stop = offsets[i], offsets[i + 1 if dataset.corpus_info["documents"] else -1]
        ids = text.tokens.ids[start : min(stop, start + 2 * length)]
        prompt, whole = generator.tokenizer.decode([ids[: len(ids) // 2], ids])
        prompt = prompt.rstrip("\ufffd")  # the first bytes of a character
        output = generator.generate(prompt, length, len(samples))
        samples.append((prompt, whole[len(prompt) :], output))
    return values, samples


def measure(translator: "Translator", split: Split) -> tuple[dict, Table]:
    """Decode a split and score it. Returns the scores, and a row for each text with its output.

    Scores of translations: see `metrics.score`; of labels: see `label_scores`. The loss is in nats
    per token, over the pairs that are not longer than `max_length`. References are in lower case if
    outputs are. Raises UserError for a label that the model does not have.
    """
    split = split.match_case(translator.target_tokenizer.lowercase)
    scores, too_long = loss_scores(translator, split)  # first, because it checks the labels
    outputs = [best[0] for best in translator.n_best(split.sources, progress=True)]
    texts = [text for _, text in outputs]
    common = {
        "texts": len(texts),
        "texts_too_long": too_long,
        "parameters": translator.num_parameters,
        "search": str(translator.search),
    }
    table = {"source": split.sources, "reference": split.targets, "output": texts}
    if translator.labelled:
        table["probability"] = [f"{math.exp(score):.4f}" for score, _ in outputs]
        names = translator.target_tokenizer.names
        return scores | label_scores(texts, split.targets, names) | common, table
    of_outputs = metrics.score(texts, split.targets)
    sentences = of_outputs.pop("sentences")
    if split.tags:
        scores["exact_match_by_tag"] = metrics.by_tag(sentences["exact_match"], split.tags)
        table["tag"] = split.tags
    for metric, values in sentences.items():
        table[metric] = [f"{value:.2f}" for value in values]
    return of_outputs | scores | common, table


def loss_scores(translator: "Translator", split: Split) -> tuple[dict[str, float], int]:
    """Return loss and accuracy of a split, and the number of pairs longer than `max_length`.

    They are over the other pairs; {} if there are none. Of translations, also the nats per
    character of the references.
    """
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    pairs, too_long = encoding.encode(split, *tokenizers, translator.max_length)
    if not len(pairs.source.lengths):
        return {}, too_long
    loss, accuracy = translator.loss_and_accuracy(pairs)
    scores = {"loss": loss, "accuracy": accuracy} | unknown_share(
        pairs.target.ids[pairs.target.ids != BOS]
    )
    if not translator.labelled:
        encoded = (x.encode(y) for x, y in zip(tokenizers, split[:2], strict=True))
        rows = zip(split.targets, *encoded, strict=True)
        limit = translator.max_length
        characters = sum(len(text) for text, *ids in rows if max(map(len, ids)) <= limit)
        nats = loss * sum(pairs.target.lengths - 1)  # all tokens but bos
        scores["nats_per_character"] = float(nats / characters)
    return scores, too_long


def measure_text(
    generator: "Generator", split: Split, documents: bool, stride: int | None = None
) -> tuple[dict, Table]:
    """Score a split with a language model. Returns the scores, and a row for each text.

    The loss is in nats per token. stride: see `Generator.token_scores`. Raises UserError if the
    texts have no tokens.
    """
    texts = split.match_case(generator.tokenizer.lowercase).targets
    rows = encoding.encode_texts(texts, generator.tokenizer, [EOS] if documents else [])
    text = Text(rows, generator.start, generator.max_length)
    if not len(text.tokens.ids):
        raise UserError("the texts have no tokens to score")
    tokens = generator.token_scores(text, stride)
    counts = text.tokens.lengths
    sums = np.append(0.0, np.cumsum(tokens.losses, dtype=float))
    of_texts, nats = np.diff(sums[text.tokens.offsets]), tokens.losses.sum(dtype=float)
    loss = tokens.losses.mean(dtype=float)
    characters, octets = [len(x) for x in texts], [len(x.encode()) for x in texts]
    scores = {
        "loss": float(loss),
        "perplexity": math.exp(min(loss, 99)),
        "nats_per_character": nats / sum(characters),
        "bits_per_byte": nats / math.log(2) / sum(octets),
        "accuracy": float(tokens.correct.mean()),
        "context": float(tokens.context.mean()),
        "tokens": len(tokens.losses),
        "characters": sum(characters),
        "parameters": generator.num_parameters,
        "search": f"blocks of {text.block} tokens, one every {stride or text.block}",
    }
    scores |= unknown_share(text.tokens.ids)
    bits = of_texts / math.log(2) / np.maximum(1, octets)
    table = {"characters": characters, "tokens": counts, "nats": of_texts, "bits_per_byte": bits}
    columns = {name: [f"{x:.6g}" for x in values] for name, values in table.items()}
    return scores, {"text": texts, **columns}


def unknown_share(ids: np.ndarray) -> dict[str, float]:
    """Return {"unknown": the share of ids of unknown tokens}, or {} if there are none."""
    share = float(np.mean(ids == UNK))
    return {"unknown": share} if share else {}


def label_scores(predicted: Sequence[str], true: Sequence[str], names: Sequence[str]) -> dict:
    """Return accuracy and macro-averaged F1 (van Rijsbergen 1979), 0 to 1, with the F1 of each
    label and the confusion matrix, {true label: {predicted label: count}} without zeros.
    """
    pairs = Counter(zip(true, predicted, strict=True))
    trues, predictions = Counter(true), Counter(predicted)
    # 0 for a label that was neither true nor predicted.
    f1 = {x: 2 * pairs[x, x] / max(1, trues[x] + predictions[x]) for x in names}
    return {
        "accuracy": sum(pairs[x, x] for x in names) / len(true),
        "f1": fmean(f1.values()),
        "f1_by_label": f1,
        "confusion": {x: {y: pairs[x, y] for y in names if pairs[x, y]} for x in names},
    }
