"""Compare the outputs of two runs that evaluate.py has written: differences of BLEU, chrF and exact
match, of accuracy, or of nats per character, with 95 % intervals, and the texts on which the runs
differ most.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sacrebleu.metrics import CHRF

from data import corpora
from evaluation import command_line, metrics, report
from evaluation.report import Table
from training.records import find_run, load_config
from utils import UserError, handle_signals, make_parser, quote, warn

Statistics = tuple[np.ndarray, Callable[[np.ndarray], float]]
SAMPLES, SEED = 1000, 12345  # those of sacreBLEU
TEXTS_SHOWN = 10
MIN_CHARACTERS = 20  # of a text of a language model that is shown


def read_outputs(run: Path, name: str) -> Table:
    """Read the outputs of a run. Raises OSError, and UserError if they are missing."""
    path = report.outputs_path(run, name)
    if not path.exists():
        load_config(run)  # raises UserError if it is not a run
        raise UserError(
            f"{path} is missing: run python evaluate.py {quote(run)}, with the same flags for both "
            "runs, or select other outputs with --outputs"
        )
    return report.read_outputs(run, name)


def statistics(table: Table) -> dict[str, Statistics]:
    """Return by metric the statistics of each text (texts, n), and what scores their sum (n,)."""
    if "nats" in table:
        counts = np.array([table["nats"], table["characters"]], float).T  # (texts, 2)
        return {"nats_per_character": (counts, lambda sums: sums[0] / sums[1])}
    right = np.equal(table["output"], table["reference"])
    correct = np.stack([right, np.ones_like(right)], 1).astype(float), lambda x: 100 * x[0] / x[1]
    if "probability" in table:
        return {"accuracy": correct}
    result = {}
    for name, metric in ("bleu", metrics.make_bleu()), ("chrf", CHRF()):
        counts = metric._extract_corpus_statistics(table["output"], [table["reference"]])
        score = metric._compute_score_from_stats
        result[name] = np.array(counts, float), lambda sums, score=score: score(sums).score
    return result | {"exact_match": correct}


def interval(one: Statistics, other: Statistics) -> tuple[float, float]:
    """Return the 95 % interval of the difference, other minus one: paired bootstrap resampling of
    the texts (Koehn 2004), as in sacreBLEU.
    """
    (counts, score), (other_counts, _) = one, other
    rng, differences = np.random.default_rng(SEED), []
    for _ in range(SAMPLES):
        chosen = rng.choice(len(counts), size=len(counts))
        sums = counts[chosen].sum(axis=0), other_counts[chosen].sum(axis=0)
        differences.append(score(sums[1]) - score(sums[0]))
    return tuple(np.quantile(differences, [0.025, 0.975]))


def text_scores(table: Table) -> np.ndarray:
    """Return the chrF of each text, or the probability of its label, negative if it is wrong, or
    its nats per character.
    """
    if "nats" in table:
        nats, characters = np.array([table["nats"], table["characters"]], float)
        return nats / np.maximum(characters, 1)
    if "probability" not in table:
        return np.array(table["chrf"], float)
    right = np.equal(table["output"], table["reference"])
    return np.where(right, 100, -100) * np.array(table["probability"], float)


def main(flags: argparse.Namespace) -> None:
    """Print the comparison. Raises UserError and OSError."""
    runs, names = (flags.run, flags.other), (flags.outputs[0], flags.outputs[-1])
    one, other = map(read_outputs, runs, names)
    scores = [*map(report.read_scores, runs, names)]
    about = [f"{run}, {report.describe(each)}" for run, each in zip(runs, scores, strict=True)]
    *sources, target = report.text_columns(one)
    if target not in other or ("probability" in one) != ("probability" in other):
        raise UserError(f"{runs[0]} and {runs[1]} are not models for the same task")
    if not report.same_texts(one, other):
        lower = [[text.lower() for text in table[target]] for table in (one, other)]
        if lower[0] == lower[1] and all(one[name] == other[name] for name in sources):
            raise UserError("one run is in lower case (--lowercase): scores are not comparable")
        first = scores[0]
        texts = f"--corpus {quote(first['corpus'])} --split {first['split']}"
        texts = f"--testset {quote(first['testset'])}" if "testset" in first else texts
        texts += f" --languages {first['languages']}" if "languages" in first else ""
        shares = [each.get("held_out_share") for each in scores]
        if shares[0] != shares[1] and corpora.is_same(*(each["corpus"] for each in scores)):
            raise UserError(
                f"different texts ({about[0]}; {about[1]}): their --held-out-share differs; train "
                "both with the same one, or score both on another file with --corpus"
            )
        raise UserError(
            f"different texts ({about[0]}; {about[1]}): score the second run on those of the first "
            f"with python evaluate.py {quote(flags.other)} {texts}, and name both outputs: "
            f"--outputs {names[0]} NAME"
        )
    print(f"A: {about[0]}\nB: {about[1]}\n{len(one[target]):,} texts\n")
    width, digits = (20, 4) if "nats" in one else (12, 2)
    print(f"{'A':>{width + 9}}{'B':>9}{'B - A':>9}  95 % interval")
    for (name, a), b in zip(statistics(one).items(), statistics(other).values(), strict=True):
        values = [score(counts.sum(axis=0)) for counts, score in (a, b)]
        low, high = interval(a, b)
        difference = (
            f"{values[1] - values[0]:+9.{digits}f}  [{low:+.{digits}f}, {high:+.{digits}f}]"
        )
        print(f"{name:{width}}{values[0]:9.{digits}f}{values[1]:9.{digits}f}{difference}")
    for run, each in zip(runs, scores, strict=True):
        if each.get("unknown"):
            share = f"{each['unknown']:.1%} of the tokens"
            warn(
                f"{run} does not predict the letters of unknown tokens, {share}: compare with care"
            )
    differences = text_scores(other) - text_scores(one)
    shown = [i for i in np.argsort(-abs(differences), kind="stable") if differs(one, other, i)]
    for i in shown[:TEXTS_SHOWN]:
        print(f"\n{'B - A':12}{differences[i]:+.{digits - 1}f}")
        for name in report.text_columns(one):
            print(f"{name:12}{one[name][i]}")
        if "output" in one:
            print(f"{'A':12}{one['output'][i]}\n{'B':12}{other['output'][i]}")


def differs(one: Table, other: Table, i: int) -> bool:
    """Return whether the outputs of text i differ, or, without outputs, whether it is long enough
    to be shown.
    """
    if "output" in one:
        return one["output"][i] != other["output"][i]
    return int(one["characters"][i]) >= MIN_CHARACTERS


def parse_flags() -> argparse.Namespace:
    """Parse the command line; a mistake exits with one line and status 2."""
    parser = make_parser(__doc__, prog="python -m evaluation.compare")
    add = parser.add_argument
    add("run", type=find_run, metavar="RUN_A", help=command_line.RUN_HELP)
    add("other", type=find_run, metavar="RUN_B", help="another one")
    text = "which outputs-NAME.tsv to compare, such as test-beam4; two names if they differ [test]"
    add("--outputs", default=["test"], nargs="+", metavar="NAME", help=text)
    handle_signals()
    flags = parser.parse_args()
    if len(flags.outputs) > 2:
        parser.error("--outputs takes one name, or one for each run")
    return flags


if __name__ == "__main__":
    command_line.run(main, parse_flags())
