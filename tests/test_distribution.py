"""Several replicas make the step that one makes; a worker that dies takes nothing with it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from training import distribution
from training.distribution import own_address
from training.run import RunError, Stop

ROOT = Path(__file__).resolve().parents[1]
STEPS = 50
SMALL = ["--corpus", "mini:400", "--d-model", "32", "--num-layers", "1", "--epochs", "99"]


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """Begins a training in a process of its own, its environment changed as told."""
    folder = tmp_path_factory.mktemp("distribution")
    kept = ["--runs-dir", folder, "--cache-dir", folder / "cache"]

    def run(*flags, program=("train.py",), environment=()):
        command = [sys.executable, *program, *flags, *kept]
        return subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, env=os.environ | dict(environment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def alone(begin):
    """The run of one process, whose batches are in two parts, dropout and all."""
    process = begin(*SMALL, "--shards", "2", "--max-steps", STEPS, "--name", "alone")
    assert process.wait(120) == 0, process.stderr.read()
    return begin.folder / "alone"


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(x["step"], x.get("loss", x.get("validation_loss"))) for x in lines]


def weights(run):
    """All of the model but key biases, whose gradient is nothing but rounding."""
    path = tf.train.latest_checkpoint(run / "checkpoints")
    assert path.endswith(f"-{STEPS}")
    reader = tf.train.load_checkpoint(path)
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
    return {n: reader.get_tensor(n) for n in names if "/key/bias" not in n and "OBJECT" not in n}


def assert_equal(run, alone):
    assert len(losses(run)) == len(losses(alone)) > 10
    np.testing.assert_allclose(losses(run), losses(alone), rtol=0, atol=1e-6)
    own, other = weights(run), weights(alone)
    assert own.keys() == other.keys() and len(own) > 30
    for name in own:
        np.testing.assert_allclose(own[name], other[name], atol=1e-4, err_msg=name)


def test_two_replicas_on_one_machine_make_the_steps_of_one(begin, alone):
    two_processors = (
        "import runpy, sys, tensorflow as tf; cpu, = tf.config.list_physical_devices('CPU'); "
        "tf.config.set_logical_device_configuration("
        "cpu, [tf.config.LogicalDeviceConfiguration()] * 2); "
        "sys.argv[0] = 'train.py'; sys.path.insert(0, '.'); "
        "runpy.run_path('train.py', run_name='__main__')"
    )
    process = begin(*SMALL, "--shards", "1", "--strategy", "mirrored", "--max-steps", STEPS,
                    "--name", "mirrored", program=("-c", two_processors))  # fmt: skip
    assert process.wait(120) == 0, process.stderr.read()
    assert_equal(begin.folder / "mirrored", alone)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def two_workers(begin, *flags, others=()):
    """Two trainings of one run; others: flags that the second one has beside."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    task = lambda i: {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}  # noqa: E731
    return [
        begin(
            *flags,
            *others[: i * len(others)],
            "--strategy",
            "multi_worker",
            environment={"TF_CONFIG": json.dumps(task(i))},
        )
        for i in range(2)
    ]


def wait_for_an_epoch(run):
    metrics, until = run / "metrics.jsonl", time.monotonic() + 90
    while time.monotonic() < until:
        if metrics.exists() and b"validation" in metrics.read_bytes():
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} has not begun")


def test_a_signal_while_the_others_are_asked_is_not_forgotten():
    def all_gather(own):
        if not stop.own:
            os.kill(os.getpid(), signal.SIGTERM)
        return np.array([[own], [0]])

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        stop = Stop(all_gather)
        assert [stop.agreed(), stop.agreed(), stop.signal] == [False, True, signal.SIGTERM]
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("what", ["flags", "corpus", "code", "checkpoint"])
def test_what_is_not_alike_is_named(monkeypatch, what):
    parts = {"flags": "a", "corpus": "b", "code": "c", "checkpoint": "d"}
    said = []
    monkeypatch.setattr(
        distribution, "all_gather", lambda _, *own: said.append(own) or np.array([own])
    )
    for changed in ({}, {what: "other"}):
        distribution.assert_same_across_workers(None, **parts | changed)
    monkeypatch.setattr(distribution, "all_gather", lambda _, *own: np.array(said))
    with pytest.raises(RunError, match=f"do not have the same {what}: "):
        distribution.assert_same_across_workers(None, **parts)


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_and_one_or_two_go_on(begin):
    run = begin.folder / "told"
    both = two_workers(begin, *SMALL, "--shards", "1", "--name", run.name)
    wait_for_an_epoch(run)
    both[1].send_signal(signal.SIGTERM)  # not the chief, who saves
    for process in both[::-1]:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 143, err
        assert "Traceback" not in err and "/dev/null" not in out + err
    assert f"train.py --resume {run}" in out  # the chief's
    path = tf.train.latest_checkpoint(run / "checkpoints")
    step = tf.train.load_checkpoint(path).get_tensor("optimizer/step/.ATTRIBUTES/VARIABLE_VALUE")
    assert path.endswith(f"-{step}") and step >= losses(run)[-1][0]

    process = begin("--resume", run, "--strategy", "none", "--max-steps", step + 2)
    assert process.wait(120) == 0, process.stderr.read()  # one goes on where two have begun
    assert tf.train.latest_checkpoint(run / "checkpoints").endswith(f"-{step + 2}")
    for process in two_workers(begin, "--resume", run, "--max-steps", step + 4):
        assert process.wait(120) == 0, process.stderr.read()
    assert tf.train.latest_checkpoint(run / "checkpoints").endswith(f"-{step + 4}")


def test_workers_that_do_not_begin_alike_write_nothing(begin):
    for process in two_workers(begin, *SMALL, "--name", "unlike", others=["--corpus", "mini:401"]):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "do not have the same flags and corpus:" in err.splitlines()[-1], err
    assert not (begin.folder / "unlike").exists()


@pytest.mark.slow
def test_two_workers_make_the_steps_of_one_though_the_chief_is_killed(begin, alone):
    run = begin.folder / "workers"
    both = two_workers(begin, *SMALL, "--shards", "1", "--name", run.name)
    wait_for_an_epoch(run)
    chief, other = both
    if Path(f"/proc/{chief.pid}/limits").exists():
        limits = Path(f"/proc/{chief.pid}/limits").read_text()
        assert re.search(r"Max data size +\d+", limits), limits  # machine.limit_memory's
    chief.send_signal(signal.SIGKILL)
    _, err = other.communicate(timeout=90)
    said = chief.communicate()[1].splitlines()[-1]
    assert said.startswith("error: ended by a signal; where nothing above says why")
    assert other.returncode == 1
    assert err.splitlines()[-1].startswith("error: another worker is gone; start all of them again")
    done = losses(run)[-1][0]
    assert 0 < done < STEPS
    for process in two_workers(begin, "--resume", run, "--max-steps", STEPS):
        assert process.wait(120) == 0, process.stderr.read()
    assert_equal(run, alone)


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
     '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}'],
)  # fmt: skip
def test_without_a_cluster_it_is_said_what_is_missing(text):
    with pytest.raises(RunError, match="TF_CONFIG"):
        own_address(text)
    text = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    assert own_address(text) == "b:2"


def test_a_port_in_use_is_said(begin):
    program = "import config, distribution\ntry: distribution.strategy('multi_worker')\n" \
              "except distribution.RunError as error: config.fail(error)"  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"worker": [address, "127.0.0.1:9"]}
        task = {"type": "worker", "index": 0}
        environment = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        process = begin(program=("-c", program), environment=environment)
        assert f"error: this worker cannot listen on {address}:" in process.communicate()[1]
    assert process.returncode == 2
