"""What a measurement of labels leaves behind: which are taken for which, and where it was sure."""

import math
import time

import numpy as np

from data import pipeline
from evaluation import plots
from evaluation.report import print_numbers, write_table

SHOWN = 20  # of the most confident mistakes


def measure(model, split):
    """Scores of an Translator on a Split with labels → a dict, a list of (log probability, label).

    accuracy and F1, 0 to 1; F1 (van Rijsbergen 1979) of each label, and their mean, which counts
    every label the same.
    """
    model.translate(split.sources[:1])  # traces the graph
    began = time.perf_counter()
    found = [best[0] for best in model.n_best(split.sources, progress=True)]
    seconds = time.perf_counter() - began
    names = model.tokenizers[1].names
    matrix = confusion([label for _, label in found], split.targets, names)
    f1 = f1_scores(matrix)
    pairs, cut = pipeline.encode(split, *model.tokenizers, model.max_length)
    loss, _ = model.loss_and_accuracy(pairs)
    right = [label == true for (_, label), true in zip(found, split.targets, strict=True)]
    return {
        "accuracy": float(np.mean(right)),
        "f1": float(np.mean(f1)),
        "loss": loss,
        "texts_per_second": len(found) / seconds,
        "texts": len(found),
        "parameters": model.parameters,
        "texts_cut": cut,
        "search": str(model.search),
        "f1_by_label": dict(zip(names, f1.tolist(), strict=True)),
        "confusion": {name: row for name, row in zip(names, matrix.tolist(), strict=True)},
    }, found


def confusion(said, true, names):
    """How often a label (row) was taken for another (column): (labels, labels), int."""
    number = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), int)
    for label, answer in zip(true, said, strict=True):
        if answer in number:  # "" for an empty text
            matrix[number[label], number[answer]] += 1
    return matrix


def f1_scores(matrix):
    """2 · right / (said + true) of each label; 0 where it is neither said nor true."""
    right = np.diag(matrix)
    return 2 * right / np.maximum(matrix.sum(axis=0) + matrix.sum(axis=1), 1)


def mistakes(split, found):
    """The texts that are labelled wrongly, the most confident first: a list of their numbers."""
    wrong = [i for i, (_, label) in enumerate(found) if label != split.targets[i]]
    return sorted(wrong, key=lambda i: -found[i][0])


def print_table(result):
    """Every number, and the confusion matrix."""
    print_numbers(result)
    names = list(result["confusion"])
    width = 2 + max(10, *map(len, names))
    print(f"\n{'is, and is called':28}" + "".join(f"{name:>{width}}" for name in names))
    for name, row in result["confusion"].items():
        print(f"{name:28}" + "".join(f"{count:{width},}" for count in row))


def write(folder, ending, split, found):
    """Write the labels, the most confident mistakes and the confusion matrix → names of files."""
    names = [f"labels-{ending}.txt", f"mistakes-{ending}.txt", f"confusion-{ending}.png",
             f"confusion-{ending}.svg"]  # fmt: skip
    text = "".join(label + "\n" for _, label in found)
    (folder / names[0]).write_text(text, "utf-8")
    text = "".join(
        f"{math.exp(found[i][0]):.4f} {found[i][1]}, but is {split.targets[i]}:\n"
        f"{split.sources[i]}\n\n"
        for i in mistakes(split, found)[:SHOWN]
    )
    (folder / names[1]).write_text(text, "utf-8")
    labels = sorted({*split.targets, *(label for _, label in found)} - {""})
    matrix = confusion([label for _, label in found], split.targets, labels)
    plots.confusion(folder / f"confusion-{ending}", matrix, labels)
    return names


def write_sentences(path, split, found):
    """A line for each text: itself, its label, the one found and its probability."""
    write_table(path, {
        "text": split.sources, "label": split.targets, "found": [label for _, label in found],
        "probability": [f"{math.exp(score):.4f}" for score, _ in found],
    })  # fmt: skip
