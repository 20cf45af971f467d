"""train.py and evaluate.py as they are run, what a run leaves behind, and how it goes on."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.projector import ProjectorConfig

from config import Config
from data import corpora
from data.tokenizer import load_pair
from model import MODELS
from model.optimizer import Adam, learning_rate
from training import machine, provenance
from training.run import Run, RunError, new_name

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-X", "utf8"]
ASCII = os.environ | {"PYTHONIOENCODING": "ascii"}
FLAGS = ["--corpus", "talks", "--d-model", "16", "--num-heads", "2", "--dff", "32",
         "--num-layers", "1", "--vocab-size", "400", "--batch-tokens", "256"]  # fmt: skip
# The same program, but for a checkpoint after each step instead of every three minutes.
SAVING_OFTEN = [*PYTHON, "-c", "import config, train; train.SAVE_EVERY = 0; "
                "train.train(config.from_flags('train'))"]  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A researcher's clone: a commit, an edit on top of it, and a small corpus."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in (*ROOT.glob("*.py"), ROOT / "model", ROOT / "data", ROOT / "evaluation"):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / path.name)
    (folder / ".gitignore").write_text("__pycache__\nruns\n.cache\ntalks\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=me", "-c", "user.email=me@here", "commit", "--quiet", "-m", "one")
    with open(folder / "model" / "attention.py", "a") as file:
        file.write("# an idea\n")
    (folder / "model" / "idea.py").write_text("# another idea\n")
    git(folder, "config", "diff.noprefix", "true")

    (folder / "talks").mkdir()
    for name, size in {"train": 300, "validation": 20, "test": 30}.items():
        split = corpora.load("mini:300", name)
        for language, texts in (("pt", split.sources), ("en", split.targets)):
            lines = "".join(text + "\n" for text in texts[:size])
            # English comes first in the alphabet, so that it is the source.
            (folder / "talks" / f"{name}.{language}").write_text(lines, "utf-8")
    return folder


def git(folder, *arguments):
    # Inside a git hook, git's variables would lead to another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def call(checkout):
    """Runs a command in the checkout to its end."""

    def run(*command, **options):
        return subprocess.run(command, cwd=checkout, capture_output=True, **options)

    return run


@pytest.fixture(scope="module")
def train(call):
    """Runs train.py to its end."""
    return lambda *flags: call(*PYTHON, "train.py", *flags, encoding="utf-8")


@pytest.fixture(scope="module")
def trained(checkout, call):
    """A run of two epochs without a name of its own, on a terminal that knows few signs."""
    command = (*PYTHON, "train.py", *FLAGS, "--epochs", "2")
    answer = call(*command, encoding="utf-8", env=ASCII)
    assert answer.returncode == 0, answer.stderr
    (folder,) = (checkout / "runs").iterdir()
    return folder, answer


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def metrics(folder):
    """The lines of metrics.jsonl without what hangs on the machine's speed."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    timings = ("seconds", "tokens_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in timings} for line in lines]


def state(folder, name=None):
    """Every tensor of a checkpoint, the last one if not named, that the next step depends on."""
    folder = folder / "checkpoints"
    reader = tf.train.load_checkpoint(str(folder / name if name else folder))
    # How often it was saved, how long metrics.jsonl is and what the clock said may differ.
    aside = ("save_counter", "metrics_end", "seconds", "_CHECKPOINTABLE_OBJECT_GRAPH")
    names = [n for n in reader.get_variable_to_shape_map() if not n.startswith(aside)]
    return {n: reader.get_tensor(n) for n in names}


def same_bits(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def number(path):
    """The step of a checkpoint: 7 of ckpt-7."""
    return int(str(path).rpartition("-")[2])


# ---- What a run leaves behind -------------------------------------------------------------------


def test_a_run_without_a_name_says_corpus_model_seed_and_time(run):
    assert re.fullmatch(r"talks-transformer-seed0-\d{8}-\d{6}", run.name)


@pytest.mark.parametrize("corpus", ["mini:300", "ted_hrlr_translate/pt_to_en", "/data/my talks/",
                                    "../a,b (c).tsv", ".", "~/é"])  # fmt: skip
def test_a_run_without_a_name_can_be_found_again(corpus):
    """Its name is one plain folder name, which config.json must accept."""
    name = new_name(Config(corpus=corpus))
    assert Config(name=name).name == name == Path(name).name


def test_the_end_says_where_the_run_is_and_how_to_go_on(run, trained):
    end = trained[1].stdout.splitlines()[-3:]
    assert f"runs/{run.name}" in end[0]
    assert end[1].strip() == "tensorboard --logdir runs"
    assert end[2].strip() == f"python evaluate.py runs/{run.name}"


def test_the_configuration_is_kept(run):
    kept = Config(**read_json(run / "config.json"))
    assert kept == Config(corpus="talks", d_model=16, num_heads=2, dff=32, num_layers=1, epochs=2,
                          vocab_size=400, batch_tokens=256, name=run.name)  # fmt: skip


def test_provenance_says_what_ran_where(run, checkout):
    facts = read_json(run / "provenance.json")
    assert facts["commit"] == git(checkout, "rev-parse", "HEAD").stdout.strip()
    assert facts["command"][-len(FLAGS) - 2 :] == [*FLAGS, "--epochs", "2"]
    assert facts["versions"]["tensorflow"] == tf.__version__
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["host"]["name"] and facts["host"]["cores"]
    assert facts["model_from"] == str(checkout.resolve() / "model")


def test_the_source_is_kept_as_it_ran(run, checkout):
    for path in checkout.rglob("*.*"):
        if path.suffix in (".py", ".tsv") and "runs" not in path.relative_to(checkout).parts:
            copy = run / "source" / path.relative_to(checkout)
            assert copy.read_bytes() == path.read_bytes()
    kept = {path.relative_to(run / "source").parts[0] for path in run.rglob("source/**/*")}
    assert kept.isdisjoint({"runs", "talks", ".git", ".cache"})
    assert not list(run.rglob("source/**/__pycache__"))


def test_the_edit_is_in_source_diff(run):
    diff = (run / "source.diff").read_text("utf-8")
    assert "+++ b/model/attention.py" in diff and "\n+# an idea\n" in diff
    assert "+++ b/model/idea.py" in diff and "\n+# another idea\n" in diff


def test_the_source_of_a_run_is_no_checkout_though_it_lies_in_one(run, checkout, monkeypatch):
    monkeypatch.setattr(provenance, "HERE", checkout)
    assert provenance.git("rev-parse", "HEAD") and provenance.source_diff()
    monkeypatch.setattr(provenance, "HERE", run / "source")
    assert provenance.git("rev-parse", "HEAD") == provenance.source_diff() == ""


def test_metrics_have_the_promised_names(run):
    step = {"step", "epoch", "loss", "accuracy", "learning_rate", "grad_norm", "tokens_per_second"}
    epoch = {"step", "epoch", "validation_loss", "validation_accuracy", "validation_bleu",
             "seconds"}  # fmt: skip
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {frozenset(line) for line in lines} == {frozenset(step), frozenset(epoch)}
    assert [line["epoch"] for line in lines if "seconds" in line] == [1, 2]
    assert [line["step"] for line in lines if "loss" in line] == [1, 50]
    assert all(np.isfinite(value) for line in lines for value in line.values())


def test_metrics_are_plausible(run):
    lines = metrics(run)
    steps = [line for line in lines if "loss" in line]
    for line in steps:
        rate = learning_rate(line["step"], d_model=16, warmup_steps=1000)
        assert line["learning_rate"] == pytest.approx(float(rate), rel=1e-5)
    # A fresh model knows nothing: all of the 400 pieces are about as likely.
    assert steps[0]["loss"] == pytest.approx(np.log(400), abs=1)
    first, last = (line["validation_loss"] for line in lines if "validation_loss" in line)
    assert last < first


def test_checkpoints_are_of_the_start_and_of_each_epoch(run):
    ends = [line["step"] for line in metrics(run) if "validation_loss" in line]
    found = {number(path.stem) for path in (run / "checkpoints").glob("*.index")}
    assert found == {0, *ends}
    (best,) = (run / "checkpoints" / "best").glob("*.index")
    assert number(best.stem) == ends[1]  # the loss still falls


def charts(folder):
    """The points that TensorBoard draws: {tag: {step: value}}."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: {event.step: tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def test_tensorboard_draws_training_and_validation_in_one_chart(run):
    """Two runs, of one tag: that is how TensorBoard puts two lines into a chart."""
    lines = metrics(run)
    for name in ("loss", "accuracy"):
        for folder, key in (("train", name), ("validation", f"validation_{name}")):
            points = {line["step"]: line[key] for line in lines if key in line}
            assert charts(run / folder)[name] == pytest.approx(points, rel=1e-5)
    assert {"learning_rate", "grad_norm", "tokens_per_second"} <= charts(run / "train").keys()
    assert "bleu" in charts(run / "validation")


def test_tensorboard_shows_three_sample_translations_an_epoch(run, checkout):
    sources = (checkout / "talks" / "validation.en").read_text("utf-8").splitlines()
    references = (checkout / "talks" / "validation.pt").read_text("utf-8").splitlines()
    drawn = charts(run / "validation")
    samples = [drawn[tag] for tag in sorted(drawn) if tag.startswith("sample")]
    assert [len(sample) for sample in samples] == [2, 2, 2]
    shown = [text.item().decode() for sample in samples for text in sample.values()]
    pairs = list(zip(sources, references, strict=True))
    assert all(any(s in text and r in text for s, r in pairs) for text in shown)


def test_tensorboard_shows_attention_of_one_text_an_epoch(run):
    ends = [line["step"] for line in metrics(run) if "validation_loss" in line]
    drawn = charts(run / "validation")["attention"]
    assert sorted(drawn) == ends
    width, height, png = drawn[ends[0]]
    assert int(width) > 200 and tf.io.decode_png(png).shape[:2] == (int(height), int(width))
    assert drawn[ends[1]][2] != png  # of the weights as they are now


def test_tensorboards_projector_finds_the_embeddings(run, checkout):
    config = text_format.Parse((run / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (found,) = config.embeddings
    rows, columns = found.tensor_shape
    values = np.fromfile(run / found.tensor_path, np.float32).reshape(rows, columns)
    saved = tf.train.load_checkpoint(str(run / "checkpoints"))
    (key,) = (key for key in saved.get_variable_to_shape_map() if "embedding/table" in key)
    table = saved.get_tensor(key)
    np.testing.assert_array_equal(values, table)
    names = (run / found.metadata_path).read_text("utf-8").splitlines()
    assert len(names) == rows == 400 and names[2:4] == ["'<s>'", "'</s>'"]


def test_tensorboard_knows_the_hyperparameters(run):
    events = EventAccumulator(str(run)).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"num_heads" in content and b"dropout_rate" in content


# ---- Going on -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def extended(checkout, train, trained):
    """A run of one epoch, and its state; then a second epoch."""
    folder = checkout / "runs" / "extended"
    one = train(*FLAGS, "--epochs", "1", "--name", "extended")
    assert one.returncode == 0, one.stderr
    middle = state(folder)
    two = train("--resume", "runs/extended", "--epochs", "2")
    assert two.returncode == 0, two.stderr
    return folder, middle


def test_the_same_command_gives_the_same_bits(run, extended):
    end = next(line["step"] for line in metrics(run) if "validation_loss" in line)
    assert same_bits(extended[1], state(run, f"ckpt-{end}"))


def test_an_epoch_and_one_more_are_two_epochs(run, extended):
    assert same_bits(state(run), state(extended[0]))
    assert metrics(run) == metrics(extended[0])


def test_resuming_a_finished_run_changes_nothing(run, extended, train):
    answer = train("--resume", "runs/extended", "--max-steps", "9")
    assert answer.returncode == 0, answer.stderr
    assert same_bits(state(run), state(extended[0]))
    assert metrics(run) == metrics(extended[0])


def test_ctrl_c_while_tensorflow_loads_is_no_traceback(checkout):
    process = subprocess.Popen([*PYTHON, "train.py", *FLAGS], cwd=checkout, stderr=subprocess.PIPE)
    while "tensorflow" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert b"Traceback" not in process.communicate()[1]
    assert process.returncode == 130


@pytest.fixture(scope="module")
def stopped(checkout, train, trained):
    """A run stopped in every way, each time in mid-epoch, and resumed each time."""
    folder, answers, processes = checkout / "runs" / "stopped", {}, []

    def train_until(step, *flags):
        """Start training and wait for a checkpoint of this step or a later one."""
        process = subprocess.Popen(
            [*SAVING_OFTEN, *flags], cwd=checkout, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        while process.poll() is None:
            if max(steps_saved(folder), default=-1) >= step:
                return process
            time.sleep(0.005)
        raise AssertionError(process.communicate()[1])

    def stop(process, number):
        process.send_signal(number)
        out, err = process.communicate()
        answers[number] = process.returncode, out, err, max(steps_saved(folder))

    try:
        stop(train_until(5, *FLAGS, "--epochs", "2", "--name", "stopped"), signal.SIGKILL)
        # What was written after the last checkpoint, the last line in the middle of it.
        with open(folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 98, "loss": 9}\n{"step": 99, "lo')

        process = train_until(15, "--resume", str(folder))
        process.send_signal(signal.SIGSTOP)  # it holds its breath
        answers["second"] = train("--resume", str(folder))
        process.send_signal(signal.SIGCONT)
        stop(process, signal.SIGTERM)
        stop(train_until(45, "--resume", str(folder)), signal.SIGINT)
        answers["last"] = train("--resume", str(folder))
    finally:
        for process in processes:
            process.kill()
    return folder, answers


def steps_saved(folder):
    return [number(path.stem) for path in (folder / "checkpoints").glob("ckpt-*.index")]


def test_a_run_stopped_in_every_way_ends_with_the_same_bits(run, stopped):
    folder, answers = stopped
    assert answers["last"].returncode == 0, answers["last"].stderr
    assert answers[signal.SIGKILL][0] == -signal.SIGKILL  # else nothing was shown
    ends = [line["step"] for line in metrics(run) if "validation_loss" in line]
    for name in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        assert answers[name][3] not in (0, *ends)  # it was in mid-epoch
    assert same_bits(state(run), state(folder))


def test_a_stopped_run_ends_with_the_same_metrics(run, stopped):
    assert metrics(run) == metrics(stopped[0])


def test_the_last_checkpoint_has_the_last_validation_in_it(checkout, call):
    """However often there was a checkpoint before: none may take the name of the last."""
    answer = call(*SAVING_OFTEN, *FLAGS, "--epochs", "1", "--name", "often")
    assert answer.returncode == 0, answer.stderr
    folder = checkout / "runs" / "often"
    saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder / "checkpoints"))
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert saved.get_tensor("epoch" + value) == 1 and saved.get_tensor("position" + value) == 0
    assert saved.get_tensor("metrics_end" + value) == (folder / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves_cleanly(stopped, number):
    status, out, err, _ = stopped[1][number]
    assert status == 128 + number and "Traceback" not in err
    assert f"train.py --resume {stopped[0]}" in out


def test_a_folder_is_trained_by_one_process_at_a_time(stopped):
    second = stopped[1]["second"]
    assert second.returncode == 2 and "Traceback" not in second.stderr
    assert re.fullmatch(r"error: .*another process.*", second.stderr.splitlines()[-1])


def test_an_existing_name_is_refused(run, train):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    answer = train(*FLAGS, "--name", run.name)
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    assert re.fullmatch(rf"error: .*{run.name} .*--resume.*", answer.stderr.splitlines()[-1])
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.fixture(scope="module")
def diverged(checkout, train, trained):
    """A run whose weights explode in the first step; with another seed than `trained`."""
    answer = train(*FLAGS, "--epochs", "1", "--name", "diverged", "--learning-rate-scale", "1e30",
                   "--seed", "1")  # fmt: skip
    return checkout / "runs" / "diverged", answer


def test_a_loss_that_is_not_finite_stops_the_run_and_says_so(diverged):
    answer = diverged[1]
    assert answer.returncode == 1 and "Traceback" not in answer.stderr
    line = answer.stderr.splitlines()[-1]
    assert re.search(r"step \d+", line) and re.search(r"loss \D*(nan|inf)", line)
    assert re.search(r"norm \D*(nan|inf|\d)", line)
    assert str(diverged[0].name) in line  # where the last good state is


def test_a_loss_that_is_not_finite_leaves_a_good_checkpoint(diverged):
    assert all(np.isfinite(tensor).all() for tensor in state(diverged[0]).values()
               if np.issubdtype(tensor.dtype, np.floating) and tensor.ndim)  # fmt: skip


def test_metrics_stay_json_when_the_loss_is_not_finite(diverged):
    assert all(np.isfinite(v) for line in metrics(diverged[0]) for v in line.values())


def test_another_seed_gives_other_weights(run, diverged):
    here, there = state(run, "ckpt-0"), state(diverged[0], "ckpt-0")
    matrices = [name for name in here if here[name].ndim == 2 and here[name].any()]
    assert matrices and not any(np.array_equal(here[name], there[name]) for name in matrices)


# ---- Looking at a corpus ------------------------------------------------------------------------


def test_a_corpus_can_be_looked_at(call):
    answer = call(*PYTHON, "-m", "data", "mini:300", "--vocab-size", "400", encoding="utf-8")
    assert answer.returncode == 0, answer.stderr
    first = corpora.load("mini", "validation")
    for text in (first.sources[0], first.targets[0]):
        assert text in answer.stdout
    for said in ("300 pairs", "▁", "400 pieces", "come back unchanged", "median", "0 = padding"):
        assert said in answer.stdout


@pytest.mark.parametrize(
    "flags", ["nosuch", "", "mini:300 --vocab-size 1", "mini:300 --vocab-size 264",
              "mini:300 --nosuch", "mini:300 --cache-dir train.py"],
)  # fmt: skip
def test_a_corpus_that_cannot_be_looked_at_is_refused_in_one_line(call, flags):
    answer = call(*PYTHON, "-m", "data", *flags.split(), encoding="utf-8")
    assert answer.returncode == 2 and answer.stdout == "" and "Traceback" not in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: ")


# ---- Faults -------------------------------------------------------------------------------------


@pytest.fixture
def torn(run, tmp_path):
    """A copy of the run, in which files can be torn."""
    return Path(shutil.copytree(run, tmp_path / run.name))


def flip(path, place=-1000):
    """Alter one byte."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x10
    path.write_bytes(raw)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_resumed_from_an_older_checkpoint_a_run_ends_with_the_same_bits(checkout, run, torn, train):
    """Its last checkpoint torn, and the list of checkpoints too."""
    folder = checkout / "runs" / "torn"
    shutil.move(torn, folder)
    last = max(steps_saved(folder))
    flip(folder / "checkpoints" / f"ckpt-{last}.data-00000-of-00001")
    cut(folder / "checkpoints" / "checkpoint")
    answer = train("--resume", folder)
    assert answer.returncode == 0, answer.stderr
    assert f"ckpt-{last} cannot be read" in answer.stderr and "going on from" in answer.stderr
    assert same_bits(state(run), state(folder)) and metrics(run) == metrics(folder)


LIMITED = (
    "import resource, runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, '.'); "
    "resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2); "
    "del sys.argv[1:3]; runpy.run_path('train.py', run_name='__main__')"
)


def test_a_full_disk_costs_nothing_that_was_saved(checkout, run, torn, call, train):
    """No file may grow beyond a limit below a checkpoint's size."""
    folder = checkout / "runs" / "full"
    shutil.move(torn, folder)
    for path in folder.glob(f"checkpoints/ckpt-{max(steps_saved(folder))}*"):
        path.unlink()  # to be made again
    before = {path: path.read_bytes() for path in folder.glob("checkpoints/ckpt-*")}
    size = max(path.stat().st_size for path in before) - 1000
    command = ("-c", LIMITED, "train.py", "RLIMIT_FSIZE", str(size), "--resume", folder)
    answer = call(*PYTHON, *command, encoding="utf-8")
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    said = answer.stderr.splitlines()[-1]
    assert re.fullmatch(r"error: step \d+ cannot be saved in .*; the checkpoints before .*", said)
    assert {p: p.read_bytes() for p in folder.glob("checkpoints/ckpt-*")} == before
    answer = train("--resume", folder)
    assert answer.returncode == 0 and same_bits(state(run), state(folder))


def test_running_out_of_memory_is_a_sentence_that_says_which_knob_to_turn(call):
    limit = ("train.py", "RLIMIT_DATA", str(3 * 2**30))
    flags = [*FLAGS, "--dff", "9000000", "--name", "too-large"]  # 576 MB a matrix
    answer = call(*PYTHON, "-c", LIMITED, *limit, *flags, encoding="utf-8")
    assert answer.returncode == 1 and "Traceback" not in answer.stderr
    said = answer.stderr.splitlines()[-1]
    assert re.match(r"error: out of memory at a tensor of \[\d+,\d+\]: lower --batch-tokens", said)


def test_what_is_not_there_is_refused(monkeypatch):
    """The limit is what the process has and what is free; a lower one of the user's stays."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        for free, whole in ((40, 20), (50, 20), (20, 51)):  # powers of two
            monkeypatch.setattr(machine, "memory", lambda f=free, w=whole: (2**f, 2**w))
            machine.limit_memory()
            found = resource.getrlimit(resource.RLIMIT_DATA)[0]
            assert abs(found - 2**40 - machine.mapped()) < 2**30
        resource.setrlimit(resource.RLIMIT_DATA, before)
        machine.limit_memory()  # half of all there is
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] > 2**49
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize(
    "files, free, whole",
    [
        ({}, 700, 2000),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1024000\n",
          "sys/fs/cgroup/a/memory.current": "819200\n",
          "sys/fs/cgroup/a/memory.stat": "anon 9\ninactive_file 102400\nactive_file 204800\n",
          "sys/fs/cgroup/a/b/memory.max": "max\n"}, 500, 1000),
        ({"proc/self/cgroup": "7:cpu:/\n3:cpuset,memory:/x\n",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": "1024000",
          "sys/fs/cgroup/memory/memory.usage_in_bytes": "819200",
          "sys/fs/cgroup/memory/memory.stat": "cache 5\nactive_file 102400\n"}, 300, 1000),
    ],
    ids=["the machine", "version 2, a group above", "version 1"],
)  # fmt: skip
def test_free_memory_is_that_of_the_container(tmp_path, files, free, whole):
    """In kB; what holds files can be had back."""
    text = "MemTotal: 2000 kB\nMemAvailable:  600 kB\nSwapFree: 100 kB\n"
    for name, content in ({"proc/meminfo": text} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert machine.memory(tmp_path) == (free * 1024, whole * 1024)
    assert 2**28 < machine.memory()[0] <= machine.memory()[1] * 2 < 2**50


def test_a_full_disk_is_not_called_full_memory():
    error = tf.errors.ResourceExhaustedError(None, None, "runs/x/events; No space left on device")
    assert machine.advice(error, "buy more") == "runs/x/events; No space left on device: make room"
    error = tf.errors.ResourceExhaustedError(None, None, "OOM: tensor with shape[3,4] and type")
    assert machine.advice(error, "lower it") == "out of memory at a tensor of [3,4]: lower it"


def test_a_damaged_run_is_refused_by_name_at_resume(checkout, torn, train):
    folder = checkout / "runs" / "damaged"
    shutil.move(torn, folder)
    for name in ("tokenizer.model", "corpus.json"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(b"garbage")
        answer = train("--resume", folder, "--epochs", "3")
        (folder / name).write_bytes(good)
        assert answer.returncode == 2 and "Traceback" not in answer.stderr
        assert name in answer.stderr.splitlines()[-1]


def test_a_resumed_run_is_changed_once_it_fits_and_keeps_what_was(run, tmp_path):
    """And not before: whoever is refused finds the folder as it was."""
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    tokenizers = load_pair(folder)
    facts, (source, target) = read_json(folder / "corpus.json"), tokenizers
    data = SimpleNamespace(facts=facts, source_tokenizer=source, target_tokenizer=target)
    before = {path: path.read_bytes() for path in folder.rglob("*.[pj]*") if path.is_file()}

    def go_on(**changes):
        config = Config(**read_json(folder / "config.json") | changes | {"resume": str(folder)})
        model = MODELS["transformer"](config, *(made.vocab_size for made in tokenizers))
        counts = {name: tf.Variable(0, dtype=tf.int64) for name in ("epoch", "position")}
        others = {name: tf.Variable(0, dtype=kind) for name, kind in
                  {"seconds": tf.float64, "best_loss": tf.float32}.items()}  # fmt: skip
        Run(config, data).restore(
            model=model, optimizer=Adam(model.trainable_variables), **counts, **others
        )

    with pytest.raises(RunError, match="does not fit the model"):
        go_on(num_layers=2, accept_changes=True)
    assert before == {path: path.read_bytes() for path in before}
    go_on(dropout_rate=0.3, accept_changes=True)
    assert read_json(folder / "config.json")["dropout_rate"] == 0.3
    (old,) = folder.glob("config.json.until-*")
    assert old.read_bytes() == before[folder / "config.json"]
    (old,) = folder.glob("provenance.json.until-*")
    assert old.read_bytes() == before[folder / "provenance.json"]
    assert read_json(folder / "provenance.json") != read_json(old)
    go_on(epochs=9)  # which changes nothing that was
    assert len(list(folder.glob("*.until-*"))) == 4
    for old in folder.glob("*.until-*"):  # its name tells the second: the next has another
        old.rename(old.with_name(f"{old.name}-1"))
    with open(folder / "source" / "model" / "loss.py", "a") as file:
        file.write("ANOTHER = 1\n")
    with pytest.raises(RunError, match="model/loss.py is not what"):
        go_on()
    go_on(accept_changes=True)
    assert "ANOTHER" not in (folder / "source" / "model" / "loss.py").read_text()
    (old,) = (o for o in folder.glob("source.until-*") if not o.name.endswith("-1"))
    assert "ANOTHER" in (old / "model" / "loss.py").read_text()
    assert read_json(folder / "config.json")["accept_changes"] is False


def test_other_code_is_refused_by_name_and_a_run_goes_on_with_its_own(run, train, call, tmp_path):
    folder = tmp_path / "code"
    shutil.copytree(run, folder)
    with open(folder / "source" / "model" / "loss.py", "a") as file:
        file.write("ANOTHER = 1\n")
    next_step = max(steps_saved(folder)) + 1
    more = ("--epochs", "3", "--max-steps", str(next_step))
    for flags in ((), ("--dropout-rate", "0.2")):
        answer = train("--resume", folder, *more, *flags)
        assert answer.returncode == 2 and "Traceback" not in answer.stderr
        said = answer.stderr.splitlines()[-1]
        assert said.startswith("error: ") and "--accept-changes" in said
        assert ("--dropout-rate" if flags else "model/loss.py") in said
    own = call(*PYTHON, folder / "source" / "train.py", "--resume", folder, *more, encoding="utf-8")
    assert own.returncode == 0 and max(steps_saved(folder)) == next_step, own.stderr
