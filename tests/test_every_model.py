"""Every model takes the same road: train.py, its run folder, evaluate.py. As they are run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["--d-model", "16", "--num-layers", "1", "--vocab-size", "400", "--batch-tokens", "256"]


def call(program, *flags):
    command = [sys.executable, "-X", "utf8", program, *map(str, flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    return SimpleNamespace(returncode=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture
def evaluate(evaluate_here):
    """Runs evaluate.py."""

    def run(*flags):
        status, out, err = evaluate_here(*flags)
        return SimpleNamespace(returncode=status, out=out, err=err)

    return run


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs train.py to its end and gives the run's folder."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name, *flags):
        where = ["--runs-dir", folder, "--cache-dir", folder / "cache", "--name", name]
        done = call("train.py", *flags, *where)
        assert done.returncode == 0, done.err
        return folder / name

    return run


@pytest.fixture(scope="module")
def classifier(train, tmp_path_factory):
    """One that learned on which side of a film somebody is. Three texts in twenty say nothing."""
    random, rows = np.random.default_rng(0), []
    for i in range(900):
        label, word = [("pos", "great"), ("neg", "awful"), ("neg", "boring")][random.integers(3)]
        words = [*random.choice("the a film plot actor was very and it".split(), 8)]
        if i % 20 > 2:
            words.insert(random.integers(8), word)
        rows.append(f"{label}\t{' '.join(words)}\n")
    table = tmp_path_factory.mktemp("texts") / "films.tsv"
    table.write_text("".join(rows), "utf-8")
    return train(
        "films", "--model", "classifier", "--corpus", table, *SMALL, "--tokenizer", "word",
        "--num-heads", "2", "--dff", "32", "--pooling", "max", "--warmup-steps", "40",
        "--bigrams", "99",
        "--epochs", "6", "--max-length", "12",
    )  # fmt: skip


def test_a_classifier_learns_and_is_measured(classifier, evaluate):
    lines = map(json.loads, (classifier / "metrics.jsonl").read_text().splitlines())
    epochs = [line for line in lines if "validation_loss" in line]
    assert "validation_bleu" not in epochs[-1] and epochs[-1]["validation_accuracy"] > 0.75
    done = evaluate(classifier, "--per-sentence", classifier / "each.tsv")
    assert done.returncode == 0, done.err
    scores = json.loads((classifier / "scores-test.json").read_text())
    assert scores["accuracy"] > 0.75 and f"{scores['accuracy']:.4g}" in done.out
    matrix = np.array([scores["confusion"][label] for label in ("neg", "pos")])
    assert np.trace(matrix) / matrix.sum() == pytest.approx(scores["accuracy"])
    table = (classifier / "each.tsv").read_text("utf-8").splitlines()
    names, *rows = (line.split("\t") for line in table)
    assert names == ["text", "label", "found", "probability"]
    assert len(rows) == matrix.sum() == scores["texts"]
    right = [row[1] == row[2] for row in rows]
    assert np.mean(right) == pytest.approx(scores["accuracy"])
    # The mistakes begin with the surest.
    wrong = max((row for row, fits in zip(rows, right, strict=True) if not fits),
                key=lambda row: float(row[3]), default=None)  # fmt: skip
    mistakes = (classifier / "mistakes-test.txt").read_text("utf-8")
    assert wrong is None or wrong[0] in mistakes.split("\n\n")[0]
    assert (classifier / "confusion-test.png").stat().st_size > 1000


def test_a_text_is_labelled_from_the_command_line(classifier, evaluate):
    done = evaluate(classifier, "--translate", "a great film")
    assert (done.returncode, done.out) == (0, "pos\n"), done.err
    both = ["--beam", "2", "--n-best", "2", "--length-penalty", "0"]
    done = evaluate(classifier, "--translate", "it was boring", *both)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[2] for row in rows] == ["neg", "pos"]
    assert sum(np.exp(float(row[1])) for row in rows) == pytest.approx(1, abs=1e-3)
    done = evaluate(classifier, "--beam", "3", "--n-best", "3", "--translate", "a film")
    assert done.returncode == 2 and "there are only 2 labels" in done.err.splitlines()[-1]
    done = evaluate(classifier, "--sample", "--translate", "a film")
    assert done.returncode == 2 and "error: a label is not drawn" in done.err.splitlines()[-1]


def test_a_recurrent_model_takes_the_same_road(train, evaluate):
    run = train(
        "recurrent", "--model", "recurrent", "--recurrent-attention", "dot", "--corpus", "mini:300",
        *SMALL, "--epochs", "1",
    )  # fmt: skip
    plots = evaluate(run, "--plots", "--beam", "2")
    assert plots.returncode == 0 and "bleu" in plots.out, plots.err
    drawn = {Path(line).stem for line in plots.out.splitlines() if line.endswith(".svg")}
    assert drawn == {"learning-rate", "training", "bleu-by-length", "agreement"}
    beside = evaluate(run, "--plots", "--beside", run.parent)
    assert beside.returncode == 2 and "score it in the same way first" in beside.err


def test_the_inside_is_drawn_from_the_command_line(classifier, evaluate):
    done = evaluate(classifier, "--attention", "a great film")
    assert done.returncode == 0, done.err
    drawn = [Path(line) for line in done.out.splitlines()]
    names = {path.name for path in drawn}
    stem = "encoder-self-attention"
    assert names == {f"{stem}.png", f"{stem}.svg", "attention.html"}
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert "great" in (classifier / "attention" / f"{stem}.svg").read_text("utf-8")
    done = evaluate(classifier, "--neighbours", "great")
    assert done.returncode == 0 and done.out.splitlines()[0] == "▁great"
    done = evaluate(classifier, "--plots")
    lines = [line for line in done.out.splitlines() if line.startswith(str(classifier))]
    drawn = {Path(line).name for line in lines if line.endswith(".png")}
    assert drawn == {"learning-rate.png", "training.png", "positions.png"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "recurrent", "--num-heads", "4"], "--num-heads"),
        (["--model", "recurrent", "--d-model", "7"], "even --d-model"),
        (["--recurrent-attention", "dot"], "--recurrent-attention"),
        (["--model", "classifier"], "mini holds translations"),
        (["--model", "classifier", "--corpus", "imdb_reviews", "--reverse"], "--reverse"),
        (["--corpus", "imdb_reviews/plain_text"], "add --model classifier"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(flags, words):
    done = call("train.py", *flags)
    assert done.returncode == 2
    assert words in done.err and done.err.startswith("error: ")
    assert done.err.count("\n") == 1
