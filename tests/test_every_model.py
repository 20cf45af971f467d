"""Classifiers and recurrent models: trained, scored and shown by the same commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import TINY, metrics_of, train_here, write_corpus

from evaluation import report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def settings(folder):
    """Settings of every model."""
    names = ("num_layers", "d_model", "vocab_size", "batch_tokens")
    directories = {"runs_dir": str(folder), "cache_dir": str(folder / "cache")}
    return {name: TINY[name] for name in names} | directories


@pytest.fixture(scope="module")
def classifier(settings, folder):
    """A classifier that has learned whether films are liked. A few texts do not tell."""
    random, rows = np.random.default_rng(0), []
    for i in range(900):
        label, word = [("pos", "great"), ("neg", "awful"), ("neg", "boring")][random.integers(3)]
        words = [*random.choice("the a film plot actor was very and it".split(), 8)]
        if i % 20 > 2:
            words.insert(random.integers(8), word)
        rows.append(f"{label}\t{' '.join(words)}\n")
    (folder / "films.tsv").write_text("".join(rows), "utf-8")
    flags = {"corpus": str(folder / "films.tsv"), "tokenizer": "word", "max_length": 12}
    flags |= {"num_heads": 2, "dff": 32, "pooling": "max", "warmup_steps": 40, "epochs": 6}
    return train_here(**settings | flags, model="classifier", name="classifier")


def paths(result):
    """Return the paths that a program has printed."""
    assert result.status == 0, result.err
    return [Path(line) for line in result.out.splitlines() if line.endswith((".png", ".svg"))]


def test_a_classifier_learns_and_is_scored(classifier, run_program):
    last = [line for line in metrics_of(classifier) if "validation_loss" in line][-1]
    assert "validation_bleu" not in last and last["validation_accuracy"] > 0.75
    result = run_program("evaluate.py", classifier)
    assert result.status == 0, result.err
    scores = json.loads((classifier / "scores-test.json").read_text())
    assert scores["accuracy"] > 0.75 and f"{scores['accuracy']:.4f}" in result.out
    labels, rows = ("neg", "pos"), scores["confusion"]
    matrix = np.array([[rows[a].get(b, 0) for b in labels] for a in labels])
    assert np.trace(matrix) / matrix.sum() == pytest.approx(scores["accuracy"])

    table = report.read_outputs(classifier, "test")
    assert len(table["output"]) == matrix.sum() == scores["texts"]
    wrong = np.not_equal(table["output"], table["reference"])
    assert 1 - np.mean(wrong) == pytest.approx(scores["accuracy"])


@pytest.mark.parametrize("flags", ["--beam 3 --n-best 3", "--sample"])
def test_there_are_not_more_labels_than_two_nor_are_they_sampled(classifier, run_program, flags):
    result = run_program("translate.py", classifier, "a film", *flags.split())
    assert result.status == 2 and "label" in result.err.splitlines()[-1]


def test_a_recurrent_model_is_trained_and_scored(settings, folder, run_program):
    flags = {"corpus": str(write_corpus(folder / "talks")), "max_length": 40, "epochs": 1}
    flags |= {"model": "recurrent", "recurrent_attention": "dot"}
    run = train_here(**settings | flags, name="recurrent")
    result = run_program("evaluate.py", run, "--beam", 2)
    assert result.status == 0 and "bleu" in result.out, result.err
    drawn = {path.stem for path in paths(run_program("evaluation/figures.py", run))}
    assert drawn == {"bleu-by-length-test-beam2"}
