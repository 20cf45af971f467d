"""The flags of train.py: help, defaults, and mistakes, reported before TensorFlow loads."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

from config import MAY_CHANGE_ON_RESUME, TASKS, Config, no_effect
from same_code import ROOT
from training import command_line, records
from utils import UserError

FIELDS, HINTS = dataclasses.fields(Config), get_type_hints(Config)


@pytest.fixture
def start(tmp_path):
    """Run a program with another module in place of TensorFlow: the completed process."""

    def run(program, *flags, tensorflow="raise SystemExit('TensorFlow was imported')"):
        (tmp_path / "tensorflow.py").write_text(tensorflow)
        command = [sys.executable, str(ROOT / program), *flags]
        options = {"env": os.environ | {"PYTHONPATH": str(tmp_path)}, "cwd": tmp_path}
        return subprocess.run(command, **options, capture_output=True, encoding="utf-8", timeout=60)

    return run


@pytest.fixture
def parse(monkeypatch, capsys, tmp_path):
    """Parse a command line: a Config, or the error line."""
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    monkeypatch.chdir(tmp_path)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        try:
            return command_line.parse_config("")
        except SystemExit as error:
            assert error.code == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and err.endswith("\n")
            return err

    return run


# ---- Help ----------------------------------------------------------------------------------------


def test_help_describes_every_flag_and_its_default_without_tensorflow(start):
    process = start("train.py", "--help")
    assert process.returncode == 0 and process.stderr == ""
    entries = re.split(r"\n  (?=--)", process.stdout)
    for field in FIELDS:
        flag = "--" + field.name.replace("_", "-")
        (entry,) = [entry for entry in entries if re.match(rf"{flag}[ ,]", entry)]
        # The flag and its values, then a description, then the default if there is one.
        assert len(re.findall(r"\b[a-z]{2,}\b", entry.replace(flag, ""))) >= 2
        assert field.default is None or f"[{field.default}]" in entry


# ---- From a command line to a Config -------------------------------------------------------------


def test_a_flag_sets_its_field_and_the_others_have_their_defaults(parse):
    assert parse() == Config()
    config = parse("--num-layers", "2", "--dropout-rate", "0", "--no-tie-embeddings", "--reverse",
                  "--norm", "post")  # fmt: skip
    flags = {"num_layers": 2, "dropout_rate": 0.0, "tie_embeddings": False, "reverse": True}
    assert config == Config(**flags, norm="post")


def test_everything_that_names_models_names_the_same_ones():
    """Those of model/ and of the type of the flag: see test_invariants.py."""
    assert {name for field in FIELDS for name in field.metadata["ignored_by"]} == {*TASKS}
    for model, task in TASKS.items():
        assert set(no_effect(model)) < {field.name for field in FIELDS}
        assert Config(model=model).task == task


def test_language_models_are_trained_without_label_smoothing_unless_it_is_given(parse):
    assert parse().label_smoothing == parse("--model", "recurrent").label_smoothing == 0.1
    assert parse("--label-smoothing", "0").label_smoothing == 0
    assert parse("--model", "language_model").label_smoothing == 0
    smoothed = parse("--model", "language_model", "--label-smoothing", "0.2")
    assert smoothed.label_smoothing == 0.2


# ---- Mistakes ------------------------------------------------------------------------------------

INVALID = [
    "--d-model 100",  # not divisible by the 8 heads
    "--d-model 15 --num-heads 3",  # odd: a sine without a cosine
    "--epochs 1.5",
    "--norm batch",
    "--name a/b",
    "--name latest",
    "--corpus nosuch",
    "--model classifier --corpus mini",
    "--runs-dir /dev/null",
    "--cache-dir /dev/null/cache",
    "--resume nosuch",
    "--no-such-flag",
    "--no-epochs",
    "--train-share 0",
    "--languages pt,pt",
    "surplus",
]


@pytest.mark.parametrize("flags", INVALID)
def test_invalid_flags_are_rejected(parse, flags):
    line = parse(*flags.split())
    assert line.startswith("error: ")
    # The flag, or its value.
    assert re.split("[ =]", flags)[0] in line or flags.split()[-1] in line


def test_mistakes_are_reported_before_tensorflow_loads(start):
    """Of the name of a corpus, and of a run."""
    for program, flags, keyword in (
        ("train.py", "--corpus a.tsv", "a.tsv"),
        ("translate.py", "nosuch", "nosuch"),
    ):
        process = start(program, *flags.split())
        assert process.returncode == 2 and process.stdout == "" and keyword in process.stderr
        assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1


NUMBERS = [field for field in FIELDS if "int" in str(field.type) or "float" in str(field.type)]


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_numbers_out_of_bounds_are_rejected(field):
    low, high = field.metadata["low"], field.metadata["high"]
    kind = float if "float" in str(field.type) else int
    for value in (kind(low) - 1, kind(high) if kind is int else float(high), float("nan"), "1"):
        with pytest.raises(UserError, match=f"^--{field.name.replace('_', '-')} "):
            Config(**{field.name: value})


@pytest.mark.parametrize("flags", ["--epoch 3", "--d 64", "--drop 0.1", "--no-rev", "--seeds 1"])
def test_flags_cannot_be_abbreviated(parse, flags):
    """Abbreviations would change their meaning with the next flag that is added."""
    line = parse(*flags.split())
    assert flags.split()[0] in line and ("--epochs?" in line) == (flags == "--epoch 3")


def test_a_flag_without_effect_is_noted(parse, capsys):
    assert parse("--model", "recurrent", "--num-heads", "4").num_heads == 4
    assert "--num-heads" in capsys.readouterr().err
    parse("--model", "recurrent", "--num-heads", "8")  # the default
    parse("--num-heads", "4")
    assert capsys.readouterr().err == ""


# ---- While TensorFlow loads ----------------------------------------------------------------------


def test_ctrl_c_is_not_a_traceback(start):
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(50)"
    process = start("train.py", tensorflow=code)
    assert process.returncode == 130 and "Traceback" not in process.stderr


# ---- Resuming: config.json of a run --------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run directory with a config.json only."""
    text = json.dumps(dataclasses.asdict(Config(corpus="mini:9", name="run", num_heads=4)))
    (tmp_path / "config.json").write_text(text)
    return tmp_path


def test_latest_is_the_run_that_started_last(tmp_path, parse):
    for time, name in enumerate(("b", "c", "a")):
        file = tmp_path / name / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"corpus": "mini:9", "name": name}))
        os.utime(file, (time, time))
    assert parse("--resume", f"{tmp_path}/latest").name == "a"
    assert records.find_run(tmp_path / "none" / "latest").name == "latest"
    (tmp_path / "latest").mkdir()
    assert records.find_run(tmp_path / "latest").name == "latest"


def test_a_misspelt_run_is_corrected(run):
    with pytest.raises(UserError, match=f"did you mean {run.name}"):
        records.load_config(run.with_name(run.name[:-1]))
    with pytest.raises(UserError, match=r"config.json\)$"):
        records.load_config(run / "quite-different")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"no_such_setting": 1}', '{"epochs": "two"}', '{"reverse": 1}',
             '{"d_model": 100}', '{"dropout_rate": NaN}', '{"norm": null}'],
)  # fmt: skip
def test_a_damaged_config_is_named(run, parse, text):
    (run / "config.json").write_text(text)
    assert str(run / "config.json") in parse("--resume", str(run))


def test_a_resumed_run_accepts_its_own_flags_and_may_train_longer(run, parse):
    config = parse("--resume", str(run), "--num-heads", "4", "--corpus", "mini:9", "--epochs", "99",
                   "--max-steps", "7", "--keep-checkpoints", "1")  # fmt: skip
    changes = {"epochs": 99, "max_steps": 7, "keep_checkpoints": 1, "resume": str(run)}
    assert config == dataclasses.replace(records.load_config(run), **changes)
    assert config.num_heads == 4


def test_only_some_settings_of_a_resumed_run_can_change(run, parse):
    names = "epochs max_steps validate_every strategy keep_checkpoints"
    names += " resume accept_changes runs_dir cache_dir"
    assert {*MAY_CHANGE_ON_RESUME} == {*names.split()}
    for field in FIELDS:
        name, kinds = "--" + field.name.replace("_", "-"), get_args(HINTS[field.name])
        if field.default is True:
            words = ["--no-" + name[2:]]
        elif field.default is False:
            words = [name]
        elif "Literal" in str(HINTS[field.name]):
            words = [name, next(x for x in kinds if x != field.default)]
        else:
            words = [name, "3" if field in NUMBERS else "other"]
        if field.name not in MAY_CHANGE_ON_RESUME:
            line = parse("--resume", str(run), *words)
            assert re.search(rf"--(no-)?{name[2:]}", line) and str(run) in line
