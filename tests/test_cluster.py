"""`python -m ablation --cluster`: two Dask workers execute runs of a worker that does not train."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import wait_until

from ablation.executor import Pool, execute
from ablation.experiments import ExperimentError

pytest.importorskip("distributed")
# Counts steps of 0.1 seconds, and saves their number when it is stopped.
WORKER = """
import json, os, signal, sys, threading, time
from pathlib import Path
job = json.loads(Path(sys.argv[1]).read_text())
run, kind = Path(job["run"]), "odd" if "ODD" in os.environ else "usual"
if "steps" not in job:
    Path(job["result"]).write_text(json.dumps({"machine": kind}))
    sys.exit()
if kind == "odd":
    sys.exit("error: other bits")
threading.Thread(target=lambda: (os.read(0, 1), os.kill(os.getpid(), 15)), daemon=True).start()
step = int(run.read_text()) if run.exists() else 0
with open(f"{run}.started", "a") as file:
    print(os.getpid(), os.getppid(), step, file=file)
signal.signal(signal.SIGTERM, lambda *_: (run.write_text(str(step)), sys.exit(143)))
while step < job["steps"]:
    time.sleep(0.1)
    step += 1
os.kill(os.getpid(), job.get("signal", 0))
Path(job["result"]).write_text(json.dumps({"steps": step}))
"""


@pytest.fixture
def cluster(tmp_path):
    """The process of a scheduler, its address, and a function that starts workers of one thread.

    A worker that is killed is started again.
    """
    from distributed import Client

    def start(*words, **env):
        with open(tmp_path / f"{words[0]}.log", "a") as log:
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            options |= {"cwd": tmp_path, "env": os.environ | env}
            command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
            processes.append(subprocess.Popen(command, **options))

    def start_workers(count, **env):
        start("worker", address, "--nthreads", "1", "--nworkers", str(count), **env)
        client.wait_for_workers(count, timeout=60)

    processes, file = [], str(tmp_path / "scheduler.json")
    start("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", file)
    client = Client(scheduler_file=file, set_as_default=False)
    address = client.scheduler.address
    yield SimpleNamespace(scheduler=processes[0], address=address, start_workers=start_workers)
    client.close()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def make_job(tmp_path):
    """Writes a job of the stubbed worker, and returns it."""
    source = tmp_path / "source/ablation"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "worker.py").write_text(WORKER)
    (tmp_path / "running").touch()

    def make(name, **values):
        job = {key: str(tmp_path / f"{name}.{key}") for key in ("run", "log", "result", "job")}
        job |= {"source": str(tmp_path / "source"), "running": str(tmp_path / "running")} | values
        Path(job["job"]).write_text(json.dumps(job))
        return job

    return make


def starts(job):
    """Return process, parent and first step of each start of a job."""
    path = Path(f"{job['run']}.started")
    lines = path.read_text().splitlines() if path.exists() else []
    return [[*map(int, line.split())] for line in lines]


@pytest.mark.slow
def test_runs_have_the_same_results_with_and_without_a_cluster(cluster, make_job):
    cluster.start_workers(2)
    assert Pool(cluster.address).size == 2  # by which --plan estimates the time
    for pool in (Pool(), Pool(cluster.address)):
        assert [result["machine"] for _, result in pool.run([make_job("probe")])] == ["usual"]
        jobs = [make_job(f"{name}{pool.client is None}", steps=3) for name in "abc"]
        answers = {job["job"]: answer for job, answer in pool.run(jobs)}
        assert answers.keys() == {job["job"] for job in jobs}
        assert [*answers.values()] == [{"steps": 3}] * 3


@pytest.mark.slow
def test_a_run_of_a_killed_worker_is_repeated_and_resumes(cluster, make_job):
    """Its process saves as soon as its parent is gone."""
    cluster.start_workers(2)
    jobs, killed = [make_job(name, steps=40) for name in "ab"], []
    pool = Pool(cluster.address)
    runs = pool.run([*jobs, make_job("quick", steps=1)])

    def kill():
        wait_until(lambda: starts(jobs[0]) and starts(jobs[1]))
        time.sleep(1)
        killed.append(starts(jobs[0])[0][1])
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill).start()
    answers = {job["job"]: answer for job, answer in runs}
    assert {x["steps"] for x in answers.values()} == {40, 1}
    (first, second), others = starts(jobs[0]), starts(jobs[1])
    assert first[2] == 0 < second[2] < 40 and second[1] != killed[0] and len(others) == 1


@pytest.mark.slow
def test_a_worker_that_computes_other_bits_ends_the_command(cluster, make_job):
    cluster.start_workers(1, ODD="1")
    with pytest.raises(ExperimentError, match="other bits"):
        list(Pool(cluster.address).run([make_job("a", steps=1)]))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "cluster"])
def test_stopped_runs_save_and_queued_ones_do_not_start(cluster, make_job, where, monkeypatch):
    if where == "cluster":
        cluster.start_workers(1)
    monkeypatch.setattr("ablation.executor.cores", lambda: [0])
    pool = Pool(cluster.address if where == "cluster" else None)
    jobs = [make_job("quick", steps=1), make_job("long", steps=600), make_job("queued", steps=1)]
    runs = pool.run(jobs)
    assert next(runs)[0] == jobs[0]
    wait_until(lambda: starts(jobs[1]))
    time.sleep(0.5)
    runs.close()
    assert int(Path(jobs[1]["run"]).read_text()) >= 3 and not starts(jobs[2])


@pytest.mark.slow
def test_a_lost_scheduler_is_an_error_in_one_sentence(cluster, make_job):
    with pytest.raises(ExperimentError, match="no Dask scheduler answers at localhost:1"):
        Pool("localhost:1")
    cluster.start_workers(1)
    runs = Pool(cluster.address).run([make_job("quick", steps=1), make_job("long", steps=200)])
    assert next(runs)[1] == {"steps": 1}
    os.killpg(cluster.scheduler.pid, signal.SIGKILL)
    with pytest.raises(ExperimentError, match="Dask has lost a run .*repeat the command"):
        next(runs)


@pytest.mark.parametrize(("named", "devices"), [(None, "-1"), ("0", "0")])
def test_a_run_imports_its_source_and_uses_a_gpu_only_if_one_is_named(
    named, devices, make_job, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    job = make_job("one")
    text = 'import os\nprint("devices", os.environ["CUDA_VISIBLE_DEVICES"])\n'
    (Path(job["source"]) / "ablation/worker.py").write_text(text)
    assert execute(job)["why"] == f"devices {devices}"  # its output


def test_runs_that_cannot_work_say_why(make_job):
    job = make_job("one", steps=1, signal=9)
    assert "memory" in execute(job)["why"]
    for code, why in (("raise KeyError(7)", "KeyError: 7"), ("print('error: no')", "no")):
        (Path(job["source"]) / "ablation/worker.py").write_text(f"print('one')\n{code}\n")
        assert execute(job)["why"].splitlines()[-1] == why
    assert execute(job)["why"] == "no"
    Path(job["running"]).unlink()
    assert execute(job | {"source": "/"})["why"] == "stopped"
