"""Exercises: functions are removed and graded, and a failed test says why in one sentence."""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from expect import Mistake, expect

from exercises.__main__ import show_solution, start
from exercises.grading import MARK, grade, graded_by, sentence
from exercises.source import EXERCISES, PREDICTIONS, find_function
from same_code import ROOT
from utils import UserError

CODE = [(name, code) for name, exercise in EXERCISES.items() for code in exercise["code"]]
PROGRAM = "exercises/__main__.py"
MASKS = "model/masks.py:look_ahead_mask"


@pytest.fixture
def started(tmp_path, run_program):
    """A learner's directory in which one exercise was started."""
    folder = tmp_path / "mine"
    assert run_program(PROGRAM, "start", "look-ahead-mask", "--dir", folder).status == 0
    return folder


# ---- expect -------------------------------------------------------------------------------------


def test_a_difference_is_explained_by_the_mistake_that_leads_to_it():
    right = np.tri(3, dtype=bool)
    mistakes = {"transposed": right.T, "numbers": right.astype(int), "flagged": True}
    expect(right, right, mistakes)
    for actual, name in ((right.T, "transposed"), (np.tri(3), "numbers"), (right[0], "flagged")):
        with pytest.raises(Mistake, match=f"^{name}$"):
            expect(actual, right, mistakes)


@pytest.mark.parametrize(
    ("actual", "keyword"),
    [([1.0, 3.0], r"\[1\]: 3 instead of 2"), ([[1.0, 2.0]], "shape"), ([1, np.nan], "nan")],
)
def test_other_differences_are_described(actual, keyword):
    with pytest.raises(AssertionError, match=keyword) as error:
        expect(actual, [1.0, 2.0], {"other": [5.0, 6.0], "not made": False})
    assert not isinstance(error.value, Mistake)


# ---- The program --------------------------------------------------------------------------------


def test_every_exercise_has_a_section_and_tests_and_every_mark_an_exercise():
    walkthrough = (ROOT / "docs/walkthrough.md").read_text("utf-8")
    sections = re.findall("^## (.*)", walkthrough, re.MULTILINE)
    anchors = {section.lower().replace(" ", "-") for section in sections}
    for name, exercise in EXERCISES.items():
        assert exercise["section"] in anchors and graded_by(name), name
    marks = [x for path in ROOT.glob("tests/*.py") for x in MARK.findall(path.read_text("utf-8"))]
    assert {name for names, _ in marks for name in re.findall('"(.+?)"', names)} == {*EXERCISES}
    marked = [path.read_text("utf-8").count("mark.exercise(") for path in ROOT.glob("tests/*.py")]
    assert sum(marked) == len(marks) + 1  # the mark is the last decorator; one is in this line


def test_functions_are_removed_and_the_solution_is_the_projects_code(tmp_path, capsys):
    folder = tmp_path / "mine"
    start(folder, {}, [*EXERCISES])
    for name, code in CODE:
        function, ours = find_function(folder, code), find_function(ROOT, code)
        assert function.head == ours.head
        assert f'raise NotImplementedError("exercise {name}")' in function.body
        assert function.body.count("\n") <= 1 + ours.body.count("# (")
    scores = find_function(folder, CODE[5][1]).body
    assert "    # scores: (…, query_len, key_len)\n" in scores
    for name in EXERCISES:
        show_solution(folder, name, apply=True)
    for _, code in CODE:
        file = code.partition(":")[0]
        assert (folder / file).read_bytes() == (ROOT / file).read_bytes()
    assert "-    raise NotImplementedError" in capsys.readouterr().out


def test_exercises_are_listed_with_those_started(started, run_program):
    lines = run_program(PROGRAM, "--dir", started).out.splitlines()
    assert [line[8:].split()[0] for line in lines[:-1]] == [*EXERCISES]
    assert [line.split()[1] for line in lines if line.startswith("started")] == ["look-ahead-mask"]


def test_without_a_name_the_next_exercise_is_started(started, run_program):
    assert "plan_pairs" in run_program(PROGRAM, "start", "--dir", started).out


@pytest.mark.parametrize(
    ("flags", "keyword"),
    [
        (["start", "look-ahead-mask"], "already"),
        (["start", "lok-ahead-mask"], "look-ahead-mask"),
        (["check", "--dir", "nowhere"], "start"),
        (["start", "--dir", "."], "--dir"),
        (["solution"], "name"),
    ],
)
def test_errors_are_one_sentence(started, run_program, flags, keyword):
    folder = [] if "--dir" in flags else ["--dir", started]
    result = run_program(PROGRAM, *flags, *folder)
    assert result.status == 2 and keyword in result.err and result.err.count("\n") == 1


def test_the_learners_copy_has_no_exercises_of_its_own(started):
    command = [sys.executable, "-m", "exercises", "check"]
    done = subprocess.run(command, cwd=started, capture_output=True, text=True)
    assert done.returncode == 2 and "not in your copy" in done.stderr


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (b"def look_ahead_mask(n): return 1\n", "line of its own"),
        (b"def look_ahead_mask(\n    n,\n): return 1\n", "line of its own"),
        (b"def look_ahead_mask(\n    n\n) -> int: return 1\n", "line of its own"),
        (b'def look_ahead_mask(n):\n    """D."""; return 1\n', "line of its own"),
        (b"# caf\xe9\n", "UTF-8"),
    ],
)
def test_a_function_that_cannot_be_replaced_is_kept(tmp_path, content, keyword):
    (tmp_path / "masks.py").write_bytes(content)
    with pytest.raises(UserError, match=keyword):
        find_function(tmp_path, "masks.py:look_ahead_mask")


def test_answers_are_compared_with_stored_verdicts(run_program, tmp_path):
    from ablation.experiments import recipes
    from ablation.tables import Table

    verdicts = [Table(recipes()[recipe]).verdicts[x] for x, (recipe, _) in PREDICTIONS.items()]
    answers = "".join(f"{verdict.outcome[0]}\n" for verdict in verdicts)
    out = run_program(PROGRAM, "predict", stdin=b"\n" + answers[2:].encode()).out
    assert "5 of 6" in out and all(verdict.numbers in out for verdict in verdicts)
    result = run_program(PROGRAM, "predict", stdin=answers[:2].encode())  # and no more
    assert result.status == 0 and "1 of 6" in result.out


def test_what_was_not_started_does_not_pass(started, run_program):
    """The directory has the project's own function."""
    result = run_program(PROGRAM, "check", "positions", "--json", "--dir", started)
    assert result.status == 1 and json.loads(result.out) == {"positions": "not started"}
    assert "positions" not in json.loads((started / "exercises.json").read_text())


# ---- What a test says ---------------------------------------------------------------------------


def failed(error, place="model/masks.py", message=""):
    """Return a failed test as in pytest's report."""
    case = ElementTree.Element("testcase", name="test_a_row_sums_to_1[x]", classname="tests.test_a")
    failure = ElementTree.SubElement(case, "failure", message=message or error)
    failure.text = f"{place}:27: in look_ahead_mask\n    x = 1\nE   {error}\nE   more\n"
    return case


@pytest.mark.parametrize(
    ("case", "keyword"),
    [
        (failed("expect.Mistake: the mask is upside down"), "the mask is upside down"),
        (failed("AssertionError: 3 values are wrong"), "3 values are wrong"),
        (failed("AssertionError: "), "a row sums to 1"),
        (failed("assert 1 == 2: 3"), "a row sums to 1"),
        (failed("assert <tf.Tensor: shape=(3,)> > 0.95"), "a row sums to 1"),
        (failed("AssertionError: assert 1 == 2"), "a row sums to 1"),
        (failed("NotImplementedError: exercise look-ahead-mask"), "not written yet"),
        (failed("NotImplementedError: exercise attention"), "first do exercise attention"),
        (failed("TypeError: no"), "TypeError: no (model/masks.py, line 27)"),
        (failed("TypeError: no", place="model/loss.py"), "TypeError: no"),
        (failed("x.InvalidArgumentError: {{node}} bad"), "InvalidArgumentError: bad"),
    ],
)
def test_a_failed_test_is_one_sentence(case, keyword):
    text = sentence("look-ahead-mask", case)
    assert keyword in text and "\n" not in text


@pytest.mark.slow
def test_a_mistake_and_a_syntax_error_are_reported(started, run_program):
    mask = find_function(started, MASKS)
    mask.replace("    return tf.range(length)[start:, tf.newaxis] <= tf.range(length)\n")
    (started / "tests" / "test_masks.py").write_text("")  # does not help
    result = run_program(PROGRAM, "check", "--json", "--dir", started)
    assert result.status == 1
    assert "upside down" in json.loads(result.out)["look-ahead-mask"]
    mask.replace("    return tf.range(length) <=\n")
    result = run_program(PROGRAM, "check", "--dir", started)
    assert result.status == 2 and "model/masks.py, line" in result.err


@pytest.mark.slow
def test_every_exercise_fails_without_its_body_and_passes_with_the_solution(tmp_path):
    """In two processes at a time; together in at most three minutes on two idle cores."""

    def work(part):
        folder, names = tmp_path / str(part), [*EXERCISES][part::2]
        start(folder, {}, names)
        failed = grade(folder, names)
        for name in names:
            show_solution(folder, name, apply=True)
        return failed, grade(folder, names)

    begin = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        (failed, passed), (other_failed, other_passed) = pool.map(work, range(2))
    print(f"{time.perf_counter() - begin:.0f} s")
    failed |= other_failed
    assert failed.keys() == EXERCISES.keys()
    assert all(re.match("not written yet|first do exercise", text) for text in failed.values())
    assert list(failed.values()).count("not written yet") > len(EXERCISES) / 2
    assert passed | other_passed == dict.fromkeys(EXERCISES, "")
