"""The flags of train.py: help, defaults, and mistakes, reported before TensorFlow loads."""

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import utils
from config import MAY_CHANGE_ON_RESUME, TASKS, Config, no_effect
from training import command_line, records
from utils import UserError

ROOT = Path(__file__).resolve().parents[1]
FIELDS = dataclasses.fields(Config)


@pytest.fixture
def train(tmp_path):
    """Run train.py with another module in place of TensorFlow: the completed process."""

    def run(*flags, tensorflow="raise SystemExit('TensorFlow was imported')", **environment):
        (tmp_path / "tensorflow.py").write_text(tensorflow)
        return subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *flags],
            env=os.environ | {"PYTHONPATH": str(tmp_path)} | environment,
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )

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


def test_help_describes_every_flag_and_its_default_without_tensorflow(train):
    process = train("--help")
    assert process.returncode == 0 and process.stderr == ""
    entries = re.split(r"\n  (?=--)", process.stdout)
    for field in FIELDS:
        flag = "--" + field.name.replace("_", "-")
        (entry,) = [entry for entry in entries if re.match(rf"{flag}[ ,]", entry)]
        # The flag and its values, then a description, then the default if there is one.
        assert len(re.findall(r"\b[a-z]{2,}\b", entry.replace(flag, ""))) >= 2
        assert field.default is None or f"[{field.default}]" in entry


# ---- From a command line to a Config -------------------------------------------------------------


def test_without_flags_every_field_has_its_default(parse):
    assert parse() == Config()


def test_a_flag_sets_its_field(parse):
    config = parse("--num-layers", "2", "--dropout-rate", "0", "--no-tie-embeddings", "--reverse",
                  "--norm", "post", "--max-steps", "7")  # fmt: skip
    assert config == Config(
        num_layers=2, dropout_rate=0.0, tie_embeddings=False, reverse=True, norm="post", max_steps=7
    )


def test_heads_share_d_model_evenly_without_key_dim(parse):
    assert parse("--d-model", "48", "--num-heads", "6").head_dim == 8
    assert parse("--d-model", "50", "--num-heads", "6", "--key-dim", "16").head_dim == 16


def test_everything_that_names_models_names_the_same_ones():
    from model import MODELS  # here, because it imports TensorFlow

    choices = get_args(get_type_hints(Config)["model"])
    assert choices == tuple(TASKS) == tuple(MODELS)
    assert {name for field in FIELDS for name in field.metadata["without"]} == {*choices}
    for model in choices:
        assert set(no_effect(model)) < {field.name for field in FIELDS}
        assert Config(model=model).task == TASKS[model]


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
    "--d-model 0",
    "--num-heads 0",
    "--key-dim 0",
    "--num-layers 0",
    "--dff -5",
    "--epochs -1",
    "--epochs 1.5",
    "--epochs many",
    "--epochs",
    "--max-steps 0",
    "--dropout-rate 1.5",
    "--dropout-rate 1",  # nothing would be left to scale
    "--dropout-rate -0.1",
    "--dropout-rate nan",
    "--label-smoothing 1",
    "--learning-rate-scale inf",
    "--learning-rate-scale nan",
    "--learning-rate-scale -1",
    "--warmup-steps 0",
    "--batch-tokens 0",
    "--batch-sentences 0",
    "--max-length 0",
    "--vocab-size 100",  # fewer than there are bytes
    "--keep-checkpoints 0",
    "--seed -1",
    "--seed 99999999999999999999",
    "--norm batch",
    "--positions rotary",
    "--precision float16",
    "--model rnn",
    "--name a/b",
    "--name latest",
    "--name ..",
    "--name=",
    "--corpus nosuch",
    "--corpus nosuch.tsv",
    "--runs-dir /dev/null",
    "--cache-dir /dev/null/cache",
    "--corpus mini:none",
    "--resume nosuch",
    "--no-such-flag",
    "--no-epochs",
    "surplus",
]


@pytest.mark.parametrize("flags", INVALID)
def test_invalid_flags_are_rejected(parse, flags):
    line = parse(*flags.split())
    assert line.startswith("error: ")
    # The flag, or its value.
    assert re.split("[ =]", flags)[0] in line or flags.split()[-1] in line


@pytest.mark.parametrize("flags", ["--epoch 3", "--d 64", "--drop 0.1", "--no-rev", "--seeds 1"])
def test_flags_cannot_be_abbreviated(parse, flags):
    """Abbreviations would change their meaning with the next flag that is added."""
    assert flags.split()[0] in parse(*flags.split())


@pytest.mark.parametrize(
    "flags", ["--d-model 100", "--epochs -1", "--corpus nosuch", "--nosuch", "--resume nosuch"]
)
def test_mistakes_are_reported_before_tensorflow_loads(train, flags):
    process = train(*flags.split())
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1


@pytest.mark.parametrize(("content", "keyword"), [("", "split is empty"), ("no tab", "a.tsv:1:")])
def test_bad_corpora_are_reported_before_tensorflow_loads(train, tmp_path, content, keyword):
    (tmp_path / "a.tsv").write_text(content)
    process = train("--corpus", "a.tsv")
    assert process.returncode == 2 and keyword in process.stderr
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "keyword"),
    [
        (["--model", "recurrent", "--d-model", "7"], "--d-model"),
        (["--model", "classifier"], "mini"),
        (["--corpus", "imdb_reviews/plain_text"], "--model classifier"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(parse, flags, keyword):
    assert keyword in parse(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--train-share", "0"],
        ["--train-share", "-1"],
        ["--held-out-share", "0"],
        ["--held-out-share", "0.5"],
        ["--languages", "pt,en,fr"],
        ["--languages", "pt,pt"],
        ["--languages", "pt,"],
    ],
)
def test_bad_shares_and_languages_are_rejected(parse, flags):
    assert flags[0] in parse(*flags)


def test_a_text_may_not_look_like_a_flag(capsys):
    """A misspelt flag of a program is not read as a text."""
    parser = utils.make_parser("")
    parser.add_argument("text", nargs="*")
    for flags, hint in ((["-Olá"], True), (["--Olá"], False)):
        with pytest.raises(SystemExit):
            parser.parse_args(flags)
        assert ('must follow "--"' in capsys.readouterr().err) == hint
    assert parser.parse_args(["--", "-Olá"]).text == ["-Olá"]


def test_streams_that_are_closed_are_the_null_device(tmp_path):
    """They would otherwise be the next file that is opened."""
    code = "import os, utils; utils.prepare_streams(); print(os.open('utils.py', os.O_RDONLY) > 2)"
    command = [sys.executable, "-c", f"{code}; os.system('echo > {tmp_path}/a && echo b')"]
    for closed in ("<&-", "<&- 2>&-", "<&- >&- 2>&-"):
        shell = ["sh", "-c", f'exec "$0" "$@" {closed}', *command]
        done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == ("" if ">&- 2" in closed else "True\nb\n")
        (tmp_path / "a").unlink()


def test_files_written_at_the_same_time_do_not_disturb_each_other(tmp_path):
    code = "import sys, utils; [utils.write_text(sys.argv[1], 'text') for _ in range(500)]"
    command = [sys.executable, "-c", code, str(tmp_path / "a.txt")]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_reported_with_the_file_that_is_written(capsys):
    with pytest.raises(SystemExit), utils.errors_in_one_line():
        raise OSError(errno.ENOSPC, "No space left on device", "train.py", None, "runs/a/train.py")
    assert capsys.readouterr().err.startswith("error: runs/a/train.py: No space left")


def test_a_corpus_that_has_moved_is_named_when_a_run_is_resumed(tmp_path):
    config = dataclasses.asdict(Config(corpus=str(tmp_path / "old.tsv"), name="run"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"old\.tsv.*was trained on it.*--corpus and --accept"):
        command_line.config_from_flags({"resume": str(tmp_path)})


def test_a_flag_without_effect_is_noted(parse, capsys):
    assert parse("--model", "recurrent", "--num-heads", "4").num_heads == 4
    assert "--num-heads" in capsys.readouterr().err
    parse("--model", "recurrent", "--num-heads", "8")  # the default
    parse("--num-heads", "4")
    assert capsys.readouterr().err == ""


# ---- While TensorFlow loads ----------------------------------------------------------------------

QUIET = """
import os, sys
os.write(2, b"a line of C++ code\\n")
class config:
    list_physical_devices = lambda kind: []
sys.stderr.write("after the import\\n")
"""


def test_ctrl_c_is_not_a_traceback(train):
    process = train(
        tensorflow="import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(50)"
    )
    assert process.returncode == 130 and "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("end", "devices", "shown"),
    [("", "", False), ("", "-1", False), ("", "0", True), ("raise ImportError", "", True)],
)
def test_start_up_lines_are_shown_only_on_a_failure(train, end, devices, shown):
    """Of the import, or of finding the GPU that CUDA_VISIBLE_DEVICES names."""
    process = train(tensorflow=QUIET + end, CUDA_VISIBLE_DEVICES=devices)
    assert ("a line of C++ code" in process.stderr) == shown


# ---- Resuming: config.json of a run --------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run directory with a config.json only."""
    text = json.dumps(dataclasses.asdict(Config(corpus="mini:9", name="run", num_heads=4)))
    (tmp_path / "config.json").write_text(text)
    return tmp_path


def test_a_config_is_read_again(run):
    assert records.load_config(run) == Config(corpus="mini:9", name="run", num_heads=4)


def test_latest_is_the_run_that_started_last(tmp_path, parse):
    for time, name in enumerate(("b", "c", "a")):
        file = tmp_path / name / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps(dataclasses.asdict(Config(corpus="mini:9", name=name))))
        os.utime(file, (time, time))
    assert parse("--resume", f"{tmp_path}/latest").name == "a"
    assert records.find_run(tmp_path / "none" / "latest").name == "latest"
    (tmp_path / "latest").mkdir()
    assert records.find_run(tmp_path / "latest").name == "latest"


def test_a_misspelt_run_is_corrected(run):
    with pytest.raises(UserError, match=f"did you mean {run}"):
        records.load_config(run.with_name(run.name[:-1]))
    with pytest.raises(UserError, match="no such run directory$"):
        records.load_config(run / "quite-different")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"no_such_setting": 1}', '{"epochs": "two"}', '{"reverse": 1}',
             '{"d_model": 100}', '{"dropout_rate": NaN}', '{"norm": null}'],
)  # fmt: skip
def test_a_damaged_config_is_named(run, parse, text):
    (run / "config.json").write_text(text)
    assert str(run / "config.json") in parse("--resume", str(run))


def test_a_resumed_run_accepts_the_flags_it_was_started_with(run, parse):
    config = parse("--resume", str(run), "--num-heads", "4", "--corpus", "mini:9", "--seed", "0")
    assert config == dataclasses.replace(records.load_config(run), resume=str(run))


def test_a_resumed_run_may_train_longer(run, parse):
    config = parse("--resume", str(run), "--epochs", "99", "--max-steps", "7",
                  "--keep-checkpoints", "1")  # fmt: skip
    assert (config.epochs, config.max_steps, config.keep_checkpoints) == (99, 7, 1)
    assert config.num_heads == 4


OTHER = {
    "corpus": "mini:8", "reverse": None, "vocab_size": 999, "shared_vocabulary": False,
    "lowercase": None, "max_length": 9, "batch_tokens": 9, "batch_sentences": 9, "num_layers": 9,
    "d_model": 64, "num_heads": 2, "key_dim": 9, "dff": 9, "dropout_rate": 0.5, "norm": "post",
    "positions": "none", "tie_embeddings": False, "label_smoothing": 0.5, "warmup_steps": 9,
    "learning_rate_scale": 0.5, "precision": "bfloat16", "shards": 1, "accumulate": 2,
    "seed": 9, "name": "other", "tokenizer": "word", "word_dropout": 0.5, "model": "recurrent",
    "recurrent_attention": "dot", "pooling": "max", "validation_sentences": 9,
    "attention_dropout_rate": 0.5, "total_steps": 9, "init_from": "other", "train_share": 0.5,
    "languages": "en,pt", "held_out_share": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_settings_of_a_resumed_run_cannot_change(run, parse, name):
    flag, value = "--" + name.replace("_", "-"), OTHER[name]
    if value is None:
        line = parse("--resume", str(run), flag)
    elif value is False:
        line = parse("--resume", str(run), "--no-" + flag[2:])
    else:
        line = parse("--resume", str(run), flag, str(value))
    assert flag in line and str(run) in line


def test_every_setting_is_fixed_or_may_change_in_a_resumed_run():
    """A new field belongs to OTHER or to MAY_CHANGE_ON_RESUME."""
    assert {field.name for field in FIELDS} == set(OTHER) | set(MAY_CHANGE_ON_RESUME)


def test_a_misspelled_flag_gets_a_suggestion(parse):
    line = parse("--epoch", "3")
    assert "--epoch 3" in line and "did you mean --epochs?" in line
