"""The flags: their help, and what is refused, in one line, before TensorFlow is loaded."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import config
from config import Config
from data import corpora

ROOT = Path(__file__).resolve().parents[1]
FIELDS = dataclasses.fields(Config)


@pytest.fixture
def train(tmp_path):
    """Runs train.py in a process that cannot import TensorFlow."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def run(*flags):
        command = [sys.executable, str(ROOT / "train.py"), *flags]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8"
        )

    return run


@pytest.fixture
def parse(monkeypatch, capsys):
    """What a command line asks for: a Config, or the line that refuses it."""

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        try:
            return config.from_flags("", corpora.check)
        except SystemExit as error:
            assert error.code == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and err.endswith("\n")
            return err

    return run


# ---- Help ---------------------------------------------------------------------------------------


def test_help_tells_every_knob_its_default_and_what_it_does_without_tensorflow(train):
    answer = train("--help")
    assert answer.returncode == 0 and answer.stderr == ""
    entries = re.split(r"\n  (?=--)", answer.stdout)
    for field in FIELDS:
        flag = "--" + field.name.replace("_", "-")
        (entry,) = [entry for entry in entries if re.match(rf"{flag}[ ,]", entry)]
        # Its line of flags and values, then the sentence, then the default, where there is one.
        assert len(re.findall(r"\b[a-z]{2,}\b", entry.replace(flag, ""))) >= 3
        assert field.default is None or f"[{field.default}]" in entry


# ---- From a command line to a Config ------------------------------------------------------------


def test_without_flags_every_field_has_its_default(parse):
    assert parse() == Config()


def test_a_flag_sets_its_field(parse):
    given = parse("--num-layers", "2", "--dropout-rate", "0", "--no-tie-embeddings", "--reverse",
                  "--norm", "post", "--max-steps", "7")  # fmt: skip
    assert given == Config(
        num_layers=2, dropout_rate=0.0, tie_embeddings=False, reverse=True, norm="post", max_steps=7
    )


def test_heads_share_d_model_evenly_unless_told_otherwise(parse):
    assert parse("--d-model", "48", "--num-heads", "6").key_dim == 8
    assert parse("--d-model", "50", "--num-heads", "6", "--key-dim", "16").key_dim == 16


# ---- What is refused ----------------------------------------------------------------------------

IMPOSSIBLE = [
    "--d-model 100",  # not divisible by the 8 heads
    "--d-model 15 --num-heads 3",  # odd: a sine without its cosine
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
    "--dropout-rate 1",  # nothing would be left to scale up
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
    "--name ..",
    "--name=",
    "--corpus nosuch",
    "--corpus nosuch.tsv",
    "--corpus mini:none",
    "--resume nosuch",
    "--no-such-flag",
    "--no-epochs",
    "surplus",
]


@pytest.mark.parametrize("flags", IMPOSSIBLE)
def test_what_cannot_be_is_refused_in_one_line_that_names_it(parse, flags):
    line = parse(*flags.split())
    assert line.startswith("error: ")
    # The flag or, where it has none, the thing itself.
    assert re.split("[ =]", flags)[0] in line or flags.split()[-1] in line


@pytest.mark.parametrize("flags", ["--epoch 3", "--d 64", "--drop 0.1", "--no-rev", "--seeds 1"])
def test_a_flag_is_written_out(parse, flags):
    """Abbreviations would change their meaning with the next flag that is added."""
    assert flags.split()[0] in parse(*flags.split())


@pytest.mark.parametrize(
    "flags", ["--d-model 100", "--epochs -1", "--corpus nosuch", "--nosuch", "--resume nosuch"]
)
def test_a_mistake_is_answered_before_tensorflow_loads(train, flags):
    answer = train(*flags.split())
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1


# ---- A run's own config.json --------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run folder that holds only its configuration."""
    text = json.dumps(dataclasses.asdict(Config(corpus="mini:9", name="run", num_heads=4)))
    (tmp_path / "config.json").write_text(text)
    return tmp_path


def test_a_run_keeps_its_configuration(run):
    assert config.read(run) == Config(corpus="mini:9", name="run", num_heads=4)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"no_such_knob": 1}', '{"epochs": "two"}', '{"reverse": 1}',
             '{"d_model": 100}', '{"dropout_rate": NaN}', '{"norm": null}'],
)  # fmt: skip
def test_an_unusable_configuration_is_named_in_one_line(run, parse, text):
    (run / "config.json").write_text(text)
    assert str(run / "config.json") in parse("--resume", str(run))


def test_a_resumed_run_may_be_given_what_it_already_has(run, parse):
    given = parse("--resume", str(run), "--num-heads", "4", "--corpus", "mini:9", "--seed", "0")
    assert given == dataclasses.replace(config.read(run), resume=str(run))


def test_a_resumed_run_may_last_longer(run, parse):
    given = parse("--resume", str(run), "--epochs", "99", "--max-steps", "7",
                  "--keep-checkpoints", "1")  # fmt: skip
    assert (given.epochs, given.max_steps, given.keep_checkpoints) == (99, 7, 1)
    assert given.num_heads == 4


OTHER = {
    "corpus": "mini:8", "reverse": None, "vocab_size": 999, "shared_vocabulary": False,
    "lowercase": None, "max_length": 9, "batch_tokens": 9, "batch_sentences": 9, "num_layers": 9,
    "d_model": 64, "num_heads": 2, "key_dim": 9, "dff": 9, "dropout_rate": 0.5, "norm": "post",
    "positions": "none", "tie_embeddings": False, "label_smoothing": 0.5, "warmup_steps": 9,
    "learning_rate_scale": 0.5, "precision": "bfloat16", "shards": 1, "seed": 9, "name": "other",
    "tokenizer": "word", "word_dropout": 0.5, "model": "recurrent", "recurrent_attention": "dot",
    "pooling": "max", "bigrams": 9,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_resumed_run_cannot_become_another(run, parse, name):
    flag, value = "--" + name.replace("_", "-"), OTHER[name]
    if value is None:
        line = parse("--resume", str(run), flag)
    elif value is False:
        line = parse("--resume", str(run), "--no-" + flag[2:])
    else:
        line = parse("--resume", str(run), flag, str(value))
    assert flag in line and str(run) in line


def test_every_knob_is_either_free_or_fixed_in_a_resumed_run():
    """A new field belongs into OTHER above, or is one that a resumed run may change."""
    free = {"epochs", "max_steps", "strategy", "keep_checkpoints", "resume", "accept_changes",
            "runs_dir", "cache_dir"}  # fmt: skip
    assert {field.name for field in FIELDS} == set(OTHER) | free
