"""Scores of a model on a split: computed, printed as a table, written into the run directory."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from config import Config
from data import corpora, encoding, pipeline
from data.splits import Split
from evaluation import metrics
from training.records import read_json
from utils import UserError, write_json

if TYPE_CHECKING:
    from evaluation.translator import Translator

Output = tuple[float, str]  # score (NaN if it was not computed), translation or label
MISTAKES_SHOWN = 20
TABLE_TEXTS = 5_000  # maximum number of texts scored by default, per split of a .tsv file


def validation_metrics(
    translator: "Translator", dataset: pipeline.Dataset, max_sentences: int
) -> tuple[dict[str, float], list[tuple[str, str, str]]]:
    """Return loss, accuracy and BLEU on the validation split, and three samples.

    BLEU is computed on at most `max_sentences` evenly spaced sentences. A sample is (source,
    reference, output). Labels have no BLEU.
    """
    loss, accuracy = translator.loss_and_accuracy(dataset.validation)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    count = len(dataset.validation_texts.sources)
    spaced = np.linspace(0, count - 1, min(count, max_sentences)).astype(int)
    texts = dataset.validation_texts.take(spaced)
    texts = texts.match_case(translator.target_tokenizer)
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


def recorded_hash(run: Path, name: str) -> str:
    """Return the SHA-256 that a split had in training. Raises OSError and UserError."""
    path = run / "corpus.json"
    splits = read_json(path).get("splits")
    if not isinstance(splits, dict) or not all(isinstance(s, dict) for s in splits.values()):
        raise UserError(f"{path} is damaged: it has no splits")
    if name not in splits:
        raise UserError(f"{run} has no split {name!r}: choose from {', '.join(splits)}")
    return splits[name].get("sha256")


def load_split(run: Path, config: Config, name: str, whole: bool = False) -> tuple[Split, int]:
    """Load a split of a run's corpus. Also returns how many texts it has.

    Of a .tsv file, which has no splits of its own, loads at most `TABLE_TEXTS` evenly spaced texts,
    unless `whole`. With `--lowercase`, references are in lower case, as translations are. Raises
    UserError if the text of the split has changed since training.
    """
    recorded = recorded_hash(run, name)
    sampled = config.corpus.endswith(".tsv") and not whole
    split = corpora.from_config(config).summarize(name, TABLE_TEXTS if sampled else sys.maxsize)
    if recorded != split.sha256:
        raise UserError(
            f"the {name} split of {config.corpus} differs from the one recorded in "
            f"{run}/corpus.json, so scores would not be comparable: restore the text, or train "
            "again"
        )
    texts = Split.of(split.sample)
    if config.lowercase and not config.is_classifier:
        texts = texts._replace(targets=[text.lower() for text in texts.targets])
    return texts, split.pairs


def measure(translator: "Translator", split: Split) -> tuple[dict, list[Output]]:
    """Decode a split and score it. Returns the scores by name, and an Output for each text.

    Scores of translations: see `metrics.score`; of labels: see `label_scores`. The loss is in nats
    per token, over the pairs that are not longer than `max_length`.
    """
    translator.trace()
    start = time.perf_counter()
    outputs = [best[0] for best in translator.n_best(split.sources, progress=True)]
    seconds = time.perf_counter() - start
    texts = [text for _, text in outputs]
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    pairs, too_long = encoding.encode(split, *tokenizers, translator.max_length)
    loss = {}
    if len(pairs.source.lengths):
        loss = dict(zip(("loss", "accuracy"), translator.loss_and_accuracy(pairs), strict=True))
    common = {"parameters": translator.num_parameters, "search": str(translator.search)}
    if translator.labelled:
        scores = label_scores(texts, split.targets, translator.target_tokenizer.names)
        scores |= {
            "loss": loss["loss"],
            "texts_per_second": len(texts) / seconds,
            "texts": len(texts),
            "texts_cut": too_long,
            **common,
        }
        return scores, outputs
    scores = metrics.score(texts, split.targets)
    scores |= loss | {
        "sentences_per_second": len(texts) / seconds,
        "tokens_per_second": sum(map(len, tokenizers[1].encode(texts))) / seconds,
        "sentences": len(texts),
        "sentences_too_long_for_loss": too_long,
        **common,
    }
    if split.tags:
        scores["exact_match_by_tag"] = metrics.by_tag(texts, split.targets, split.tags)
    return scores, outputs


def label_scores(predicted: Sequence[str], true: Sequence[str], names: Sequence[str]) -> dict:
    """Return accuracy and macro-averaged F1 (van Rijsbergen 1979), 0 to 1, with the F1 of each
    label and the confusion matrix.
    """
    matrix = confusion(predicted, true, names)
    f1 = f1_scores(matrix)
    return {
        "accuracy": float(np.mean([a == b for a, b in zip(predicted, true, strict=True)])),
        "f1": float(np.mean(f1)),
        "f1_by_label": dict(zip(names, f1.tolist(), strict=True)),
        "confusion": dict(zip(names, matrix.tolist(), strict=True)),
    }


def confusion(predicted: Sequence[str], true: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Count the texts of each true label (row) and predicted label (column): (labels, labels)."""
    index = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), int)
    for label, prediction in zip(true, predicted, strict=True):
        if prediction in index:  # "" for an empty text
            matrix[index[label], index[prediction]] += 1
    return matrix


def f1_scores(matrix: np.ndarray) -> np.ndarray:
    """Return the F1 of each label of a confusion matrix; 0 if it was neither true nor predicted."""
    correct = np.diag(matrix)
    return 2 * correct / np.maximum(matrix.sum(axis=0) + matrix.sum(axis=1), 1)


def mistakes(split: Split, outputs: Sequence[Output]) -> list[int]:
    """Return the indices of the wrongly labelled texts, the most confident first."""
    wrong = [i for i, (_, label) in enumerate(outputs) if label != split.targets[i]]
    return sorted(wrong, key=lambda i: -outputs[i][0])


def print_scores(scores: dict) -> None:
    """Print the scores with their signatures, then exact match by tag or the confusion matrix.

    Accuracy and F1 are printed in per cent, as the other scores, and are from 0 to 1 in the file.
    """
    notes = {
        "exact_match": "% of sentences",
        "accuracy": "% of tokens" if "bleu" in scores else "% of texts",
        "f1": "%, mean over labels",
        "loss": "nats per token" if "bleu" in scores else "nats per text",
    } | scores.get("signatures", {})
    for name, value in scores.items():
        if isinstance(value, int | float):
            value = 100 * value if name in ("accuracy", "f1") else value
            decimals = 0 if isinstance(value, int) or value >= 1000 else 4 if name == "loss" else 2
            print(f"{name:28}{value:12,.{decimals}f}  {notes.get(name, '')}".rstrip())
    for tag, (count, exact) in scores.get("exact_match_by_tag", {}).items():
        print(f"  {tag:26}{exact:12.2f}  % of {count:,} sentences, exact match")
    if matrix := scores.get("confusion"):
        width = 2 + max(10, *map(len, matrix))
        print("\ntrue \\ predicted".ljust(29) + "".join(f"{name:>{width}}" for name in matrix))
        for name, row in matrix.items():
            print(f"{name:28}" + "".join(f"{count:{width},}" for count in row))


def outputs_path(run: Path, suffix: str, labelled: bool) -> Path:
    """Return the file of the outputs that `write` writes and evaluation.figures reads."""
    return run / f"{'labels' if labelled else 'translations'}-{suffix}.txt"


def write(
    run: Path, suffix: str, labelled: bool, split: Split, scores: dict, outputs: Sequence[Output]
) -> list[str]:
    """Write scores and outputs into a run directory. Returns the names of the files.

    For labels, also write the most confident mistakes.
    """
    paths = [run / f"scores-{suffix}.json", outputs_path(run, suffix, labelled)]
    write_json(paths[0], scores)
    paths[1].write_text("".join(f"{text}\n" for _, text in outputs), "utf-8")
    if labelled:
        paths.append(run / f"mistakes-{suffix}.txt")
        text = "".join(
            f"{math.exp(outputs[i][0]):.4f} {outputs[i][1]}, but is {split.targets[i]}:\n"
            f"{split.sources[i]}\n\n"
            for i in mistakes(split, outputs)[:MISTAKES_SHOWN]
        )
        paths[2].write_text(text, "utf-8")
    return [path.name for path in paths]


def write_per_sentence(path: Path, labelled: bool, split: Split, outputs: Sequence[Output]) -> None:
    """Write a tab-separated line for each text, after a line of column names."""
    texts = [text for _, text in outputs]
    if labelled:
        columns = {"text": split.sources, "label": split.targets, "predicted": texts}
        columns["probability"] = [f"{math.exp(score):.4f}" for score, _ in outputs]
    else:
        columns = {"source": split.sources, "reference": split.targets, "translation": texts}
        if split.tags:
            columns["tag"] = split.tags
        for name, values in metrics.sentence_scores(texts, split.targets).items():
            columns[name] = [f"{value:.2f}" for value in values]
    rows = [columns, *zip(*columns.values(), strict=True)]
    lines = ("\t".join(cell.replace("\t", " ") for cell in row) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")
