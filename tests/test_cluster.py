"""Runs on a Dask cluster: a real scheduler and real workers, and runs that do not train."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from experiments import runs
from experiments.executor import LocalExecutor
from experiments.patches import BASELINE, ExperimentError
from experiments.recipes import Recipe
from training.machine import cores

pytest.importorskip("distributed", reason='pip install -e ".[cluster]"')
from experiments.cluster import ClusterExecutor  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
# Counts to job["steps"], one step in 0.1 s, from the last checkpoint; saves when it is stopped.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
job = json.loads(Path(sys.argv[1]).read_text())
flags = dict(flag.removeprefix("--").split("=") for flag in job["flags"])
run = Path(job["run"])
run.mkdir(exist_ok=True)
def save(*_):
    (run / "checkpoint").write_text(str(step))
    (run / "saved").touch()
    sys.exit(143)
step, last = 0, int(flags.get("steps", 1))
step = int((run / "checkpoint").read_text()) if (run / "checkpoint").exists() else 0
signal.signal(signal.SIGTERM, save)
with open(run / "started", "a") as file:
    core, = os.sched_getaffinity(0)
    print(os.getpid(), os.getppid(), step, core, file=file)
print("training", flush=True)
while step < last:
    time.sleep(0.1)
    step += 1
    if step % 10 == 0:
        (run / "checkpoint").write_text(str(step))
    print(f"| {step}/{last} [0:01, 1step/s]", flush=True)
if "die" in flags:
    os.kill(os.getpid(), int(flags["die"]))
if "fail" in flags:
    raise ValueError("step 7")
scores = {"exact_match": 50 + float(flags.get("bonus", 0)) + int(flags["seed"]) * 7 % 5 / 2}
result = {"scores": scores, "weights": str(scores), "curve": [[5, 3.0]], "parameters": 10}
Path(job["result"]).write_text(json.dumps(job["about"] | result))
"""
SMALL = Recipe("mini", "--steps=3", score="exact_match", delta=1.0, average=1, stages=(3, 5))


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def dask(folder, *words, env=None):
    """Start a command of Dask; its output is in a file in a folder."""
    with open(folder / f"{words[0]}.log", "a") as log:
        options = {"stdout": log, "stderr": log, "start_new_session": True, "cwd": folder}
        options["env"] = os.environ | (env or {})
        return subprocess.Popen([sys.executable, "-m", "dask", *words], **options)


def end(process):
    """End a process with its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Cluster:
    """A scheduler; `workers` are its workers by address, and their processes."""

    def __init__(self, folder):
        from distributed import Client

        self.folder, self.processes = folder, []
        file = folder / "scheduler.json"
        words = ("--port", "0", "--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", file)
        self.scheduler = dask(folder, "scheduler", *map(str, words))
        self.client = Client(scheduler_file=str(file), set_as_default=False)
        self.address = self.client.scheduler.address

    def start_worker(self, *words, **env):
        words = ("worker", self.address, "--no-dashboard", "--nthreads", "1", *words)
        self.processes.append(dask(self.folder, *words, env=env))
        return self.processes[-1]

    def pids(self):
        """Return the process of each worker by its address."""
        return self.client.run(os.getpid)

    def close(self):
        self.client.close()
        for process in (*self.processes, self.scheduler):
            end(process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and two workers of one thread; a worker that is killed is started again."""
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        for _ in range(2):
            cluster.start_worker()
        cluster.client.wait_for_workers(2, timeout=60)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def workers(cluster):
    """The two workers, at the start of a test."""
    wait_until(lambda: len(cluster.client.nthreads()) == 2)
    return cluster


def copy_modules(folder):
    """Copy the modules that a worker imports, and a worker.py that does not train."""
    ignored = shutil.ignore_patterns("__pycache__", "*.png", "*.patch", "*.html", "results")
    for name in ("model", "data", "training", "evaluation", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("config.py", "utils.py", "same_code.py"):
        shutil.copy(ROOT / name, folder)
    body = textwrap.indent(WORKER, "    ")
    text = f"EXCLUDED = set()\nif __name__ == '__main__':\n{body}"
    (folder / "experiments/worker.py").write_text(text)
    return folder


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return copy_modules(tmp_path / "source")


@pytest.fixture
def make_job(tmp_path, source):
    """Writes a job of the stubbed worker. Returns its path."""

    def make(name, **flags):
        values = {key: str(tmp_path / f"{name}.{key}") for key in ("run", "log", "result")}
        values |= {"flags": [f"--{flag}={text}" for flag, text in ({"seed": 0} | flags).items()]}
        path = tmp_path / f"{name}.job.json"
        path.write_text(json.dumps(values | {"source": str(source), "about": {"name": name}}))
        return path

    return make


def file(job, ending):
    return job.with_name(job.name.replace("job.json", ending))


def starts(job):
    """Return process, parent, first step and core of each start of a job."""
    path = file(job, "run") / "started"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[*map(int, line.split())] for line in lines]


def finish(executor, count):
    """Poll until a number of jobs have ended, and return them."""
    ended = []

    def poll():
        ended.extend(executor.poll())
        return len(ended) >= count

    wait_until(poll)
    return ended


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


@pytest.mark.slow
def test_a_job_runs_per_thread_on_a_core_of_its_own(workers, source, make_job):
    jobs = [make_job(name, steps=20) for name in "abc"]
    executor = ClusterExecutor(workers.address, source)
    executor.queue += jobs
    assert executor.poll() == [] and [*executor.running] == jobs[:2]
    assert {*finish(executor, 3)} == {*jobs} and not executor.running
    assert all(json.loads(file(job, "result").read_text())["scores"] for job in jobs)
    (_, _, _, one), (_, _, _, other) = starts(jobs[0]) + starts(jobs[1])
    assert one != other or len(cores()) == 1


@pytest.mark.slow
def test_a_run_of_a_killed_worker_is_repeated_elsewhere(workers, source, make_job, capsys):
    jobs = [make_job(name, steps=100) for name in "ab"]
    executor = ClusterExecutor(workers.address, source)
    executor.queue += jobs
    executor.poll()
    wait_until(lambda: all((file(job, "run") / "checkpoint").exists() for job in jobs))
    address = executor.running[jobs[0]][0]
    ((run, *_),) = starts(jobs[0])
    os.kill(workers.pids()[address], signal.SIGKILL)
    wait_until(lambda: not alive(run), 5)  # or two processes would write the same files
    assert {*finish(executor, 2)} == {*jobs}
    _, (_, _, resumed, _) = starts(jobs[0])
    assert 10 <= resumed < 100 and resumed % 10 == 0
    assert len(starts(jobs[1])) == 1 and file(jobs[0], "result").exists()
    assert f"{address} lost: repeated (1)" in capsys.readouterr().err


@pytest.mark.slow
def test_stopped_runs_save_and_resume(workers, source, make_job):
    jobs = [make_job(name, steps=steps) for name, steps in (("a", 1), ("b", 600), ("c", 600))]
    queued, executor = make_job("queued"), ClusterExecutor(workers.address, source)
    executor.queue += [*jobs, queued]
    assert finish(executor, 1) == jobs[:1]
    executor.poll()
    wait_until(lambda: all(starts(job) for job in jobs))
    executor.stop()
    assert not executor.running and executor.poll() == []
    for job in jobs[1:]:
        assert not alive(starts(job)[0][0]) and (file(job, "run") / "checkpoint").exists()
    assert file(jobs[0], "result").exists() and not starts(queued)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_has_failed(workers, source, make_job, monkeypatch):
    monkeypatch.setattr("experiments.cluster.REPEATS", 1)
    executor, jobs = ClusterExecutor(workers.address, source), [make_job("a", die=9)]
    executor.queue.append(jobs[0])
    assert finish(executor, 1) == jobs and len(starts(jobs[0])) == 2
    assert re.match("killed.*memory", runs.failure(Path(file(jobs[0], "log"))))
    jobs.append(make_job("abort", die=6))
    executor.queue.append(jobs[1])
    assert finish(executor, 1) == jobs[1:] and len(starts(jobs[1])) == 2
    assert "killed" not in file(jobs[1], "log").read_text()  # it may have printed why
    jobs.append(make_job("b", fail=1))
    executor.queue.append(jobs[2])
    assert finish(executor, 1) == jobs[2:] and len(starts(jobs[2])) == 1
    assert "ValueError: step 7" in file(jobs[2], "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["the client is lost", "the worker is closed"])
def test_runs_that_lose_client_or_worker_save_and_resume(workers, source, make_job, cause):
    executor, job = ClusterExecutor(workers.address, source), make_job("a", steps=200)
    executor.queue.append(job)
    executor.poll()
    wait_until((file(job, "run") / "checkpoint").exists)
    if cause == "the client is lost":
        executor.client.close()
        executor = ClusterExecutor(workers.address, source)
        executor.queue.append(job)
    else:
        worker = executor.running[job][0]
        workers.client.retire_workers([worker], close_workers=True)
        workers.start_worker()
    assert finish(executor, 1) == [job]
    (_, _, zero, _), (_, _, resumed, _) = starts(job)
    assert zero == 0 < resumed < 200 and (file(job, "run") / "saved").exists()
    assert file(job, "result").exists()


@pytest.fixture
def odd_worker(workers, tmp_path):
    """Starts a worker with other packages or another processor, and ends it after the test."""
    (tmp_path / "path/numpy-0.0.1.dist-info").mkdir(parents=True)
    processes = []

    def start(what):
        if what == "package":
            (tmp_path / "path/numpy-0.0.1.dist-info/METADATA").write_text("Version: 0.0.1\n")
        else:
            (tmp_path / "path/sitecustomize.py").write_text(
                "from pathlib import Path; read = Path.read_text\n"
                "Path.read_text = lambda path, *words, **more: 'model name: An Other' "
                "if str(path) == '/proc/cpuinfo' else read(path, *words, **more)\n"
            )
        process = workers.start_worker("--name", "odd", PYTHONPATH=str(tmp_path / "path"))
        processes.append(process)
        wait_until(lambda: len(workers.client.nthreads()) == 3)

    yield start
    for process in processes:
        end(process)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, text", [("package", "numpy is 0.0.1 there, not "), ("processor", "is An Other there, ")]
)
def test_a_worker_with_other_packages_or_processor_is_named_and_left_out(
    workers, source, make_job, odd_worker, capsys, what, text
):
    executor, jobs = ClusterExecutor(workers.address, source), [make_job(x) for x in "abcd"]
    odd_worker(what)
    executor.queue += jobs
    assert {*finish(executor, 4)} == {*jobs}
    names = {worker["name"]: address for address, worker in
             workers.client.scheduler_info()["workers"].items()}  # fmt: skip
    assert f"the Dask worker {names['odd']} is left out: " in (error := capsys.readouterr().err)
    assert text in error and executor.left_out.keys() == {names["odd"]}
    assert all(len(starts(job)) == 1 for job in jobs)


@pytest.mark.slow
def test_the_processor_is_that_of_most_workers(workers, source, make_job, monkeypatch):
    monkeypatch.setattr("experiments.cluster.processor", lambda: {"processor": "of this machine"})
    executor = ClusterExecutor(workers.address, source)
    assert executor.processor == {"processor": runs.processor()["processor"]}


def test_workers_that_do_not_see_the_folder_are_an_error(workers, tmp_path, make_job):
    executor = ClusterExecutor(workers.address, tmp_path / "missing")
    executor.queue.append(make_job("a"))
    with pytest.raises(ExperimentError, match="missing does not exist there: share the checkout"):
        finish(executor, 1)


@pytest.mark.slow
def test_a_scheduler_that_cannot_be_reached_is_an_error(source):
    for address in ("127.0.0.1:1", "no host"):
        with pytest.raises(ExperimentError, match="no Dask scheduler answers at"):
            ClusterExecutor(address, source)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small git checkout that the experiments use instead of the project's."""
    path = copy_modules(tmp_path / "repository")
    (path / ".gitignore").write_text("runs\n.cache\n__pycache__\n")
    (path / "experiments/more.patch").write_text("question: 1?\nflags: --bonus=8\n")
    (path / "experiments/slow.patch").write_text("question: 1?\nflags: --steps=600\n")
    monkeypatch.chdir(path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "-m", "one"]):
        subprocess.run(["git", *words], check=True, stdout=subprocess.DEVNULL)
    return path


def start(*words):
    """Start `python -m experiments.run` in the small checkout."""
    code = (
        "import sys; sys.path.insert(0, '.'); from experiments import run, runs\n"
        "from experiments.recipes import *; runs.load_texts = lambda *_: []\n"
        "runs.corpus_of = lambda _: corpora.find('mini')\n"
        f"RECIPES['mini'] = {SMALL!r}; run.main()"
    )
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(folder):
    """Return the files of runs, without those that Dask or another start would not share."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}


@pytest.mark.slow
def test_the_command_has_the_same_results_and_files_as_without_a_cluster(workers, repository):
    outputs, names, results = [], [], []
    for words in ([], ["--cluster", workers.address]):
        shutil.rmtree(repository / "runs", ignore_errors=True)
        out, errors = start("more", *words).communicate(timeout=120)
        assert "\nmore: better" in out and "100 % [" in errors, errors
        outputs.append(sorted(out.splitlines()))
        folder = repository / "runs/experiments/mini"
        names.append(files(folder).keys())
        paths = sorted(folder.glob("*/seed-*.*-*.json"))
        results.append([json.loads(path.read_text()) for path in paths])
    assert len(results[0]) >= 6 and results[0] == results[1]
    assert names[0] == names[1]
    # Only the order of the runs may differ, and with it the mean of the baseline so far.
    same = [{line for line in lines if "(baseline" not in line} for lines in outputs]
    assert same[0] == same[1] and len(outputs[0]) == len(outputs[1])
    assert not [*(repository / ".cache").glob("experiments-*")]


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_and_keeps_the_finished_ones(workers, repository):
    process = start("slow", "--cluster", workers.address)
    folder = repository / "runs/experiments/mini"
    wait_until(lambda: [*folder.glob("baseline/*.*-*.json")] and [*folder.glob("slow/*/started")])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "error: stopped: repeat the command" in errors
    assert [*folder.glob("slow/*/checkpoint")] and [*folder.glob("baseline/*.*-*.json")]
    (line,) = (folder / "slow/seed-0/started").read_text().splitlines()
    assert not alive(int(line.split()[0]))


@pytest.mark.slow
def test_a_lost_scheduler_is_an_error_in_one_sentence(tmp_path, repository):
    (tmp_path / "other").mkdir()
    cluster = Cluster(tmp_path / "other")
    try:
        cluster.start_worker()
        process = start("slow", "--cluster", cluster.address)
        folder = repository / "runs/experiments/mini"
        wait_until(lambda: [*folder.glob("slow/*/started")])
        pid, *_ = map(int, next(folder.glob("slow/*/started")).read_text().split())
        end(cluster.scheduler)
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 2 and "Traceback" not in errors, errors
        assert "error: the Dask scheduler at" in errors
        wait_until(lambda: not alive(pid))  # the worker closes without its scheduler
    finally:
        cluster.close()


@pytest.mark.slow
def test_real_runs_have_equal_bits_with_and_without_a_cluster(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    (tmp_path / "scratch").mkdir()
    flags = "--corpus mini:300 --num-layers 1 --d-model 16 --num-heads 2 --dff 32 --epochs 2 "
    flags += "--vocab-size 400 --batch-tokens 256 --max-length 40 --max-steps 30 --shards 1"
    recipe = Recipe("mini", flags, "exact_match", delta=1.0, sentences=30, average=1)
    runner = runs.Runner(recipe, tmp_path / "scratch")
    results, names = [], []
    for kind in (LocalExecutor, ClusterExecutor):
        words = (workers.address, runner.source(BASELINE)) if kind is ClusterExecutor else ()
        executor = kind(*words)
        executor.queue.append(runner.prepare(runs.Job(BASELINE, 0)))
        wait_until(executor.poll, 200)
        results.append(runner.result(BASELINE, 0))
        names.append({re.sub(r"events\..*", "events", name) for name in files(runner.folder)})
        shutil.rmtree(runner.folder / "baseline")
    seconds = [result.pop("seconds") for result in results]
    assert all(seconds) and results[0] == results[1] and results[0]["weights"]
    assert names[0] == names[1] and len(names[0]) > 8
