"""What others have written is data: taken whole, or refused in a sentence, and nothing else.

By the hundred thousand: python -m tests.fuzz.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import config
import evaluate
from config import Config
from evaluation.inside import metrics_of
from training import records
from training.checkpoints import rewrite_checkpoint_list
from training.provenance import code

settings.register_profile(
    "suite", max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example writes it anew
)  # fmt: skip
settings.load_profile("suite")

# Bytes as a text editor, a crash or an enemy leaves them.
BYTES = st.one_of(
    st.binary(max_size=60),
    st.text(st.sampled_from("aé\t\n\r\0\x1c\x85\u2028\u2581🙂 "), max_size=30).map(str.encode),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
)  # fmt: skip
DEEP = b"[" * 100_000  # deeper than Python's stack


def one_line(error):
    """Whether an error is a sentence in one line."""
    return str(error).strip() and len(str(error).splitlines()) == 1


@given(BYTES)
def test_a_file_to_translate_keeps_its_lines(tmp_path, capsys, content):
    (tmp_path / "lines.txt").write_bytes(content)
    lines = evaluate.read_lines(str(tmp_path / "lines.txt"))
    content = content.removeprefix(b"\xef\xbb\xbf")
    assert len(lines) == content.count(b"\n") + (content[-1:] not in (b"\n", b""))
    assert ("not all UTF-8" in capsys.readouterr().err) == (b"\xff" in content or not utf8(content))


def utf8(raw):
    try:
        return bool(raw.decode()) or True
    except UnicodeDecodeError:
        return False


MEMORY_HINT = st.dictionaries(
    st.sampled_from(list(Config.__dataclass_fields__)) | st.text(max_size=5), JSON
)


@given(MEMORY_HINT.map(lambda knobs: json.dumps(knobs).encode()) | BYTES)
@example(DEEP)
@example(b'{"epochs": ' + b"9" * 5000 + b"}")
@example(b'{"corpus": "\\ud800"}')
@example(b'{"a\\nb": 1}')
def test_a_configuration_is_a_config_or_one_sentence(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    try:
        assert isinstance(config.read(tmp_path), Config)
    except ValueError as error:
        assert one_line(error) and "config.json" in str(error)


LINE = st.dictionaries(st.sampled_from(["step", "loss", "epoch"]), JSON | st.integers(1, 9))


@given(st.lists(LINE.map(lambda line: json.dumps(line).encode()) | BYTES, max_size=3))
@example([DEEP])
@example([b'{"step": 1e999}'])
@example([b'{"loss": 1}'])
@example([b"3"])
@example([b'{"step": 1, "loss": "x"}'])
@example([b'{"step": 1, "loss": 1' + b"0" * 400 + b"}"])
@example([b'{"step": 1, "loss": NaN}'])
def test_metrics_are_numbers_by_step_or_one_sentence(tmp_path, lines):
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    try:
        found = metrics_of(tmp_path)
    except ValueError as error:
        assert one_line(error) and "metrics.jsonl" in str(error)
        return
    assert len(found) == sum(line.count(b"\n") + 1 for line in lines)
    assert all(1 <= line["step"] < 2**31 for line in found)
    assert all(abs(float(value)) < 1e309 for line in found for value in line.values())


def test_a_line_of_metrics_that_is_still_being_written_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    assert metrics_of(tmp_path) == [{"step": 1}]


@given(JSON)
def test_a_hash_is_looked_for_in_whatever_there_is(tmp_path, value):
    (tmp_path / "corpus.json").write_text(json.dumps({"splits": value}))
    evaluate.recorded(tmp_path, "test")
    (tmp_path / "corpus.json").write_text('{"splits": {"test": {"sha256": "abc"}}}')
    assert evaluate.recorded(tmp_path, "test") == "abc"


WORDS = st.sampled_from(
    [*map(config.flag, Config.__dataclass_fields__), "--help", "--", "--no-reverse", "-1"]
) | st.text(st.characters(exclude_characters="\0", max_codepoint=0x300), max_size=5)


@given(st.lists(WORDS, max_size=5))
@example(["a\nb"])
@example(["--corpus", "\udcff"])
def test_a_command_line_is_a_config_or_one_sentence(capsys, words):
    was, sys.argv = sys.argv, ["train.py", *words]
    try:
        assert isinstance(config.from_flags("", lambda *_: None), Config)
    except SystemExit as error:
        err = capsys.readouterr().err
        assert "--help" in words if not error.code else error.code == 2
        assert not error.code or (err.startswith("error: ") and err.count("\n") == 1)
    finally:
        sys.argv = was
        capsys.readouterr()


def test_bytes_on_a_command_line_that_are_no_text_are_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "run", "--translate", "ol\udce1"])  # Latin-1
    assert evaluate.from_flags().translate == "ol\ufffd"
    assert "--translate is not all UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("inside", [".", "checkpoints/best"])
@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("/etc"), lambda path: path.symlink_to("nowhere"), os.mkfifo],
    ids=["a link", "a dead link", "a pipe"],
)
def test_a_run_folder_with_ways_out_is_refused(tmp_path, evaluate_here, inside, make):
    run = tmp_path / "run"
    (run / inside).mkdir(parents=True)
    (run / "config.json").write_text("{}")
    records.check_folder(run)
    (tmp_path / "link").symlink_to(run)  # to have one's own run elsewhere is fine
    records.check_folder(tmp_path / "link")
    make(run / inside / "thing")
    status, out, err = evaluate_here(run, "--translate", "a")
    assert (status, out) == (2, "") and "thing is " in err and err.count("\n") == 1


def test_a_strangers_run_does_not_say_where_to_keep_things(tmp_path, monkeypatch):
    text = '{"corpus": "mini:9", "name": "run", "cache_dir": "/theirs", "runs_dir": "/theirs"}'
    (tmp_path / "config.json").write_text(text)
    resumed = config.resumed({"resume": str(tmp_path)})
    assert (resumed.cache_dir, resumed.runs_dir) == (".cache", "runs")
    mine = config.resumed({"resume": str(tmp_path), "cache_dir": "/mine"})
    assert mine.cache_dir == "/mine"


def test_only_checkpoints_of_the_folder_are_ever_deleted(tmp_path):
    """TensorFlow's manager deletes the oldest that its list names, wherever it lies."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    model = tf.Module()
    model.weight = tf.Variable(1.0)
    precious = tf.train.Checkpoint(model=model).write(str(mine / "precious"))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), theirs, max_to_keep=2)
    for step in (9, 10):
        manager.save(checkpoint_number=step)
    listed = (theirs / "checkpoint").read_text()
    (theirs / "checkpoint").write_text(f'all_model_checkpoint_paths: "{precious}"\n' + listed)
    rewrite_checkpoint_list(theirs)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), theirs, max_to_keep=2)
    manager.save(checkpoint_number=11)
    assert (mine / "precious.index").exists()
    assert sorted(path.name for path in theirs.glob("*.index")) == [
        "ckpt-10.index",
        "ckpt-11.index",
    ]
    rewrite_checkpoint_list(tmp_path / "theirs")
    assert tf.train.latest_checkpoint(theirs).endswith("ckpt-11")


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path, monkeypatch):
    """As root everything can be: so it is said to be as it is for others."""
    (tmp_path / "attention").mkdir()

    def scandir(path):
        if Path(path).name == "attention":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ValueError, match="attention: Permission denied"):
        records.check_folder(tmp_path)


def test_code_that_no_parser_can_read_is_compared_as_text(tmp_path):
    for text in ("x = " + "1+" * 9000 + "1", "-" * 99_999 + "1", "def f(:", "\0"):
        (tmp_path / "a.py").write_text(text)
        (tmp_path / "b.py").write_text(text + " ")
        assert code(tmp_path / "a.py") != code(tmp_path / "b.py")
