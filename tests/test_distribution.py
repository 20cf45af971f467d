"""Several replicas make the steps of one; workers stop together and resume."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from conftest import wait_until
from helpers import TINY, command_line, metrics_of, state, steps_saved, train_here, write_corpus

from same_code import ROOT
from training import distribution
from training.records import RunError

STEPS = 40  # more than an epoch
TIMEOUT = 240  # seconds that a process may take


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distribution")


@pytest.fixture(scope="module")
def settings(folder):
    """The settings of a run: dropout, and four parts per batch."""
    directories = {"runs_dir": str(folder / "runs"), "cache_dir": str(folder / "cache")}
    corpus = {"corpus": str(write_corpus(folder / "talks"))}
    return TINY | corpus | directories | {"epochs": 99, "shards": 4, "max_steps": STEPS}


@pytest.fixture(scope="module")
def single(settings):
    """The run of one process with one replica."""
    return train_here(**settings, name="single")


def start(settings, program=("train.py",), **environment):
    """Start training in a process."""
    command, pipe = [sys.executable, *program, *command_line(settings)], subprocess.PIPE
    options = {"cwd": ROOT, "env": os.environ | environment, "encoding": "utf-8"}
    return subprocess.Popen(command, **options, stdout=pipe, stderr=pipe)


def start_workers(settings, other=()):
    """Start two workers. other: settings that differ in the second one."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    second = start_worker(1, addresses, settings | dict(other))
    return [start_worker(0, addresses, settings), second]


def start_worker(index, addresses, settings):
    """Start one worker of several."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return start(settings | {"strategy": "multi_worker"}, TF_CONFIG=json.dumps(task))


def finish(*processes, status=0):
    """Wait for processes and check their exit status. Returns (stdout, stderr) of each."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == status, err
        assert "Traceback" not in err
    return outputs


def losses(run):
    names = ("loss", "objective", "grad_norm", "validation_loss")
    return [[line.get(name, 0) for name in ("step", *names)] for line in metrics_of(run)]


def weights(run, step=STEPS):
    """Return the model without the biases of keys, whose gradient is only rounding."""
    values = state(run, step).items()
    return {name: x for name, x in values if name.startswith("model/") and "/key/bias" not in name}


def assert_same_steps(run, single):
    assert len(losses(run)) == len(losses(single)) == 3
    np.testing.assert_allclose(losses(run), losses(single), rtol=0, atol=1e-5)
    own, expected = weights(run), weights(single)
    assert own.keys() == expected.keys() and len(own) > 20
    for name in own:
        np.testing.assert_allclose(own[name], expected[name], atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_two_workers_make_the_steps_of_one(settings, single):
    run = single.with_name("workers")
    outputs = finish(*start_workers(settings | {"shards": 2, "name": run.name}))
    assert_same_steps(run, single)
    assert f"evaluate.py {run}" in outputs[0][0] and outputs[1][0] == ""  # only the chief prints


TWO_DEVICES = """
import runpy, sys, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, devices)
sys.argv[0] = "train.py"
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.slow
def test_two_replicas_on_one_machine_make_the_steps_of_one(settings, single):
    changes = {"shards": 2, "strategy": "mirrored", "name": "mirrored"}
    finish(start(settings | changes, ("-c", TWO_DEVICES)))
    assert_same_steps(single.with_name("mirrored"), single)


# ---- Workers that differ -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flags", "corpus", "code", "checkpoint"])
def test_a_difference_between_workers_is_named(monkeypatch, name):
    texts = {"flags": "a", "corpus": "b", "code": "c", "checkpoint": "d"}
    rows = []

    def record(strategy, *numbers):
        rows.append(numbers)
        return np.array([numbers])

    monkeypatch.setattr(distribution, "all_gather", record)
    for changed in ({}, {name: "other"}):
        distribution.assert_same_across_workers(None, **texts | changed)
    monkeypatch.setattr(distribution, "all_gather", lambda strategy, *numbers: np.array(rows))
    with pytest.raises(RunError, match=f"different {name}:"):
        distribution.assert_same_across_workers(None, **texts)


@pytest.mark.slow
def test_workers_with_different_flags_and_corpora_write_nothing(settings, folder):
    other = write_corpus(folder / "other")
    (other / "train.en").write_text((other / "train.en").read_text("utf-8").upper(), "utf-8")
    changes = {"name": "different"}
    for _, err in finish(*start_workers(settings | changes, {"corpus": str(other)}), status=2):
        assert "different flags and corpus" in err.splitlines()[-1]
    assert not (folder / "runs" / "different").exists()


# ---- Workers that stop ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_and_one_or_two_resume(settings, single):
    run = single.with_name("stopped")
    changes = {"shards": 2, "name": run.name, "max_steps": 9999}
    processes = start_workers(settings | changes)
    wait_until(lambda: max(steps_saved(run), default=0) > 0, TIMEOUT)
    processes[1].send_signal(signal.SIGTERM)  # not the chief, which saves
    outputs = finish(*processes, status=128 + signal.SIGTERM)
    assert f"train.py --resume {run}" in outputs[0][0]
    step = steps_saved(run)[-1]
    assert step >= losses(run)[-1][0]

    resumed = {"resume": str(run), "cache_dir": settings["cache_dir"]}
    finish(start(resumed | {"strategy": "none", "max_steps": step + 2}))
    assert steps_saved(run)[-1] == step + 2
    finish(*start_workers(resumed | {"max_steps": step + 4}))
    assert steps_saved(run)[-1] == step + 4


@pytest.mark.slow
def test_the_steps_are_the_same_though_the_chief_is_killed(settings, single):
    run = single.with_name("killed")
    chief, other = start_workers(settings | {"shards": 2, "name": run.name, "max_steps": 9999})
    wait_until(lambda: max(steps_saved(run), default=0) > 0, TIMEOUT)
    chief.kill()
    ((_, err),) = finish(other, status=1)
    assert err.splitlines()[-1].startswith("error: lost a worker")
    finish(chief, status=-signal.SIGKILL)
    assert 0 < steps_saved(run)[-1] < STEPS
    resumed = {"resume": str(run), "cache_dir": settings["cache_dir"], "max_steps": STEPS}
    finish(*start_workers(resumed))
    assert_same_steps(run, single)


# ---- TF_CONFIG -----------------------------------------------------------------------------------


TASK = '"task": {"type": "worker", "index": 0}'
CHIEF = '{"cluster": {"chief": ["a:1"], "worker": ["a:2"]}, ' + TASK + "}"  # it has two


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster": {"worker": ["a:1"]}}', CHIEF])
def test_an_invalid_tf_config_is_rejected(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(RunError, match="each worker needs TF_CONFIG"):
        distribution.make_strategy("multi_worker")


@pytest.mark.slow
def test_an_address_in_use_is_named(settings):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        worker = start_worker(0, [address, "127.0.0.1:9"], settings | {"name": "in-use"})
        ((_, err),) = finish(worker, status=2)
    assert f"cannot listen on {address}" in err.splitlines()[-1]
