"""The worker of `python -m ablation`: what is scored, and that everything runs."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tensorflow as tf
from helpers import training_in_process

from ablation import experiments, worker
from data import tokenizer
from data.splits import Split
from evaluation import generator, loading, scores
from same_code import ROOT
from training import machine
from utils import UserError

# Whether everything runs, in seconds.
SMOKE = (
    "--corpus mini:500 --num-layers 1 --d-model 32 --num-heads 2 --dff 64 --max-length 20 "
    "--epochs 2 --shards 1 --validation-sentences 10"
).split()


def test_texts_for_the_final_score_are_not_among_those_that_decide():
    first, final = (worker.load_texts([], 300, final) for final in (False, True))
    assert not {*map(str.lower, first.sources)} & {*map(str.lower, final.sources)}
    assert len(first.sources) == 300 and len({*first.tags}) == 11


@pytest.mark.parametrize("name", ["ted", "imdb"])
def test_the_test_split_is_read_only_for_the_final_score(name, monkeypatch):
    monkeypatch.setattr(worker.corpora, "from_config", lambda config: SimpleNamespace(load=str))
    flags = experiments.recipes()[name].flags.split()
    splits = [worker.load_texts(flags, 0, final) for final in (False, True)]
    assert splits == ["validation", "test"]


def test_scoring_can_be_stopped_and_a_run_that_cannot_resume_starts_again(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (tmp_path / "texts").write_text("[[], []]")
    job = {name: str(tmp_path / name) for name in ("run", "texts", "cache")}
    job |= {"flags": ["--epochs", "3"], "average": 3, "resumable": True}

    def train(config):
        assert config.resume is None and config.epochs == 3
        machine.StopSignal()

    def load(*arguments, average):
        default = (signal.SIG_DFL, signal.SIG_DFL)
        assert tuple(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))) == default
        assert average == 3
        raise UserError("scoring")

    monkeypatch.setattr(loading, "load", load)
    with training_in_process() as patch:
        patch.setattr("train.train", train)
        for resumable in (True, False):
            with pytest.raises(UserError, match="scoring"):
                worker.train_and_score(job | {"resumable": resumable})
            assert not (tmp_path / "run").exists()  # it began from the start
            (tmp_path / "run/checkpoints").mkdir(parents=True)
            (tmp_path / "run/checkpoints/ckpt-1.index").touch()


def test_stored_scores_exclude_phenomena_and_those_of_a_language_model_are_its_loss(monkeypatch):
    losses = {"loss": 2.0, "nats_per_character": 1.5}
    tags = {"tense": (2, 100.0), "order": (1, 100.0), "sense": (1, 0.0)}
    found = losses | {"accuracy": 0.5, "exact_match": 75.0, "exact_match_by_tag": tags}
    for name in ("measure", "measure_text"):
        monkeypatch.setattr(scores, name, lambda *_: (found, {}))
    stored = worker.score(SimpleNamespace(labelled=False), Split([""], ["text"]), True)
    by_tag = {"tense": 100, "order": 100, "sense": 0}
    assert stored == losses | {"exact_match": 50, "by_tag": by_tag}
    stored = worker.score(SimpleNamespace(labelled=True), Split([""], ["text"]), True)
    assert stored == losses | {"accuracy": 50}
    found = losses | {"accuracy": 0.5}
    model = generator.Generator.__new__(generator.Generator)
    assert worker.score(model, Split([""], ["text"]), True) == losses


def test_scores_are_those_of_the_pairs_that_fit():
    """With eos, of three and two target tokens, one of them unknown. The third pair is too long."""
    words = tokenizer.train(["a b", "b c"], 20, kind="word")
    model = SimpleNamespace(source_tokenizer=words, target_tokenizer=words, labelled=False)
    model.max_length, model.loss_and_accuracy = 2, lambda pairs: (1.5, 0.5)
    found, too_long = scores.loss_scores(model, Split(["a", "b", "c"], ["a d", "b", "a b c"]))
    assert found["nats_per_character"] == pytest.approx(1.5 * (3 + 2) / (3 + 1)) and too_long == 1
    assert found["unknown"] == 1 / 5
    assert "unknown" not in scores.loss_scores(model, Split(["d"], ["a"]))[0]


def start(tmp_path, job, **environment):
    """Run a worker with a job, and return what it wrote."""
    (tmp_path / "job").write_text(json.dumps(job))
    command = [sys.executable, "-m", "ablation.worker", str(tmp_path / "job")]
    options = {"cwd": ROOT, "env": os.environ | environment, "stdin": subprocess.PIPE}
    process = subprocess.Popen(command, **options)  # it ends with its standard input
    assert process.wait() == 0
    process.stdin.close()
    return json.loads((tmp_path / "result").read_text())


def test_machines_with_other_arithmetic_have_another_hash():
    """The hash is of bits: a last bit of one weight counts."""
    one, other = (worker.hash_of([tf.constant([1.0, x])]) for x in (2.0, 2.0000002))
    assert one == worker.hash_of([tf.Variable([1.0, 2.0])]) != other
    assert worker.fingerprint() == worker.fingerprint()


@pytest.mark.slow
def test_settings_of_tensorflow_that_change_bits_are_another_machine(tmp_path):
    job = {"result": str(tmp_path / "result"), "texts": str(tmp_path / "texts")}
    job |= {"flags": [], "sentences": 11, "final": False}
    found = [start(tmp_path, job, TF_ENABLE_ONEDNN_OPTS=x)["machine"] for x in ("1", "1", "0")]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_worker_trains_and_scores_the_same_bits_again(tmp_path):
    """Also with other cores: with more threads, the sums of a layer have another order."""
    probe = {"flags": SMOKE, "sentences": 110, "final": False}
    probe["texts"] = str(tmp_path / "texts.json")
    here = start(tmp_path, probe | {"result": str(tmp_path / "result")})
    found = []
    cores = machine.cores()
    for name, chosen in (("one", cores[:1]), ("two", cores)):
        (tmp_path / "result").unlink()
        if hasattr(os, "sched_setaffinity"):  # on Linux
            os.sched_setaffinity(0, chosen)
        files = {"run": f"runs/{name}", "cache": "cache", "texts": "texts.json", "result": "result"}
        job = {key: str(tmp_path / value) for key, value in files.items()}
        job |= {"flags": [*SMOKE, "--seed=3"], "average": 2, "about": {"a": 1, **here}}
        found.append(start(tmp_path, job | {"resumable": True, "packages": {}}))
    one, two = found
    assert one["a"] == 1 and len(one["weights"]) == 16
    for key in ("weights", "scores", "parameters"):
        assert one[key] == two[key]
    tags = json.loads((tmp_path / "texts.json").read_text())[2]
    assert one["scores"]["by_tag"].keys() == set(tags)
    assert not (tmp_path / "runs/one/checkpoints").exists()
    recipe = replace(experiments.recipes()["mini"], score="nats_per_character")
    assert recipe.value(one) > 0 and recipe.gain(one, two) == 0
