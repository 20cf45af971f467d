"""Scores of a model on a split: computed, printed as a table, written into the run directory."""

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from config import Config
from data import corpora, encoding, pipeline
from data.arrays import Text
from data.splits import Split
from data.tokenizer import UNK
from evaluation import metrics
from training.records import read_json
from utils import UserError, quote

if TYPE_CHECKING:
    from evaluation.generator import Generator
    from evaluation.translator import Translator

Table = dict[str, list[str]]  # columns of equal length: source, reference, output and more
MISTAKES_SHOWN = 20
LABELS_SHOWN = 20  # of a confusion matrix
SLUG = 40  # characters of the name of a corpus in the names of files
FINE = ("loss", "nats_per_character", "bits_per_byte")  # scores that are shown with four decimals


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
    texts = dataset.validation_texts.take(spaced).match_case(translator.target_tokenizer)
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


def load_split(
    run: Path, config: Config, split: str, name: str | None = None
) -> tuple[Split, str, bool]:
    """Load a split of the corpus of a run, or of the one with this name, in the run's direction.

    Also returns what identifies the texts in file names: the split, or, if the texts are not those
    that the run recorded, their corpus, split and hash; and whether they are documents, see
    `Corpus`. Raises OSError, and UserError if the split does not exist, or if it is the run's own
    and has changed since training.
    """
    record = read_json(run / "corpus.json")
    if name is None and split not in record["splits"]:
        raise UserError(f"{run} has no split {split!r}: choose from {', '.join(record['splits'])}")
    if name is None:
        corpus = corpora.from_config(config)  # with its share of the training split
    else:
        sides = [corpora.find(name, reverse, config.task) for reverse in (False, True)]
        same = (each for each in sides if [*each.languages] == record["languages"])
        corpus = next(same, sides[0])
    summary = corpus.summarize(split, limit=sys.maxsize)
    recorded = record["splits"].get(split, {}).get("sha256")
    if name is None and summary.sha256 != recorded:
        raise UserError(
            f"the {split} split of {config.corpus} differs from the one recorded in "
            f"{run}/corpus.json, so scores would not be comparable: restore the text, or score it "
            f"as another corpus with --corpus {quote(config.corpus)}"
        )
    if not summary.sample:
        raise UserError(f"the {split} split of {corpus.name} has no texts to score")
    if summary.sha256 == recorded:
        return Split.of(summary.sample), split, corpus.documents
    # Other texts may have the same name, and a path may be longer than a name can be.
    stem = Path(corpus.name).resolve().name if corpus.local else corpus.name
    stem = re.sub(r"\.(tsv|txt)(\.gz)?$", "", stem)
    slug = re.sub(r"[^\w.+-]+", "-", stem)[:SLUG].strip("-.") or "corpus"
    name = f"{slug}-{split}-{summary.sha256[:8]}"
    return Split.of(summary.sample), name, corpus.documents


def measure(translator: "Translator", split: Split) -> tuple[dict, Table]:
    """Decode a split and score it. Returns the scores, and a row for each text with its output.

    Scores of translations: see `metrics.score`; of labels: see `label_scores`. The loss is in nats
    per token, over the pairs that are not longer than `max_length`. References are in lower case if
    outputs are. Raises UserError for a label that the model does not have.
    """
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    split = split.match_case(translator.target_tokenizer)
    pairs, too_long = encoding.encode(split, *tokenizers, translator.max_length)
    translator.trace()
    start = time.perf_counter()
    outputs = [best[0] for best in translator.n_best(split.sources, progress=True)]
    seconds = time.perf_counter() - start
    texts = [text for _, text in outputs]
    loss = {}
    if len(pairs.source.lengths):
        loss = dict(zip(("loss", "accuracy"), translator.loss_and_accuracy(pairs), strict=True))
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
        table["tag"] = split.tags
    for metric, values in metrics.sentence_scores(texts, split.targets).items():
        table[metric] = [f"{value:.2f}" for value in values]
    return scores, table


def measure_text(
    generator: "Generator", split: Split, documents: bool, stride: int | None = None
) -> tuple[dict, Table]:
    """Score a split with a language model. Returns the scores, and a row for each text.

    The loss is in nats per token. stride: see `Generator.token_scores`. Raises UserError if the
    texts have no tokens.
    """
    texts = split.match_case(generator.tokenizer).targets
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
        if prediction in index:  # "" for an empty text
            matrix[index[label], index[prediction]] += 1
    # 0 for a label that was neither true nor predicted.
    f1 = 2 * np.diag(matrix) / np.maximum(matrix.sum(axis=0) + matrix.sum(axis=1), 1)
    return {
        "accuracy": float(np.mean([a == b for a, b in zip(predicted, true, strict=True)])),
        "f1": float(np.mean(f1)),
        "f1_by_label": dict(zip(names, f1.tolist(), strict=True)),
        "confusion": {
            name: {names[i]: int(row[i]) for i in np.flatnonzero(row)}
            for name, row in zip(names, matrix, strict=True)
        },
    }


def print_scores(scores: dict) -> None:
    """Print the scores with their signatures, then exact match by tag or the confusion matrix.

    Of a large confusion matrix, print the pairs of labels that are confused most.
    Accuracy and F1 are printed in per cent, as the other scores, and are from 0 to 1 in the file.
    """
    notes = {
        "exact_match": "% of sentences",
        "accuracy": "% of texts" if "f1" in scores else "% of tokens",
        "f1": "%, mean over labels",
        "loss": "nats per text" if "f1" in scores else "nats per token",
        "context": "tokens that the model reads before a token, on average",
        "unknown": "% of tokens, whose letters are not predicted",
    } | scores.get("signatures", {})
    for name, value in scores.items():
        if isinstance(value, int | float):
            value = 100 * value if name in ("accuracy", "f1", "unknown") else value
            decimals = 0 if isinstance(value, int) or value >= 1000 else 4 if name in FINE else 2
            print(f"{name:28}{value:12,.{decimals}f}  {notes.get(name, '')}".rstrip())
    for tag, (count, exact) in scores.get("exact_match_by_tag", {}).items():
        print(f"  {tag:26}{exact:12.2f}  % of {count:,} sentences, exact match")
    if matrix := scores.get("confusion"):
        print_confusion(matrix)


def print_confusion(matrix: dict[str, dict[str, int]]) -> None:
    """Print a confusion matrix as a table, or the largest of its errors if there are too many."""
    if len(matrix) <= LABELS_SHOWN:
        width = 2 + max(10, *map(len, matrix))
        print("\ntrue \\ predicted".ljust(29) + "".join(f"{name:>{width}}" for name in matrix))
        for name, row in matrix.items():
            print(f"{name:28}" + "".join(f"{row.get(other, 0):{width},}" for other in matrix))
        return
    errors = confused(matrix)
    print(f"\nthe {min(len(errors), MISTAKES_SHOWN)} most frequent of {len(errors):,} confusions")
    for true, predicted, count in errors[:MISTAKES_SHOWN]:
        print(f"{count:6,}  {true} → {predicted}")


def confused(matrix: dict[str, dict[str, int]]) -> list[tuple[str, str, int]]:
    """Return the errors of a confusion matrix, most frequent first: (true, predicted, count)."""
    errors = [(a, b, n) for a, row in matrix.items() for b, n in row.items() if a != b]
    return sorted(errors, key=lambda error: -error[2])


def describe(scores: dict) -> str:
    """Return what was scored: the split, the checkpoint and the search."""
    texts = "{corpus}" if scores["split"] == "all" else "{split} split of {corpus}"
    return f"{texts}, {{checkpoint}}, {{search}}".format_map(scores)


def write(run: Path, name: str, scores: dict, table: Table) -> list[str]:
    """Write scores, outputs and the worst of them into a run directory. Returns the file names.

    A full disk leaves the old ones. Raises OSError.
    """
    rows = [table, *zip(*table.values(), strict=True)]
    lines = ("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in row) for row in rows)
    texts = {
        f"scores-{name}.json": json.dumps(scores, indent=1) + "\n",
        f"outputs-{name}.tsv": "".join(f"{line}\n" for line in lines),
        f"mistakes-{name}.txt": worst(table),
    }
    for file, text in texts.items():
        (run / f"{file}.unfinished").write_text(text, "utf-8")
    for file in texts:
        (run / f"{file}.unfinished").replace(run / file)
    return [*texts]


def worst(table: Table) -> str:
    """List the translations with the lowest chrF, or the wrong labels with the highest
    probability.
    """
    if "nats" in table:
        return least_likely(table)
    score, sign = ("probability", -1) if "probability" in table else ("chrf", 1)
    pairs = enumerate(zip(table["reference"], table["output"], strict=True))
    wrong = [i for i, (reference, output) in pairs if output != reference]
    wrong.sort(key=lambda i: sign * float(table[score][i]))
    columns = (score, "source", "reference", "output")
    blocks = ("".join(f"{c:12}{table[c][i]}\n" for c in columns) for i in wrong[:MISTAKES_SHOWN])
    return "\n".join(blocks)


def least_likely(table: Table) -> str:
    """List the texts of at least 20 characters with the most nats per character."""
    characters = [int(x) for x in table["characters"]]
    nats = [float(x) / max(1, n) for x, n in zip(table["nats"], characters, strict=True)]
    order = sorted(range(len(nats)), key=lambda i: -nats[i])
    shown = [i for i in order if characters[i] >= 20][:MISTAKES_SHOWN]
    return "".join(f"{nats[i]:.3f} nats per character  {table['text'][i].strip()}\n" for i in shown)


def outputs_path(run: Path, name: str) -> Path:
    """Return the file of the outputs that `write` writes."""
    return run / f"outputs-{name}.tsv"


def read_outputs(run: Path, name: str) -> Table:
    """Read the outputs that `write` wrote. Raises OSError."""
    lines = outputs_path(run, name).read_text("utf-8").split("\n")[:-1]
    names, *rows = (line.split("\t") for line in lines)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def text_columns(table: Table) -> tuple[str, ...]:
    """Return the names of the columns that identify the texts of a table."""
    return ("text",) if "text" in table else ("source", "reference")


def same_texts(one: Table, other: Table) -> bool:
    """Return whether two tables have the same sources and references, or the same texts."""
    return all(one[column] == other.get(column) for column in text_columns(one))
