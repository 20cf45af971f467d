"""train.py as a user runs it: the run directory, and a killed run that is resumed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers import (
    TINY,
    assert_same_state,
    command_line,
    metrics_of,
    state,
    steps_saved,
    write,
    write_corpus,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.projector import ProjectorConfig

import same_code
from config import Config
from same_code import ROOT, git
from training import description
from training.records import read_json

SETTINGS = TINY | {"corpus": "talks", "epochs": 2}
FLAGS = command_line(SETTINGS)
TIMEOUT = 300  # seconds that a process may take


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A researcher's clone: a commit, uncommitted edits, and a small corpus."""
    folder = tmp_path_factory.mktemp("checkout")
    packages = (ROOT / name for name in ("model", "data", "training", "evaluation"))
    for path in (*ROOT.glob("*.py"), *packages):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / path.name)
    (folder / ".gitignore").write_text("__pycache__\nruns\n.cache\ntalks\n")
    author = ("-c", "user.name=me", "-c", "user.email=me@here")
    git("init", "--quiet", cwd=folder)
    git("add", ".", cwd=folder)
    git(*author, "commit", "--quiet", "-m", "one", cwd=folder)
    with open(folder / "model" / "attention.py", "a") as file:
        file.write("# an idea\n")
    (folder / "model" / "idea.py").write_text("# another idea\nfrom ideas import rates\n")
    write(folder / "ideas" / "rates.py", "# a third idea\n")
    (folder / "model" / "rates.tsv").write_text("1\t2\n")
    (folder / "evaluation" / "export.py").unlink()  # train.py does not import it
    git("config", "diff.noprefix", "true", cwd=folder)
    write_corpus(folder / "talks")
    write_corpus(folder / "data" / "large")
    return folder


@pytest.fixture(scope="module")
def call(checkout):
    """Run Python in the checkout, with arguments: the completed process."""

    def run(*arguments, **environment):
        command = [sys.executable, *map(str, arguments)]
        options = {"cwd": checkout, "env": os.environ | environment, "timeout": TIMEOUT}
        return subprocess.run(command, **options, capture_output=True, encoding="utf-8")

    return run


@pytest.fixture(scope="module")
def trained(checkout, call):
    """A run of two epochs without --name, on a terminal that shows ASCII only: (path, process)."""
    earlier = set(checkout.glob("runs/*"))
    process = call("train.py", *FLAGS, PYTHONIOENCODING="ascii")
    assert process.returncode == 0, process.stderr
    (folder,) = set(checkout.glob("runs/*")) - earlier
    return folder, process


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def validated_steps(run):
    return [line["step"] for line in metrics_of(run) if "validation_loss" in line]


# ---- On the terminal -----------------------------------------------------------------------------


def test_a_run_prints_what_is_trained_and_how_to_watch_and_score_it(run, trained):
    begin = trained[1].stdout.partition("epoch 1")[0]
    parameters = sum(x.size for name, x in state(run).items() if name.startswith("model/"))
    for keyword in ("talks", "300 pairs", "transformer", f"{parameters:,} parameters", "float32",
                    f"runs/{run.name}", "tensorboard --logdir runs"):  # fmt: skip
        assert keyword in begin
    *_, score, _, resume = trained[1].stdout.splitlines()
    assert score.endswith(f"python evaluate.py runs/{run.name}")
    assert resume.endswith(f"python train.py --resume runs/{run.name} --epochs N")
    assert re.fullmatch(r"talks-transformer-seed0-\d{8}-\d{6}-\d+", run.name)
    assert "cuda" not in trained[1].stderr.lower()  # no messages of TensorFlow


# ---- The run directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("corpus", ["mini:300", "ted_hrlr_translate/pt_to_en", "/data/my talks/",
                                    "../a,b (c).tsv", ".", "~/é", "+a", 60 * "long/"])  # fmt: skip
def test_the_name_of_a_run_without_a_name_is_a_valid_name(corpus):
    name = description.name_of(Config(corpus=corpus))
    assert Config(name=name).name == name == Path(name).name and len(name) < 100


def test_config_json_has_every_setting(run):
    recorded = Config(**read_json(run / "config.json"))
    # What depends on the device and on the corpus is filled in.
    assert recorded.shards == 2 and recorded.total_steps > 1
    depends = {"shards": recorded.shards, "total_steps": recorded.total_steps}
    assert recorded == Config(**SETTINGS, name=run.name, **depends)


def test_provenance_has_commit_command_versions_and_host(run, checkout):
    facts = read_json(run / "provenance.json")
    assert facts["commit"] == git("rev-parse", "HEAD", cwd=checkout).strip()
    assert facts["command"][-len(FLAGS) :] == FLAGS
    assert facts["versions"]["tensorflow"] == metadata.version("tensorflow")
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["host"]["name"] and facts["host"]["cores"]


def test_the_source_is_copied(run, checkout):
    for path in checkout.rglob("*.*"):
        if path.suffix in (".py", ".tsv") and "runs" not in path.relative_to(checkout).parts:
            copy = run / "source" / path.relative_to(checkout)
            assert copy.read_bytes() == path.read_bytes()
    names = {path.relative_to(run / "source").parts[0] for path in run.rglob("source/**/*")}
    assert names.isdisjoint({"runs", "talks", ".git", ".cache"})
    assert not list(run.rglob("source/**/__pycache__"))
    assert not (run / "source" / "data" / "large").exists()  # a corpus


def test_a_change_of_a_new_module_or_table_is_one_of_the_code(run, checkout, tmp_path):
    copy = shutil.copytree(run / "source", tmp_path / "source")
    assert same_code.changed_files("training", copy, checkout) == []
    hidden = ("model/.ipynb_checkpoints/loss.py", "ideas/.old/rates.py")
    for name in ("ideas/rates.py", "model/rates.tsv", *hidden):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("TWO = 2\n")
    assert same_code.changed_files("training", copy, checkout) == [
        "ideas/rates.py",
        "model/rates.tsv",
    ]


def test_edits_and_new_files_are_in_source_diff(run):
    diff = (run / "source.diff").read_text("utf-8")
    assert "+++ b/model/attention.py" in diff and "\n+# an idea\n" in diff
    assert "+++ b/model/idea.py" in diff and "\n+# another idea\n" in diff
    assert "+++ b/ideas/rates.py" in diff and "+++ b/model/rates.tsv" in diff
    assert "--- a/evaluation/export.py" in diff and "data/large" not in diff


def test_the_source_of_a_run_is_not_a_checkout(run, checkout, monkeypatch):
    """Though it lies in one."""
    monkeypatch.setattr(same_code, "ROOT", checkout)
    commit, diff = description.checkout_state([])
    assert commit and diff
    for module in same_code, description:
        monkeypatch.setattr(module, "ROOT", run / "source")
    assert description.checkout_state([]) == (None, "")


def test_a_checkout_that_git_cannot_read_is_not_recorded_but_reported(
    checkout, tmp_path, monkeypatch, capsys
):
    """Such as one without any commit."""
    shutil.copy(checkout / "train.py", tmp_path)
    for command in ("init", "add ."):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.setattr(same_code, "ROOT", tmp_path)
    assert description.checkout_state([]) == (None, "")
    assert "git" in capsys.readouterr().err


# ---- TensorBoard ---------------------------------------------------------------------------------


def charts(folder):
    """Return the points that TensorBoard draws: {tag: {step: value}}."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: {event.step: tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def test_training_and_validation_are_in_one_chart(run):
    """TensorBoard puts the same tag of two directories into one chart."""
    lines = metrics_of(run)
    for name in ("loss", "accuracy"):
        for folder, key in (("train", name), ("validation", f"validation_{name}")):
            points = {line["step"]: line[key] for line in lines if key in line}
            assert charts(run / folder)[f"metrics/{name}"] == pytest.approx(points, rel=1e-5)
    tags = {"objective", "learning_rate", "grad_norm", "tokens_per_second"}
    assert {f"training/{tag}" for tag in tags} <= charts(run / "train").keys()
    assert {path.parent.name for path in run.rglob("events.out.*")} == {"train", "validation"}
    events = EventAccumulator(str(run / "validation")).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"num_heads" in content and b"dropout_rate" in content
    assert "metrics/bleu" in charts(run / "validation")


def test_there_are_three_sample_translations_per_epoch(run, checkout):
    sources = (checkout / "talks" / "validation.en").read_text("utf-8").splitlines()
    references = (checkout / "talks" / "validation.pt").read_text("utf-8").splitlines()
    tags = charts(run / "validation")
    samples = [tags[f"samples/{number}"] for number in (1, 2, 3)]
    assert [len(sample) for sample in samples] == [2, 2, 2]
    texts = [text.item().decode() for sample in samples for text in sample.values()]
    pairs = list(zip(sources, references, strict=True))
    assert all(any(s in text and r in text for s, r in pairs) for text in texts)


def test_there_is_a_picture_of_attention_per_epoch(run):
    pictures = charts(run / "validation")["samples/attention"]
    assert sorted(pictures) == validated_steps(run)
    first, second = (pictures[step] for step in sorted(pictures))
    width, height, png = first
    assert int(width) > 200 and tf.io.decode_png(png).shape[:2] == (int(height), int(width))
    assert second[2] != png  # the weights have changed


def test_the_projector_shows_the_embeddings(run):
    folder = run / "validation"
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    rows, columns = embedding.tensor_shape
    values = np.fromfile(folder / embedding.tensor_path, np.float32).reshape(rows, columns)
    (table,) = (value for name, value in state(run).items() if "embedding/table" in name)
    names = (folder / embedding.metadata_path).read_text("utf-8").splitlines()
    assert len(names) == rows and "'</s>'" in names
    np.testing.assert_array_equal(values, table)


# ---- Resuming in a new process -------------------------------------------------------------------

# train.py, but it sends itself a signal after a step, and saves every fourth step.
STOPPING = """
from training.machine import import_tensorflow
import_tensorflow()  # as train.py does: with other graph optimizers, the last bits differ
import os, sys, train
from training.command_line import parse_config
from training.run import Run

number, last_step = map(int, (sys.argv.pop(1), sys.argv.pop(1)))
advance = Run.advance

def advance_and_stop(run, *step):
    advance(run, *step)
    if run.step == last_step:
        os.kill(os.getpid(), number)

Run.advance = advance_and_stop
Run.save_due = lambda run: run.step % 4 == 0
train.train(parse_config("train"))
"""


@pytest.mark.slow
def test_a_killed_and_stopped_run_ends_with_the_same_bits(checkout, run, call):
    """Each time within an epoch, and each time resumed in a new process."""
    folder = checkout / "runs" / "stopped"
    ends = validated_steps(run)
    killed = call("-c", STOPPING, int(signal.SIGKILL), 6, *FLAGS, "--name=stopped")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert steps_saved(folder)[-1] == 4
    # As if it was killed while writing a line, after the checkpoint.
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 98, "loss": 9}\n{"step": 99, "lo')

    within = (ends[0] + ends[1]) // 2
    stopped = call("-c", STOPPING, int(signal.SIGTERM), within, "--resume", folder)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert "Traceback" not in stopped.stderr and f"train.py --resume {folder}" in stopped.stdout
    assert ends[0] < steps_saved(folder)[-1] == within < ends[1]

    resumed = call("train.py", "--resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_state(state(folder), state(run))
    assert metrics_of(folder) == metrics_of(run)


@pytest.mark.slow
def test_a_run_is_resumed_with_its_own_code(run, call, tmp_path):
    folder = Path(shutil.copytree(run, tmp_path / "code"))
    with open(folder / "source" / "model" / "loss.py", "a") as file:
        file.write("ANOTHER = 1\n")
    next_step = steps_saved(folder)[-1] + 1
    flags = ("--resume", folder, "--epochs", 3, "--max-steps", next_step)
    process = call("train.py", *flags)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert "model/loss.py" in process.stderr.splitlines()[-1]
    process = call(folder / "source" / "train.py", *flags, "--accumulate=2", "--accept-changes")
    assert process.returncode == 0 and steps_saved(folder)[-1] == next_step, process.stderr
    assert "ANOTHER" in (folder / "source" / "model" / "loss.py").read_text()
