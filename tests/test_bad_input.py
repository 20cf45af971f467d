"""Files that other programs wrote are read completely or rejected in one line."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evaluation.command_line import CHUNK_BYTES, read_lines
from same_code import normalized_code
from training import command_line, records
from training.records import checkpoint_folder
from utils import UserError


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"a", b"a\r\n\n", b"a\rb\n\r", b"\xef\xbb\xbfa\n", b"a\xff\nb", b"\0\n",
     "a\x1cb\x85c\u2028\u2581🙂 \né".encode(), "aé".encode()[:-1]],
)  # fmt: skip
def test_a_file_to_translate_keeps_its_lines(capsys, tmp_path, content):
    (tmp_path / "lines.txt").write_bytes(content)
    with open(tmp_path / "lines.txt", "rb") as file:
        lines = [line for chunk in read_lines(file) for line in chunk]
    content = content.removeprefix(b"\xef\xbb\xbf")
    assert len(lines) == content.count(b"\n") + (content[-1:] not in (b"\n", b""))
    assert all("\n" not in line for line in lines)
    valid = content.decode("utf-8", "replace").encode() == content
    assert ("not valid UTF-8" in capsys.readouterr().err) == (not valid)


def test_lines_are_translated_as_soon_as_they_arrive():
    """Whatever parts of lines and characters arrive; a last line needs no line feed."""
    start = time.monotonic()
    reader, writer = os.pipe()
    with open(reader, "rb") as file:
        chunks = read_lines(file)
        for part, expected in (
            (b"a\n", ["a"]),
            ("é\n\nã".encode()[:-1], ["é", ""]),
            ("ã\r\nb\nc".encode()[1:], ["ã", "b"]),
        ):
            os.write(writer, part)
            assert next(chunks) == expected
        os.write(writer, b"d")
        os.close(writer)
        assert list(chunks) == [["cd"]]
    assert time.monotonic() - start < 5


def test_a_single_string_is_not_a_list_of_texts():
    """Each of its characters would be translated."""
    from evaluation.translator import Translator  # here, because it imports TensorFlow

    translator = object.__new__(Translator)
    for function in (translator.translate, translator.n_best):
        with pytest.raises(UserError, match="list of texts"):
            function("a string")


def test_much_text_is_read_at_once():
    """Whatever the parts in which it arrives: samples depend on it."""
    reader, writer = os.pipe()
    lines = [str(i) for i in range(200_000)]

    def write():
        with open(writer, "w") as file:
            for line in lines:
                file.write(line + "\n")

    with open(reader, "rb") as file, ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        chunks = list(read_lines(file, fixed_size=True))
    assert sum(chunks, []) == lines
    sizes = [sum(len(line) + 1 for line in chunk) for chunk in chunks]
    assert all(abs(size - CHUNK_BYTES) < 10 for size in sizes[:-1]) and len(sizes) == 3


def test_a_run_resumes_with_the_directories_of_the_command_line(tmp_path):
    """The directories in its config.json may be those of another machine."""
    text = '{"corpus": "mini:9", "name": "run", "cache_dir": "/other", "runs_dir": "/other"}'
    (tmp_path / "config.json").write_text(text)
    resumed = command_line.resume_config({"resume": str(tmp_path)})
    assert (resumed.cache_dir, resumed.runs_dir) == (".cache", "runs")
    resumed = command_line.resume_config({"resume": str(tmp_path), "cache_dir": "/mine"})
    assert resumed.cache_dir == "/mine"


def test_more_epochs_are_not_limited_by_the_steps_of_the_former_command(tmp_path):
    (tmp_path / "config.json").write_text('{"corpus": "mini:9", "max_steps": 3, "epochs": 2}')
    flags = {"resume": str(tmp_path)}
    assert command_line.resume_config(flags).max_steps == 3
    assert command_line.resume_config(flags | {"epochs": 2}).max_steps == 3
    assert command_line.resume_config(flags | {"epochs": 4}).max_steps is None
    assert command_line.resume_config(flags | {"epochs": 4, "max_steps": 9}).max_steps == 9


@pytest.mark.parametrize(
    ("name", "reason"),
    [("[a] b", "rename"), ("a*", "rename"), ("a?", "rename"), ("a\\b", "rename"),
     ("caf\udce9", "not UTF-8")],
)  # fmt: skip
def test_a_path_that_tensorflow_cannot_use_is_rejected(tmp_path, name, reason):
    """It reads some as patterns, and would report checkpoints in others as damaged."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"corpus": "mini:9"}')
    with pytest.raises(UserError, match=reason):
        records.load_config(folder)
    for flags in ({"resume": str(folder)}, {"corpus": "mini:9", "runs_dir": str(folder)}):
        with pytest.raises(UserError, match=reason):
            command_line.config_from_flags(flags)


def test_a_file_without_a_needed_key_is_damaged(tmp_path):
    (tmp_path / "corpus.json").write_text("{}")
    with pytest.raises(UserError, match="corpus.json is damaged: it has no 'splits'"):
        records.read_json(tmp_path / "corpus.json", "splits", "languages")


def test_a_run_that_has_ended_no_epoch_can_be_trained_longer(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="start a new run"):
        checkpoint_folder(tmp_path)
    (tmp_path / "checkpoints" / "ckpt-0.index").touch()
    (tmp_path / "checkpoints" / "unfinished").mkdir()
    (tmp_path / "checkpoints" / "unfinished" / "ckpt-5.index").touch()
    best, two = {"checkpoint": "best"}, {"average": 2}
    cases = (two, "0 finished epochs.*--epochs N"), (best, "continue"), (best | two, "either")
    for which, advice in cases:
        with pytest.raises(UserError, match=advice):
            checkpoint_folder(tmp_path, **which)


def test_no_line_of_json_is_lost(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    assert records.read_json_lines(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    with pytest.raises(UserError, match="results.jsonl:2: not valid JSON"):
        records.read_json_lines(path)


def test_docstrings_and_comments_are_not_part_of_the_code():
    code = "{0}\nclass A:\n    {0}\n    size = 1\n\n    async def f(self):\n        {0}\n"
    code += '        return "text"\n'
    versions = {normalized_code(code.format(x).encode()) for x in ('"One."', '"Two."', "# Three")}
    assert len(versions) == 1 and "text" in versions.pop()


def test_code_that_cannot_be_parsed_is_compared_as_text():
    for text in (b"x = " + b"1+" * 9000 + b"1", b"def f(:", b"\0"):
        assert normalized_code(text) != normalized_code(text + b" ")
