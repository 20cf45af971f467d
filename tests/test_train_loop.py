"""The training loop: batches, counters, logs, checkpoints, stopping and resuming.

Nearly all of these tests replace the train step by one that computes nothing.
"""

import collections
import contextlib
import io
import itertools
import json
import os
import re
import resource
import runpy
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    TINY,
    assert_same_state,
    command_line,
    metrics_of,
    run_loop,
    state,
    steps_saved,
    training_in_process,
    write_corpus,
)
from tqdm import tqdm

import train
from config import Config
from data import pipeline
from data.batches import plan_batches
from evaluation.translator import Translator
from model import build
from training import description, distribution, machine, progress, run
from training.checkpoints import assert_fits, readable_checkpoints, rewrite_checkpoint_list
from training.command_line import config_from_flags
from training.logs import Logs
from training.records import load_config, read_json_lines
from training.run import Diverged, RunError
from utils import UserError, lock, prepare_streams, warn

EPOCHS = 3
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
    """The batches of each epoch."""
    config = Config(**corpus)
    pairs = pipeline.load(config).train
    limits = (config.batch_tokens, config.batch_sentences, config.seed)
    return [
        [pairs.batch(rows) for rows in plan_batches(pairs, *limits, epoch)]
        for epoch in range(EPOCHS)
    ]


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
    assert len(batches) == len(expected)
    for pair, expected_pair in zip(batches, expected, strict=True):
        for ids, expected_ids in zip(pair, expected_pair, strict=True):
            np.testing.assert_array_equal(ids, expected_ids)


def counter(folder, name, step=None):
    """Return a counter of a checkpoint, the last one by default."""
    return state(folder, step)[f"{name}/.ATTRIBUTES/VARIABLE_VALUE"]


def resumed(folder, **changes):
    """Return the settings that resume a run."""
    return {"resume": str(folder)} | changes


# ---- Batches and counters ------------------------------------------------------------------------


def test_a_run_within_its_warm_up_is_told_flags_that_suit(settings, capfd):
    """They cause no warning, and the steps are then five times those of the warm-up."""
    steps = len(run_loop(settings).batches)
    pattern = r"rises for 1,000 steps, and training has only (\d+): use (.*), and see"
    counted, flags = re.search(pattern, capfd.readouterr().err).groups()
    assert int(counted) == steps
    warmup, epochs = map(int, re.fullmatch(r"--warmup-steps (\d+) --epochs (\d+)", flags).groups())
    assert 0 <= epochs * steps / EPOCHS - 5 * warmup < steps
    config = Config(warmup_steps=warmup, epochs=epochs, total_steps=5 * warmup)
    run.check_warmup(config)
    run.check_warmup(replace(config, warmup_steps=1000, total_steps=2000))
    assert capfd.readouterr().err == ""
    run.check_warmup(replace(config, warmup_steps=1000, total_steps=1999))
    assert "rises" in capfd.readouterr().err
    run.check_warmup(replace(config, warmup_steps=1000, epochs=5, total_steps=1500))
    assert "use --warmup-steps 300, and see" in capfd.readouterr().err
    run.check_warmup(replace(config, warmup_steps=80, epochs=2, total_steps=100))
    assert "only 100: use --epochs 8, and see" in capfd.readouterr().err
    run_loop(settings | {"max_steps": 2, "name": "chosen"})
    assert "rises" not in capfd.readouterr().err


def test_every_epoch_trains_on_all_batches_of_its_own_plan(settings, expected, tmp_path):
    batches = run_loop(settings).batches
    assert_same_batches(batches, sum(expected, []))
    order = [[source.shape for source, _ in epoch] for epoch in expected]
    assert order[0] != order[1] != order[2]  # otherwise this would not show which plan was used
    assert counter(tmp_path / "run", "optimizer/step") == sum(map(len, expected))
    assert counter(tmp_path / "run", "epoch") == EPOCHS
    assert counter(tmp_path / "run", "position") == 0


@pytest.mark.parametrize("epoch", [0, 1])
def test_max_steps_stops_within_an_epoch_and_the_next_batch_follows(
    settings, expected, epoch, capsys
):
    run_dir, last = Path(settings["runs_dir"], "run"), len(expected[0]) * epoch + 5
    batches = run_loop(settings | {"max_steps": last}).batches
    assert steps_saved(run_dir)[-1] == last
    assert (counter(run_dir, "epoch"), counter(run_dir, "position")) == (epoch, 5)
    assert "validation_loss" in metrics_of(run_dir)[-1]  # a run that ends is validated
    assert f"train.py --resume {run_dir} --max-steps N" in capsys.readouterr().out
    batches += run_loop(resumed(run_dir, max_steps=None)).batches
    assert f"train.py --resume {run_dir} --epochs N" in capsys.readouterr().out
    assert_same_batches(batches, sum(expected, []))


def test_an_epoch_begins_again_if_it_has_fewer_batches_than_are_done(settings, expected, tmp_path):
    last, run_dir = len(expected[0]) - 1, tmp_path / "run"
    run_loop(settings | {"max_steps": last})
    larger = {"batch_tokens": 4 * settings["batch_tokens"], "accept_changes": True}
    batches = run_loop(resumed(run_dir, max_steps=None, epochs=1, **larger)).batches
    tokens = [sum((source > 0).sum() for source, _ in each) for each in (batches, expected[0])]
    assert len(batches) < last and tokens[0] == tokens[1]
    assert "validation_loss" in metrics_of(run_dir)[-1] and counter(run_dir, "epoch") == 1


def test_one_epoch_and_two_more_are_three(settings, expected, finished, tmp_path):
    batches = run_loop(settings | {"epochs": 1}).batches
    batches += run_loop(resumed(tmp_path / "run", epochs=EPOCHS)).batches
    assert_same_batches(batches, sum(expected, []))
    assert metrics_of(tmp_path / "run") == metrics_of(finished)


def test_resuming_a_finished_run_changes_nothing(copied, finished):
    assert run_loop(resumed(copied)).batches == []
    assert run_loop(resumed(copied, max_steps=9)).batches == []
    assert metrics_of(copied) == metrics_of(finished)
    assert steps_saved(copied) == steps_saved(finished)


def test_the_best_checkpoint_stays_the_best_after_resuming(settings, expected, tmp_path):
    best, epoch_steps = tmp_path / "run" / "checkpoints" / "best", len(expected[0])
    run_loop(settings | {"epochs": 1}, validation_losses=[2.0])
    assert [path.stem for path in best.glob("*.index")] == [f"ckpt-{epoch_steps}"]
    run_loop(resumed(tmp_path / "run", epochs=2), validation_losses=[3.0])
    assert [path.stem for path in best.glob("*.index")] == [f"ckpt-{epoch_steps}"]
    assert counter(tmp_path / "run", "best_loss") == 2.0
    run_loop(resumed(tmp_path / "run", epochs=3), validation_losses=[1.5])
    assert [path.stem for path in best.glob("*.index")] == [f"ckpt-{3 * epoch_steps}"]


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


def test_speed_counts_real_tokens_without_the_step_that_is_traced(
    settings, expected, monkeypatch, tmp_path
):
    """The first step of a process."""
    run_loop(settings | {"max_steps": 1})
    now, bars = itertools.count(), []
    clock = SimpleNamespace(monotonic=lambda: next(now), strftime=time.strftime)
    monkeypatch.setattr(progress, "time", clock)

    class Bar(tqdm):
        def __init__(self, **flags):
            super().__init__(**flags)
            bars.append(self)

    monkeypatch.setattr(progress, "tqdm", Bar)
    monkeypatch.setattr(run, "LOG_EVERY", 3)

    def trace(step, training):
        if step == 2:
            collections.deque(itertools.islice(now, 10_000), maxlen=0)  # 10,000 seconds pass

    run_loop(resumed(tmp_path / "run", max_steps=3), trace)
    source, target = expected[0][2]
    tokens = np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
    (line,) = (
        x
        for x in read_json_lines(tmp_path / "run" / "metrics.jsonl")
        if x["step"] == 3 and "loss" in x
    )
    ticks = tokens / line["tokens_per_second"]  # between two readings of the clock
    assert 1 <= ticks < 9 and ticks == pytest.approx(round(ticks), rel=1e-6)
    assert bars[0].initial == 2 and bars[0].format_dict["elapsed"] < 0  # seconds of a real clock


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


def test_dropout_and_word_dropout_are_off_in_validation(settings, monkeypatch):
    """The train step changes nothing, so that a validation depends on the initial weights only."""
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **options: texts)
    values = []
    for rate in (0.0, 0.9):
        name = f"rate{rate}"
        changes = TINY | {"model": "transformer", "recurrent_attention": "additive", "name": name}
        changes |= {"dropout_rate": rate, "word_dropout": rate, "max_steps": 1}
        run_loop(settings | changes, validation_losses=None)
        values.append(metrics_of(Path(settings["runs_dir"], name))[-1])
    assert values[0] == values[1] and values[0]["validation_loss"] > 1


def test_validation_is_after_every_epoch_and_after_the_given_number_of_steps(settings, expected):
    folder, ends = Path(settings["runs_dir"], "run"), np.cumsum([len(epoch) for epoch in expected])
    every = len(expected[0]) - 2
    run_loop(settings | {"validate_every": every})
    validated = [line["step"] for line in metrics_of(folder) if "validation_loss" in line]
    assert validated == sorted({*ends, *range(every, ends[-1] + 1, every)})


# ---- Stopping and resuming -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_next_batch_follows(
    settings, expected, finished, tmp_path, capsys, number
):
    def stop(step, training):
        if step == 55:
            os.kill(os.getpid(), number)

    first = run_loop(settings, stop)
    assert first.status == 128 + number
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().out
    assert steps_saved(tmp_path / "run")[-1] == 55
    second = run_loop(resumed(tmp_path / "run"))
    assert second.status == 0
    assert_same_batches(first.batches + second.batches, sum(expected, []))
    assert metrics_of(tmp_path / "run") == metrics_of(finished)


def test_a_signal_in_the_last_step_does_not_make_it_unfinished(settings, expected):
    last = sum(map(len, expected))

    def stop(step, training):
        if step == last:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run_loop(settings, stop).status == 0
    settings |= {"name": "limited", "max_steps": last - 1}
    last -= 1
    assert run_loop(settings, stop).status == 0


def test_a_second_signal_is_not_caught():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        stop = machine.StopSignal()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, handlers[0])
        signal.signal(signal.SIGTERM, handlers[1])


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


def test_only_the_chief_writes(settings, monkeypatch, tmp_path, expected):
    monkeypatch.setattr(distribution, "is_chief", lambda strategy: False)
    batches = run_loop(settings | {"epochs": 1}).batches
    assert_same_batches(batches, expected[0])
    assert not (tmp_path / "run").exists()


def test_a_run_directory_has_one_process_at_a_time(copied):
    before = metrics_of(copied)
    with lock(copied / ".lock"), pytest.raises(RunError, match="another process"):
        run_loop(resumed(copied, epochs=9))
    assert metrics_of(copied) == before


def test_an_existing_directory_is_not_written_over(copied, settings):
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    with pytest.raises(UserError, match="--resume"):
        run_loop(settings)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


# ---- Standard output and error -------------------------------------------------------------------


def print_into_closed_pipes(monkeypatch, buffering):
    """Make standard output and error pipes that nobody reads any more, as of a tee that ended."""
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, name, open(writer, "w", buffering))
    prepare_streams(best_effort=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python 3.13
@pytest.mark.parametrize(
    "output",
    [
        lambda: print("a line", flush=True),
        lambda: print("a line", file=sys.stderr),
        lambda: tqdm.write("a line"),
        lambda: tqdm(range(3), mininterval=0).update(),
        lambda: warn(f"a warning {time.monotonic_ns()}"),  # the same one is printed once
        lambda: machine.StopSignal().record(signal.SIGINT, None),
    ],
    ids=["print", "on stderr", "above a bar", "a bar", "a warning", "at a signal"],
)
@pytest.mark.parametrize("closed", [False, True], ids=["unread", "closed"])
def test_output_that_nobody_reads_is_dropped(monkeypatch, output, closed):
    print_into_closed_pipes(monkeypatch, buffering=1)  # of a line
    if closed:
        sys.stdout.close()
        sys.stderr.close()
    with training_in_process():  # which restores the handlers of signals
        output()
        output()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python 3.13
def test_a_training_whose_output_nobody_reads_is_saved_at_a_signal(settings, monkeypatch, tmp_path):
    def stop(step, training):
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    print_into_closed_pipes(monkeypatch, buffering=-1)  # the default
    assert run_loop(settings, stop).status == 128 + signal.SIGINT
    assert steps_saved(tmp_path / "run")[-1] == 5


def test_streams_may_be_missing_or_no_files(monkeypatch):
    """Those of a notebook have neither `buffer` nor `reconfigure`."""
    for best_effort in (False, True):
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(sys, "stderr", None)
        notebook = sys.stdout
        prepare_streams(best_effort)
        print("é", flush=True)
        print("é", file=sys.stderr, flush=True)
        assert notebook.getvalue() == "é\n"


@pytest.mark.parametrize("stdin", [None, io.StringIO("not read")], ids=["missing", "no file"])
def test_a_text_is_translated_whatever_the_standard_streams_are(finished, run_program, stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = run_program("translate.py", finished, "Olá", "--max-tokens=3", stdin=stdin)
    assert (result.status, out.getvalue().count("\n")) == (0, 1)
    refused = run_program("translate.py", finished, stdin=stdin)
    assert refused.status == 2 and "--file" in refused.err and refused.err.count("\n") == 1


def test_printed_commands_can_be_pasted_whatever_the_path(settings, tmp_path, capsys):
    run_dir = str(tmp_path / "my runs" / "run")
    run_loop(settings | {"runs_dir": str(tmp_path / "my runs"), "max_steps": 1})
    lines = capsys.readouterr().out.splitlines()
    score, resume = (shlex.split(line) for line in lines if line.startswith("    python "))
    assert score[1:] == ["evaluate.py", run_dir]
    assert resume[1:4] == ["train.py", "--resume", run_dir]


# ---- Checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_are_of_the_start_and_of_each_epoch(finished, expected):
    ends = np.cumsum([len(epoch) for epoch in expected])
    assert steps_saved(finished) == [0, *ends]


def test_the_oldest_checkpoints_are_deleted(settings, tmp_path, expected):
    run_loop(settings | {"keep_checkpoints": 2})
    ends = np.cumsum([len(epoch) for epoch in expected])
    assert steps_saved(tmp_path / "run") == [*ends[-2:]]
    best = tmp_path / "run" / "checkpoints" / "best"
    assert [path.stem for path in best.glob("*.index")] == [f"ckpt-{ends[0]}"]


def test_a_new_checkpoint_is_kept_next_to_a_damaged_one_of_a_later_step(copied, expected):
    first, second, last = map(int, np.cumsum([len(epoch) for epoch in expected]))
    (copied / "checkpoints" / f"ckpt-{last}.index").write_bytes(b"")
    run_loop(resumed(copied, max_steps=second + 1, keep_checkpoints=2))
    assert steps_saved(copied) == [first, second, second + 1]


def test_checkpoints_within_an_epoch_hold_position_and_metrics(settings, monkeypatch, tmp_path):
    """The one after the last batch holds the validation, too, however often it is saved."""
    monkeypatch.setattr(run, "SAVE_EVERY", 0)
    changes = {"epochs": 1, "batch_tokens": 2000, "keep_checkpoints": 99}
    steps = len(run_loop(settings | changes).batches)
    folder = tmp_path / "run"
    assert steps_saved(folder) == [*range(steps + 1)] and 2 < steps < 9
    for step in range(1, steps):
        assert (counter(folder, "epoch", step), counter(folder, "position", step)) == (0, step)
    assert (counter(folder, "epoch"), counter(folder, "position")) == (1, 0)
    saved = tf.train.load_checkpoint(str(folder / "checkpoints"))
    size = saved.get_tensor("metrics_size/.ATTRIBUTES/VARIABLE_VALUE")
    assert size == (folder / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize(
    ("number", "save_every"), [(3, 180), (45, 180), (3, 0)], ids=["at end", "at log", "at save"]
)
def test_the_first_step_that_is_not_finite_is_reported_and_not_saved(
    settings, monkeypatch, tmp_path, number, save_every
):
    def diverge(step, training):
        training.optimizer.record_nonfinite(tf.constant(np.nan if step >= number else 1.0))

    monkeypatch.setattr(run, "SAVE_EVERY", save_every)
    with pytest.raises(Diverged, match=rf"step {number}\b.*learning-rate"):
        run_loop(settings, diverge)
    saved = steps_saved(tmp_path / "run")
    assert saved[0] == 0 and saved[-1] < number
    values = [x for line in metrics_of(tmp_path / "run") for x in line.values()]
    assert np.isfinite(values).all()


def test_a_weight_that_is_not_finite_is_not_saved(settings, tmp_path):
    def diverge(step, training):
        if step == 30:
            training.model.source_embedding.table[3, 4].assign(np.inf)

    with pytest.raises(Diverged, match="weight"):
        run_loop(settings, diverge)
    assert steps_saved(tmp_path / "run") == [0]


def test_a_validation_loss_that_is_not_finite_is_not_saved(settings, tmp_path):
    with pytest.raises(Diverged, match="validation"):
        run_loop(settings, validation_losses=[float("nan")])
    assert steps_saved(tmp_path / "run") == [0]
    assert not list((tmp_path / "run" / "checkpoints" / "best").glob("ckpt*"))


# ---- Faults --------------------------------------------------------------------------------------


def flip(path):
    """Alter one byte."""
    content = bytearray(path.read_bytes())
    content[-1000] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "suffix"),
    [(flip, "data-00000-of-00001"), (truncate, "data-00000-of-00001"), (truncate, "index"),
     (empty, "index")],
)  # fmt: skip
def test_a_damaged_checkpoint_is_reported_and_an_older_one_is_used(copied, damage, suffix, capsys):
    steps = steps_saved(copied)
    damage(copied / "checkpoints" / f"ckpt-{steps[-1]}.{suffix}")
    paths = readable_checkpoints(copied / "checkpoints", 9)
    assert [Path(path).name for path in paths] == [f"ckpt-{step}" for step in steps[-2::-1]]
    assert f"ckpt-{steps[-1]} is damaged" in capsys.readouterr().err
    for step in steps[:-1]:
        truncate(copied / "checkpoints" / f"ckpt-{step}.index")
    with pytest.raises(UserError, match="damaged"):
        readable_checkpoints(copied / "checkpoints")


def test_a_checkpoint_that_a_running_training_replaces_is_not_reported(copied, capsys, monkeypatch):
    def replace(path):
        for file in Path(path).parent.glob("ckpt-1.*"):
            file.rename(file.with_name(file.name.replace("ckpt-1", "ckpt-2")))
        return load(path)

    folder, last = copied / "checkpoints", steps_saved(copied)[-1]
    for file in folder.glob("ckpt-*"):
        number, _, ending = file.name.partition(".")
        if number == f"ckpt-{last}":
            file.rename(folder / f"ckpt-1.{ending}")
        else:
            file.unlink()
    load = tf.train.load_checkpoint
    monkeypatch.setattr(tf.train, "load_checkpoint", replace)
    (path,) = readable_checkpoints(folder)
    assert path.endswith("ckpt-2") and capsys.readouterr().err == ""


def test_a_run_resumes_from_an_older_checkpoint(copied, finished, expected, capsys):
    """The last checkpoint is damaged, and so is TensorFlow's list of them."""
    last = steps_saved(copied)[-1]
    flip(copied / "checkpoints" / f"ckpt-{last}.data-00000-of-00001")
    truncate(copied / "checkpoints" / "checkpoint")
    assert_same_batches(run_loop(resumed(copied), change_weights).batches, expected[-1])
    assert f"ckpt-{last} is damaged" in capsys.readouterr().err
    assert metrics_of(copied) == metrics_of(finished)
    assert_same_state(state(copied), state(finished))


def test_only_checkpoints_of_the_run_are_deleted(tmp_path):
    """TensorFlow's manager deletes the oldest that its list names, wherever that is."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    model = tf.Module()
    model.weight = tf.Variable(1.0)
    precious = tf.train.Checkpoint(model=model).write(str(mine / "precious"))

    def save(*steps):
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), other, max_to_keep=2)
        for step in steps:
            manager.save(checkpoint_number=step)

    save(9, 10)
    names = (other / "checkpoint").read_text()
    (other / "checkpoint").write_text(f'all_model_checkpoint_paths: "{precious}"\n' + names)
    rewrite_checkpoint_list(other)
    save(11)
    assert (mine / "precious.index").exists()
    assert {path.stem for path in other.glob("*.index")} == {"ckpt-10", "ckpt-11"}
    rewrite_checkpoint_list(other)
    assert tf.train.latest_checkpoint(other).endswith("ckpt-11")


def test_a_full_disk_leaves_older_checkpoints_intact(copied, finished):
    """No file may grow to the size of a checkpoint."""
    for path in copied.glob(f"checkpoints/ckpt-{steps_saved(copied)[-1]}*"):
        path.unlink()  # to be written again
    before = {path: path.read_bytes() for path in copied.glob("checkpoints/ckpt-*")}
    size = max(map(len, before.values())) - 1000
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(RunError, match=r"cannot save step \d+ .*free some space"):
            run_loop(resumed(copied), change_weights)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in copied.glob("checkpoints/ckpt-*")} == before
    run_loop(resumed(copied), change_weights)
    assert_same_state(state(copied), state(finished))


@pytest.mark.parametrize("name", ["tokenizer.model", "corpus.json", "config.json"])
def test_a_damaged_run_is_not_resumed(copied, name):
    (copied / name).write_bytes(b"garbage")
    with pytest.raises(UserError, match=name):
        run_loop(resumed(copied, epochs=9))


def test_a_renamed_run_resumes_and_can_be_loaded(copied):
    renamed = copied.rename(copied.with_name("run (copy)"))
    run_loop(resumed(renamed))
    assert load_config(renamed).name == "run"


def test_metrics_are_in_the_files_before_the_run_ends(tmp_path):
    logs = Logs(tmp_path)
    logs.write("train", 1, {"loss": 1.0})
    (events,) = tmp_path.glob("train/events.*")
    assert b"metrics/loss" in events.read_bytes()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'
    logs.close()


def test_metrics_that_do_not_fit_on_the_disk_are_reported_with_the_remedy(tmp_path):
    logs = Logs(tmp_path)
    logs.file = open("/dev/full", "ab")
    with pytest.raises(RunError, match="free some space"):
        try:
            logs.write("train", 1, {"loss": 1.0})
        finally:
            logs.close()


def test_another_corpus_is_not_resumed(copied):
    path = copied / "corpus.json"
    path.write_text(path.read_text("utf-8").replace('"en"', '"de"'), "utf-8")
    with pytest.raises(RunError, match="corpus"):
        run_loop(resumed(copied, epochs=9))


def change_code(folder):
    """Change the code that a run was started with."""
    with open(folder / "source" / "model" / "loss.py", "a") as file:
        file.write("ANOTHER = 1\n")


def test_changed_code_is_not_resumed_unless_accepted(copied):
    with open(copied / "source" / "model" / "masks.py", "a") as file:
        file.write("# a comment\n")
    run_loop(resumed(copied))
    change_code(copied)
    with pytest.raises(RunError, match=r"model/loss\.py .*--accept-changes"):
        run_loop(resumed(copied))
    run_loop(resumed(copied, accept_changes=True))
    assert "ANOTHER" not in (copied / "source" / "model" / "loss.py").read_text()
    (old,) = copied.glob("source.until-*")
    assert "ANOTHER" in (old / "model" / "loss.py").read_text()
    assert json.loads((copied / "config.json").read_text())["accept_changes"] is False


def test_other_versions_of_packages_are_named(copied, capsys):
    path = copied / "provenance.json"
    record = json.loads(path.read_text())
    record["versions"] |= {"tensorflow": "2.1.0", "numpy": metadata.version("numpy")}
    path.write_text(json.dumps(record))
    run_loop(resumed(copied))
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "began with" in x)
    assert "tensorflow 2.1.0" in line and metadata.version("tensorflow") in line


def test_a_missing_copy_of_the_source_is_named_and_written_again_if_accepted(copied):
    shutil.rmtree(copied / "source")
    with pytest.raises(RunError, match="source is missing.*--accept-changes"):
        run_loop(resumed(copied))
    run_loop(resumed(copied, accept_changes=True))
    assert (copied / "source" / "model" / "loss.py").exists()


def test_the_runs_own_code_is_not_replaced(copied, monkeypatch):
    """New settings with `python RUN/source/train.py`."""
    monkeypatch.setattr(description, "ROOT", (copied / "source").resolve())
    run_loop(resumed(copied, dropout_rate=0.3, accept_changes=True))
    assert (copied / "source" / "model" / "loss.py").exists()
    (old,) = copied.glob("*.until-*")
    assert old.name.startswith("config.json")


def test_changed_settings_are_written_once_the_checkpoint_fits(copied):
    """A checkpoint that does not fit the new settings leaves the directory as it was."""
    before = {path: path.read_bytes() for path in copied.rglob("*.[pj]*") if path.is_file()}
    with pytest.raises(UserError, match="--accept-changes"):
        run_loop(resumed(copied, num_layers=2))
    with pytest.raises(RunError, match="does not fit the model"):
        run_loop(resumed(copied, num_layers=2, accept_changes=True))
    assert before == {path: path.read_bytes() for path in before}
    run_loop(resumed(copied, dropout_rate=0.3, accept_changes=True))
    assert json.loads((copied / "config.json").read_text())["dropout_rate"] == 0.3
    for name in ("config.json", "provenance.json"):
        (old,) = copied.glob(f"{name}.until-*")
        assert old.read_bytes() == before[copied / name]
    run_loop(resumed(copied, keep_checkpoints=9))  # which needs no copies of the old ones
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


def test_a_full_disk_is_distinguished_from_full_memory():
    for reason in ("No space left on device", "Disk quota exceeded"):
        error = tf.errors.ResourceExhaustedError(None, None, f"runs/x/events; {reason}")
        assert "free some disk space" in machine.out_of_memory_message(error, "use less")
    error = tf.errors.ResourceExhaustedError(None, None, "OOM: tensor with shape[3,4] and type")
    message = machine.out_of_memory_message(error, "use less")
    assert "[3,4]" in message and "use less" in message


# ---- Starting from another run -------------------------------------------------------------------


def test_a_run_starts_from_the_weights_and_the_tokenizer_of_another(
    finished, settings, tmp_path, capsys
):
    flags = {"init_from": str(finished), "corpus": "mini:50", "reverse": True}
    flags |= {
        "runs_dir": str(tmp_path),
        "cache_dir": settings["cache_dir"],
        "name": "new",
        "epochs": 1,
    }
    run_loop(flags)
    parent, first = state(finished), state(tmp_path / "new", step=0)
    weights = [name for name in parent if name.startswith("model/")]
    assert weights and all(np.array_equal(parent[name], first[name]) for name in weights)
    assert counter(tmp_path / "new", "optimizer/step", step=0) == 0
    name = "tokenizer.model"
    assert (tmp_path / "new" / name).read_bytes() == (finished / name).read_bytes()
    total_steps = load_config(tmp_path / "new").total_steps
    assert "starting from the weights of" in capsys.readouterr().out
    run_loop(resumed(tmp_path / "new", epochs=2, cache_dir=settings["cache_dir"]))
    assert "starting from the weights of" not in capsys.readouterr().out
    assert counter(tmp_path / "new", "epoch") == 2
    assert load_config(tmp_path / "new").total_steps == total_steps  # the schedule stays


def test_a_corpus_in_the_other_direction_is_not_trained_on(finished, settings, tmp_path):
    """The initial run translates en → pt, as the files of its corpus are named; mini is pt → en."""
    flags = {"init_from": str(finished), "corpus": "mini:50", "runs_dir": str(tmp_path)}
    with pytest.raises(UserError, match="give --reverse"):
        run_loop(flags | {"cache_dir": settings["cache_dir"]})
    with pytest.raises(UserError, match="remove one"):
        run_loop(flags | {"resume": str(finished)})


def test_an_initial_run_that_cannot_be_read_leaves_no_directory(copied, settings, tmp_path):
    shutil.rmtree(copied / "checkpoints")
    flags = {"init_from": str(copied), "runs_dir": str(tmp_path / "runs")}
    flags |= {"corpus": "mini:50", "reverse": True, "cache_dir": settings["cache_dir"]}
    with pytest.raises(UserError, match="no checkpoint"):
        run_loop(flags)
    assert not [*(tmp_path / "runs").iterdir()]


def test_flags_that_contradict_the_initial_run_are_named(finished, settings):
    with pytest.raises(UserError, match="--d-model 32.* has 16"):
        run_loop({"init_from": str(finished), "d_model": 32})


def test_learned_positions_keep_their_length(copied):
    path = copied / "config.json"
    text = path.read_text("utf-8").replace('"positions": "sinusoidal"', '"positions": "learned"')
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match="--max-length 99: .* leave the flag out"):
        config_from_flags({"init_from": str(copied), "max_length": 99})


def test_a_run_from_the_weights_of_another_divides_its_corpus_in_the_same_way(settings, tmp_path):
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("".join(f"a {i}\tb {i}\n" for i in range(400)), "utf-8")
    settings |= {"corpus": str(corpus), "held_out_share": 0.1, "max_steps": 1, "vocab_size": 300}
    run_loop(settings)
    flags = {"init_from": str(tmp_path / "run"), "runs_dir": str(tmp_path)}
    flags |= {"cache_dir": settings["cache_dir"]}
    for again in {}, {"corpus": os.path.relpath(corpus)}:
        assert config_from_flags(flags | again).held_out_share == 0.1
    assert config_from_flags(flags | {"corpus": "mini:50"}).held_out_share is None
    with pytest.raises(UserError, match="--held-out-share 0.2: .* divided the same .* with 0.1"):
        config_from_flags(flags | {"held_out_share": 0.2})


@pytest.mark.parametrize("folder", ["docs", "data/mini"])
def test_runs_are_not_put_where_each_run_would_copy_them(settings, folder):
    runs = description.ROOT / folder / "runs"
    with pytest.raises(UserError, match="each run copies this folder"):
        run_loop(settings | {"runs_dir": str(runs)})
    assert not runs.exists()


def test_resuming_creates_no_directory_of_runs(copied, settings, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    run_loop(resumed(copied, cache_dir=settings["cache_dir"]))
    assert not [*(tmp_path / "empty").iterdir()]


def test_a_checkpoint_that_does_not_fit_names_a_variable_and_its_shapes(copied):
    path = copied / "config.json"
    path.write_text(path.read_text("utf-8").replace('"d_model": 16', '"d_model": 18'), "utf-8")
    with pytest.raises(RunError, match=r"table has shape \(400, 16\) there and \(400, 18\) here"):
        run_loop(resumed(copied, epochs=4))


def test_a_checkpoint_of_other_variables_does_not_fit(tmp_path):
    one, two = (build(Config(**SMALL | {"num_layers": count}), 9, 9) for count in (1, 2))
    paths = [
        tf.train.Checkpoint(model=x).write(str(tmp_path / str(i))) for i, x in enumerate((one, two))
    ]
    assert_fits(paths[0], one)
    with pytest.raises(RunError, match=r"model: it lacks \S+/1/\S+ \(\d+ variables differ\)"):
        assert_fits(paths[0], two)
    with pytest.raises(RunError, match=r"model: the model lacks \S+/1/\S+ \("):
        assert_fits(paths[1], one)


def test_a_finished_run_says_that_nothing_was_left_to_do(copied, capsys):
    run_loop(resumed(copied))
    assert "nothing was left to do" in capsys.readouterr().out
