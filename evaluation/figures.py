"""Draw figures of a run into RUN/figures: training curves, and from the outputs that evaluate.py
has written, BLEU by length and the agreement of the metrics, or the confusion matrix of labels.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evaluation import command_line, metrics, plots, report
from training.records import load_config, read_json, read_json_lines
from utils import UserError, handle_signals, make_parser

# Minimum and maximum number of words of a source, in the plot of BLEU by length.
LENGTHS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, math.inf))


def read_metrics(run: Path) -> list[dict]:
    """Read metrics.jsonl of a run. Raises OSError, and UserError if it is empty or damaged."""
    path = run / "metrics.jsonl"
    lines = read_json_lines(path)
    if not lines:
        raise UserError(f"{path} is empty: wait for the first epoch")
    for number, line in enumerate(lines, 1):
        finite = all(isinstance(x, int | float) and abs(x) < 1e308 for x in line.values())
        if not finite or not 1 <= line.get("step", 0) < 2**31:
            raise UserError(f"{path}:{number} has an invalid value: delete the line")
    return lines


def read_outputs(runs: Sequence[Path], name: str, labelled: bool, count: int) -> list[list[str]]:
    """Read the outputs of each run that evaluate.py wrote. Raises UserError if some are missing."""
    outputs, split = [], name.partition("-")[0]
    for run in runs:
        path = report.outputs_path(run, name, labelled)
        if not path.exists():
            raise UserError(
                f"{path} is missing: run evaluate.py first, with the same flags per run"
            )
        if report.recorded_hash(run, split) != report.recorded_hash(runs[0], split):
            raise UserError(f"{run} was trained with another {split} split than {runs[0]}")
        outputs.append(path.read_text("utf-8").split("\n")[:-1])
        if len(outputs[-1]) != count:
            raise UserError(f"{path} is incomplete: run evaluate.py again")
    return outputs


def run_labels(runs: Sequence[Path]) -> list[str]:
    """Return the names of runs for legends, and the kind of attention of recurrent models."""
    distinct = len({run.name for run in runs}) == len(runs)
    labels = []
    for run in runs:
        settings, label = read_json(run / "config.json"), run.name if distinct else str(run)
        if settings["model"] == "recurrent":
            label += f": GRU, {settings['recurrent_attention'].replace('none', 'no')} attention"
        labels.append(label)
    return labels


def group_by_length(sources: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of texts by number of words: {"1–5": […], …, "41 and more": […]}.

    A group of fewer than one text in a hundred is merged with the shorter ones before it.
    """
    lengths = np.array([len(text.split()) for text in sources])
    groups = []
    for low, high in LENGTHS:
        indices = np.flatnonzero((lengths >= low) & (lengths <= high)).tolist()
        if groups and 0 < len(indices) < len(lengths) / 100:
            low, _, shorter = groups.pop()
            indices = shorter + indices
        if indices:
            groups.append((low, high, indices))
    return {
        f"{low} and more" if high == math.inf else f"{low}–{high}": indices
        for low, high, indices in groups
    }


def bleu_by_length(outputs: Sequence[str], references: Sequence[str], groups: dict) -> list[float]:
    """Return the BLEU of each group of `group_by_length`."""
    return [
        metrics.bleu([outputs[i] for i in group], [references[i] for i in group])
        for group in groups.values()
    ]


def scores_of_mistakes(outputs: Sequence[str], references: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the scores of the sentences that differ from their reference: {metric: values}.

    The others are perfect by every metric.
    """
    scores = metrics.sentence_scores(outputs, references)
    wrong = np.equal(scores.pop("exact_match"), 0)
    return {name: np.compress(wrong, values) for name, values in scores.items()}


def main(flags: argparse.Namespace) -> None:
    """Draw the figures and print their paths. Raises UserError and OSError."""
    config, folder, runs = load_config(flags.run), flags.run / "figures", [flags.run, *flags.others]
    names, lines = run_labels(runs), [read_metrics(run) for run in runs]
    name, *settings = flags.outputs.split("-")
    split, _ = report.load_split(flags.run, config, name, "all" in settings)
    outputs = read_outputs(runs, flags.outputs, config.is_classifier, len(split.sources))

    unit = "example" if config.is_classifier else "token"
    plots.training(folder / "training", dict(zip(names, lines, strict=True)), unit)
    if config.is_classifier:
        labels = sorted({*split.targets, *outputs[0]} - {""})
        matrix = report.confusion(outputs[0], split.targets, labels)
        plots.confusion(folder / "confusion", matrix, labels)
    else:
        groups = group_by_length(split.sources)
        bleu = [bleu_by_length(texts, split.targets, groups) for texts in outputs]
        counts = {words: len(group) for words, group in groups.items()}
        plots.by_length(folder / "bleu-by-length", counts, dict(zip(names, bleu, strict=True)))
        scores = scores_of_mistakes(outputs[0], split.targets)
        if len(scores["bleu"]) > 1:
            plots.agreement(folder / "agreement", scores)
    print(*sorted(p for p in folder.iterdir() if p.suffix in (".png", ".svg")), sep="\n")


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = make_parser(__doc__, prog="python -m evaluation.figures")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run directory, such as runs/NAME")
    add("others", nargs="*", type=Path, metavar="OTHER", help="other runs, in the same figures")
    text = "draw translations-NAME.txt or labels-NAME.txt, such as test-beam4 [test]"
    add("--outputs", default="test", metavar="NAME", help=text)
    handle_signals()
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    command_line.run(main, parse_flags())
