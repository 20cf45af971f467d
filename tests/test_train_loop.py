"""The training loop: batches, counters, logs, checkpoints, stopping and resuming.

Nearly all of these tests replace the train step by one that computes nothing.
"""

import contextlib
import functools
import json
import os
import resource
import runpy
import shlex
import shutil
import signal
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    TINY,
    assert_same_state,
    command_line,
    edit_json,
    metrics_of,
    run_loop,
    state,
    steps_saved,
    training_in_process,
    write_corpus,
)

import train
import utils
from ablation import executor
from config import Config
from data import pipeline
from data.batches import plan_batches
from training import description, distribution, machine, records, run
from training.checkpoints import readable_checkpoints
from training.command_line import config_from_flags
from training.logs import Logs
from training.records import Diverged, RunError, saved_checkpoints
from utils import UserError, lock

EPOCHS = 3
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of a variable's name in a checkpoint
# A model of few variables, because their number decides how long these tests take.
SMALL = {"model": "recurrent", "recurrent_attention": "none", "d_model": 16, "num_layers": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The settings of a small corpus and a small model, with a cache."""
    folder = tmp_path_factory.mktemp("corpus")
    data = {name: TINY[name] for name in ("vocab_size", "batch_tokens", "max_length")}
    data |= {"corpus": str(write_corpus(folder / "talks")), "cache_dir": str(folder / "cache")}
    return data | SMALL | {"epochs": EPOCHS}


@pytest.fixture
def settings(corpus, tmp_path):
    """The settings of a new run."""
    return corpus | {"runs_dir": str(tmp_path), "name": "run"}


@pytest.fixture(scope="module")
def expected(corpus):
    """The batches of each epoch, in an order of its own."""
    config = Config(**corpus)
    pairs = pipeline.load(config).train
    limits = (config.batch_tokens, config.batch_sentences, config.seed)
    plans = [plan_batches(pairs, *limits, epoch) for epoch in range(EPOCHS)]
    batches = [[pairs.batch(rows) for rows in plan] for plan in plans]
    order = [[source.shape for source, _ in epoch] for epoch in batches]
    assert order[0] != order[1] != order[2]  # otherwise tests would not see which plan was used
    return batches


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A finished run. Tests that change it use a copy."""
    folder = tmp_path_factory.mktemp("runs")
    run_loop(corpus | {"runs_dir": str(folder), "name": "run"}, change_weights)
    return folder / "run"


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def change_weights(step, training):
    """Give the embeddings the value of the step."""
    table = training.model.source_embedding.table
    table.assign(tf.fill(table.shape, float(step)))


def assert_same_batches(batches, expected):
    """Assert that two lists of (source, target) are equal."""
    tf.nest.map_structure(np.testing.assert_array_equal, batches, expected)


def counter(folder, name, step=None):
    """Return a counter of a checkpoint, the last one by default."""
    return state(folder, step)[name + VALUE]


def best_step(folder):
    """Return the step of the only checkpoint in best/."""
    (path,) = saved_checkpoints(folder / "checkpoints" / "best")
    return records.checkpoint_step(path)


def resumed(folder, **changes):
    """Return the settings that resume a run."""
    return {"resume": str(folder)} | changes


def based(folder, settings, **changes):
    """Return the settings of a run that starts from the weights of another."""
    directories = {name: settings[name] for name in ("runs_dir", "cache_dir")}
    return directories | {"init_from": str(folder)} | changes


# ---- Batches and counters ------------------------------------------------------------------------


def test_max_steps_stops_within_an_epoch_and_the_next_batch_follows(
    settings, expected, tmp_path, capsys
):
    """The commands that the run prints can be pasted, whatever its path is."""
    folder, last = tmp_path / "my runs" / "run", len(expected[0]) + 5

    def commands():
        lines = capsys.readouterr().out.splitlines()
        return [shlex.split(line)[1:] for line in lines if line.startswith("    python ")]

    batches = run_loop(settings | {"max_steps": last, "runs_dir": str(folder.parent)}).batches
    assert commands() == [
        ["evaluate.py", str(folder)],
        ["train.py", "--resume", str(folder), "--max-steps", "N"],
    ]
    assert steps_saved(folder)[-1] == last
    assert (counter(folder, "epoch"), counter(folder, "position")) == (1, 5)
    assert "validation_loss" in metrics_of(folder)[-1]  # a run that ends is validated
    batches += run_loop(resumed(folder, max_steps=None)).batches
    assert commands()[1][-2:] == ["--epochs", "N"]
    assert_same_batches(batches, sum(expected, []))


def test_a_run_in_parts_keeps_the_latest_epochs_and_the_best(settings, expected, tmp_path):
    folder, ends = tmp_path / "run", np.cumsum([len(epoch) for epoch in expected])
    settings |= {"keep_checkpoints": 2}
    batches = run_loop(settings | {"epochs": 1}, validation_losses=[2.0]).batches
    assert steps_saved(folder) == [0, ends[0]] and best_step(folder) == ends[0]
    batches += run_loop(resumed(folder, epochs=2), validation_losses=[3.0]).batches
    assert steps_saved(folder) == [*ends[:2]] and best_step(folder) == ends[0]
    assert counter(folder, "best_loss") == 2.0
    batches += run_loop(resumed(folder, epochs=3), validation_losses=[1.5]).batches
    assert steps_saved(folder) == [*ends[1:]] and best_step(folder) == ends[2]
    assert_same_batches(batches, sum(expected, []))


def test_resuming_a_finished_run_changes_nothing(copied, finished, capsys):
    """Neither does it become RUNS/latest. A run may be renamed."""
    renamed = copied.rename(copied.with_name("run (copy)"))
    newer = shutil.copytree(finished, copied.with_name("newer"))
    os.utime(newer / "config.json")
    assert run_loop(resumed(renamed)).batches == []
    assert "continue training" in capsys.readouterr().out
    assert run_loop(resumed(renamed, max_steps=9)).batches == []
    assert metrics_of(renamed) == metrics_of(finished)
    assert steps_saved(renamed) == steps_saved(finished)
    assert records.find_run(renamed.with_name("latest")) == newer


def test_an_epoch_begins_again_if_it_has_fewer_batches_than_are_done(settings, expected, tmp_path):
    last, folder = len(expected[0]) - 1, tmp_path / "run"
    run_loop(settings | {"max_steps": last})
    larger = {"batch_tokens": 4 * settings["batch_tokens"], "accept_changes": True}
    batches = run_loop(resumed(folder, max_steps=None, epochs=1, **larger)).batches
    tokens = [sum((source > 0).sum() for source, _ in each) for each in (batches, expected[0])]
    assert len(batches) < last and tokens[0] == tokens[1] and counter(folder, "epoch") == 1


# ---- Metrics -------------------------------------------------------------------------------------


def test_metrics_are_logged_at_the_first_and_every_fiftieth_step(finished, expected):
    first = {"step", "epoch", "objective", "loss", "accuracy", "grad_norm", "learning_rate"}
    first |= {"auxiliary", "grad_norm/encoder"}
    training = first | {"tokens_per_second"}
    validation = {"step", "epoch", "validation_loss", "validation_accuracy", "validation_bleu",
                  "seconds"}  # fmt: skip
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert lines[0].keys() == first
    assert {frozenset(line) for line in lines[1:]} == {frozenset(training), frozenset(validation)}
    assert all(line.get("tokens_per_second", 1) > 0 for line in lines)
    ends = np.cumsum([len(epoch) for epoch in expected])
    steps = [1, *range(50, ends[-1] + 1, 50)]
    assert [(x["step"], x["epoch"]) for x in lines if "loss" in x] == [
        (step, 1 + np.searchsorted(ends, step)) for step in steps
    ]
    assert [(x["step"], x["epoch"]) for x in lines if "seconds" in x] == [
        (end, epoch) for epoch, end in enumerate(ends, 1)
    ]


def test_logged_losses_are_means_since_the_last_point(settings, tmp_path):
    """Auxiliary ones, too, and also if training was stopped between two points."""
    run_loop(settings | {"max_steps": 70})
    run_loop(resumed(tmp_path / "run", epochs=5))
    points = {x["step"]: x for x in metrics_of(tmp_path / "run") if "loss" in x}
    means = {1: 1, 50: np.mean(range(2, 51)), 100: 75.5, 150: 125.5}
    assert {step: x["loss"] for step, x in points.items()} == means
    assert {step: -x["auxiliary"] for step, x in points.items()} == means
    assert {step: x["grad_norm/encoder"] for step, x in points.items()} == {x: x for x in means}


def test_metrics_after_the_checkpoint_are_written_again(settings, finished, tmp_path):
    def crash(step, training):
        if step == 60:  # step 50 is logged, and not in a checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loop(settings, crash)
    assert metrics_of(tmp_path / "run")[-1]["step"] == 50 > steps_saved(tmp_path / "run")[-1]
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 99, "lo')
    run_loop(resumed(tmp_path / "run"))
    assert metrics_of(tmp_path / "run") == metrics_of(finished)


# ---- Stopping and resuming -----------------------------------------------------------------------


def test_a_signal_saves_and_the_next_batch_follows(settings, expected, finished, tmp_path, capsys):
    def stop(step, training):
        if step == 55:
            os.kill(os.getpid(), signal.SIGINT)

    first = run_loop(settings, stop)
    assert first.status == 128 + signal.SIGINT
    out, err = capsys.readouterr()
    assert f"--resume {tmp_path / 'run'}" in out and "My corpus is small" in err  # a long warm-up
    assert steps_saved(tmp_path / "run")[-1] == 55
    second = run_loop(resumed(tmp_path / "run"))
    assert second.status == 0
    assert_same_batches(first.batches + second.batches, sum(expected, []))
    assert metrics_of(tmp_path / "run") == metrics_of(finished)


def test_a_signal_to_another_worker_stops_this_one(settings, monkeypatch):
    step = 0

    def count(number, training):
        nonlocal step
        step = number

    def all_gather(strategy, *numbers):
        return np.array([numbers, [signal.SIGTERM] if step == 5 else numbers])

    monkeypatch.setattr(distribution, "all_gather", all_gather)
    result = run_loop(settings, count)
    assert result.status == 128 + signal.SIGTERM and len(result.batches) == 5


def test_a_log_shows_the_updates_within_an_epoch(settings, monkeypatch, capsys, tmp_path):
    """As `python -m ablation` reads them."""
    bar = functools.partial(utils.progress_bar, mininterval=0, delay=0, miniters=1)
    monkeypatch.setattr("training.run.progress_bar", bar)
    run_loop(settings | {"epochs": 1})
    (tmp_path / "log").write_text(capsys.readouterr().err)
    assert executor.trained({"log": str(tmp_path / "log")}, 0) > 0.5


def test_only_the_chief_writes(settings, monkeypatch, tmp_path, expected):
    monkeypatch.setattr(distribution, "is_chief", lambda strategy: False)
    batches = run_loop(settings | {"epochs": 1}).batches
    assert_same_batches(batches, expected[0])
    assert not (tmp_path / "run").exists()


def test_validation_is_after_every_epoch_and_after_the_given_number_of_steps(settings, expected):
    folder, ends = Path(settings["runs_dir"], "run"), np.cumsum([len(epoch) for epoch in expected])
    every = len(expected[0]) - 2
    run_loop(settings | {"validate_every": every})
    validated = [line["step"] for line in metrics_of(folder) if "validation_loss" in line]
    assert validated == sorted({*ends, *range(every, ends[-1] + 1, every)})


def test_a_second_signal_is_not_caught():
    with training_in_process():  # which restores the handlers
        stop = machine.StopSignal()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        assert {signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)} == {signal.SIG_DFL}


def test_a_run_directory_has_one_process_and_one_run(copied, settings):
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    with pytest.raises(UserError, match="--resume"):
        run_loop(settings)
    with lock(copied / ".lock"), pytest.raises(BlockingIOError):
        run_loop(resumed(copied, epochs=9))
    del before[copied / ".lock"]
    assert before == {path: path.stat().st_mtime_ns for path in before}


# ---- Checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_within_an_epoch_hold_position_and_metrics(settings, monkeypatch, tmp_path):
    """The one after the last batch holds the validation, too. Older ones are deleted at once."""
    monkeypatch.setattr(run, "SAVE_EVERY", 0)
    steps = len(run_loop(settings | {"epochs": 1, "batch_tokens": 2000}).batches)
    folder = tmp_path / "run"
    assert steps_saved(folder) == [0, steps - 1, steps] and 2 < steps
    positions = [counter(folder, "position", step) for step in steps_saved(folder)]
    assert positions == [0, steps - 1, 0] and counter(folder, "epoch") == 1
    checkpoints = folder / "checkpoints"
    size = tf.train.load_variable(str(checkpoints / f"ckpt-{steps}"), "metrics_size" + VALUE)
    assert size == (folder / "metrics.jsonl").stat().st_size
    for file in (checkpoints / "unfinished").glob("ckpt-*"):  # as in runs of older code
        file.rename(checkpoints / file.name)
    (path,) = readable_checkpoints(checkpoints, 9, ends_of_epochs=True)
    assert path.endswith(f"ckpt-{steps}") and len(readable_checkpoints(checkpoints, 9)) == 3


@pytest.mark.parametrize(
    ("number", "save_every"), [(3, 180), (45, 180), (3, 0)], ids=["at end", "at log", "at save"]
)
def test_the_first_step_that_is_not_finite_is_reported_and_not_saved(
    settings, monkeypatch, tmp_path, number, save_every
):
    def diverge(step, training):
        training.optimizer.record_nonfinite(tf.constant(np.nan if step >= number else 1.0))

    monkeypatch.setattr(run, "SAVE_EVERY", save_every)
    losses = [float("nan")] if number == 3 else []  # is not reached
    with pytest.raises(Diverged, match=rf"step {number}\b.*learning-rate"):
        run_loop(settings, diverge, losses)
    saved = steps_saved(tmp_path / "run")
    assert saved[0] == 0 and saved[-1] < number
    values = [x for line in metrics_of(tmp_path / "run") for x in line.values()]
    assert np.isfinite(values).all()


@pytest.mark.parametrize("part", ["weight", "validation"])
def test_a_weight_or_loss_that_is_not_finite_is_not_saved(settings, tmp_path, part):
    def diverge(step, training):
        if part == "weight" and step == 30:
            training.model.source_embedding.table[3, 4].assign(np.inf)

    with pytest.raises(Diverged, match=part):
        run_loop(settings, diverge, validation_losses=[float("nan")])
    assert steps_saved(tmp_path / "run") == [0]
    assert not saved_checkpoints(tmp_path / "run" / "checkpoints" / "best")


# ---- Faults --------------------------------------------------------------------------------------


def test_a_checkpoint_that_a_running_training_replaces_is_not_reported(copied, capsys, monkeypatch):
    def replace(path):
        for file in folder.glob(f"{last}.*"):
            file.rename(folder / file.name.replace(last, "ckpt-9999"))
        return load(path)

    load, folder, last = tf.train.load_checkpoint, copied / "checkpoints", steps_saved(copied)[-1]
    last = f"ckpt-{last}"
    monkeypatch.setattr(tf.train, "load_checkpoint", replace)
    (path,) = readable_checkpoints(folder)
    assert path.endswith("ckpt-9999") and capsys.readouterr().err == ""


def test_a_run_resumes_from_an_older_checkpoint(copied, finished, expected, capsys):
    """The last checkpoint is damaged, and so is TensorFlow's list of them."""
    last, folder = steps_saved(copied)[-1], copied / "checkpoints"
    content = bytearray((folder / f"ckpt-{last}.data-00000-of-00001").read_bytes())
    content[-1000] ^= 0x10
    (folder / f"ckpt-{last}.data-00000-of-00001").write_bytes(content)
    (folder / "checkpoint").write_bytes((folder / "checkpoint").read_bytes()[:30])
    assert_same_batches(run_loop(resumed(copied), change_weights).batches, expected[-1])
    assert f"ckpt-{last} is damaged" in capsys.readouterr().err
    assert metrics_of(copied) == metrics_of(finished)
    assert_same_state(state(copied), state(finished))


@contextlib.contextmanager
def too_small_for_checkpoints(folder):
    """Let no file grow to the size of the checkpoints of a run."""
    size = max(path.stat().st_size for path in folder.glob("checkpoints/**/ckpt-*")) - 1000
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_older_checkpoints_intact(copied):
    """The one in best/ is of a step that follows."""
    for path in copied.glob(f"checkpoints/ckpt-{steps_saved(copied)[-1]}*"):
        path.rename(copied / "checkpoints" / "best" / path.name)
    before = {path: path.read_bytes() for path in copied.glob("checkpoints/**/ckpt-*")}
    why = pytest.raises(RunError, match=r"cannot save step \d+ .*free some space")
    with too_small_for_checkpoints(copied), why:
        run_loop(resumed(copied), change_weights, [0.5])  # the best one
    assert {path: path.read_bytes() for path in copied.glob("checkpoints/**/ckpt-*")} == before


def test_a_run_whose_first_checkpoint_does_not_fit_on_the_disk_is_started_again(settings, finished):
    why = pytest.raises(RunError, match="delete .*run, and start again")
    with too_small_for_checkpoints(finished), why:
        run_loop(settings)


def test_metrics_that_do_not_fit_on_the_disk_are_reported(tmp_path):
    logs = Logs(tmp_path)
    logs.file = open("/dev/full", "ab")
    with pytest.raises(RunError, match="free some space"), contextlib.closing(logs):
        logs.write("train", 1, {"loss": 1.0})


@pytest.mark.parametrize("name", ["tokenizer.model", "corpus.json"])
def test_another_corpus_or_tokenizer_is_not_resumed(copied, name):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content.replace(b'"en"', b'"de"') if name[0] == "c" else b"x")
    with pytest.raises(UserError, match=f"{name}|corpus"):
        run_loop(resumed(copied, epochs=9))


def test_changed_code_is_not_resumed_unless_accepted(copied):
    with open(copied / "source" / "model" / "masks.py", "a") as file:
        file.write("# a comment\n")
    assert not description.check_code(copied, accept_changes=False)
    with open(copied / "source" / "model" / "loss.py", "a") as file:
        file.write("ANOTHER = 1\n")
    with pytest.raises(RunError, match=r"model/loss\.py .*--accept-changes"):
        run_loop(resumed(copied, epochs=4))
    run_loop(resumed(copied, epochs=4, max_steps=1 + steps_saved(copied)[-1], accept_changes=True))
    assert "ANOTHER" not in (copied / "source" / "model" / "loss.py").read_text()
    (old,) = copied.glob("source.until-*")
    assert "ANOTHER" in (old / "model" / "loss.py").read_text()
    assert json.loads((copied / "config.json").read_text())["accept_changes"] is False
    shutil.rmtree(copied / "source")
    with pytest.raises(RunError, match="source .*--accept-changes"):
        description.check_code(copied, accept_changes=False)


def test_other_versions_of_packages_are_named(copied, capsys):
    versions = {"tensorflow": "2.1.0", "numpy": metadata.version("numpy")}
    edit_json(copied / "provenance.json", versions=versions)
    description.check_code(copied, accept_changes=False)
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "began with" in x)
    assert "tensorflow 2.1.0" in line and metadata.version("tensorflow") in line


def test_changed_settings_are_written_once_the_checkpoint_fits(copied):
    """A checkpoint that does not fit the new settings leaves the directory as it was."""
    before = {path: path.read_bytes() for path in copied.rglob("*.[pj]*") if path.is_file()}
    with pytest.raises(UserError, match="--accept-changes"):
        run_loop(resumed(copied, num_layers=2))
    with pytest.raises(RunError, match="does not fit"):
        run_loop(resumed(copied, num_layers=2, accept_changes=True))
    assert before == {path: path.read_bytes() for path in before}
    changes = {"dropout_rate": 0.3, "accept_changes": True, "epochs": 9}
    last = steps_saved(copied)[-1]
    run_loop(resumed(copied, max_steps=last + 1, **changes))
    assert json.loads((copied / "config.json").read_text())["dropout_rate"] == 0.3
    for name in ("config.json", "provenance.json"):
        (old,) = copied.glob(f"{name}.until-*")
        assert old.read_bytes() == before[copied / name]
    # A change of these settings needs no copies of the old ones.
    run_loop(resumed(copied, max_steps=last + 2, keep_checkpoints=9))
    assert len(list(copied.glob("*.until-*"))) == 4


# ---- Exit status of train.py ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "keyword"),
    [
        (RunError("no run"), 2, "no run"),
        (OSError(28, "No space left on device", "metrics.jsonl"), 2, "metrics.jsonl"),
        (Diverged("step 3"), 1, "step 3"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), 1, "--batch-tokens"),
        (ValueError("in an edited model"), None, "in an edited model"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_expected_errors_are_one_line_and_others_keep_their_traceback(
    settings, monkeypatch, capsys, error, status, keyword
):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(run.Run, "batches", fail)
    monkeypatch.setattr(sys, "argv", ["train.py", *command_line(settings)])
    with training_in_process(), pytest.raises((SystemExit, ValueError)) as raised:
        runpy.run_path(train.__file__, run_name="__main__")
    if status is None:
        assert raised.value is error
    else:
        assert raised.value.code == status
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: ") and keyword in line


# ---- Starting from another run -------------------------------------------------------------------


def test_a_run_starts_from_the_weights_and_the_tokenizer_of_another(
    finished, copied, settings, tmp_path, capsys
):
    (copied / "source" / "model" / "masks.py").write_text("ANOTHER = 1\n")
    run_loop(based(copied, settings, corpus="mini:50", name="other", max_steps=1))
    assert "warning: model/masks.py has changed" in capsys.readouterr().err
    run_loop(based(finished, settings, corpus="mini:50", reverse=True, name="new", epochs=1))
    parent, first = state(finished), state(tmp_path / "new", step=0)
    weights = [name for name in parent if name.startswith("model/")]
    assert weights and all(np.array_equal(parent[name], first[name]) for name in weights)
    assert counter(tmp_path / "new", "optimizer/step", step=0) == 0
    name = "tokenizer.model"
    assert (tmp_path / "new" / name).read_bytes() == (finished / name).read_bytes()
    total_steps = records.load_config(tmp_path / "new").total_steps
    out, err = capsys.readouterr()
    assert "starting from the weights of" in out and "has changed" not in err
    run_loop(resumed(tmp_path / "new", epochs=2, cache_dir=settings["cache_dir"]))
    assert "starting from the weights of" not in capsys.readouterr().out
    assert counter(tmp_path / "new", "epoch") == 2
    assert records.load_config(tmp_path / "new").total_steps == total_steps  # the schedule stays


def test_flags_that_contradict_the_initial_run_are_rejected(finished, copied, settings, tmp_path):
    for changes, keywords in (
        ({"d_model": 32}, "--d-model 32.* has 16"),
        ({"resume": str(finished)}, "remove --init-from"),
        ({"held_out_share": 0.2}, "--held-out-share 0.2"),
    ):
        with pytest.raises(UserError, match=keywords):
            config_from_flags(based(finished, settings, **changes))
    edit_json(copied / "config.json", positions="learned", held_out_share=0.1, reverse=True)
    with pytest.raises(UserError, match="--max-length 99"):
        config_from_flags(based(copied, settings, max_length=99))
    same = config_from_flags(based(copied, settings))
    other = config_from_flags(based(copied, settings, corpus="mini:50"))
    assert (same.held_out_share, same.reverse) == (0.1, True)
    named = config_from_flags(based(copied, settings, languages="pt,en"))
    assert (named.languages, named.reverse) == ("pt,en", False)
    assert (other.held_out_share, other.reverse) == (None, False)
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        run_loop(based(copied, settings, corpus="mini:50", reverse=True, name="new"))
    for folder, keyword in (copied, "no checkpoint"), (finished, "--resume"):
        changes = {"name": folder.name, "runs_dir": str(folder.parent)}
        with pytest.raises(UserError, match=f"{folder.name} exists: .*{keyword}"):
            config_from_flags(settings | changes)
    assert not (tmp_path / "new").exists()
