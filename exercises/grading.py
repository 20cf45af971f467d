"""Run the tests of exercises in one process, and say in one sentence what is wrong."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from exercises.source import EXERCISES
from same_code import ROOT
from utils import UserError

SECONDS = 300  # after which tests are stopped: a loop may never end
FLAGS = ("-o", "addopts=", "-m", "not slow", "--tb=short", "--continue-on-collection-errors")
MARK = re.compile(r"^@pytest\.mark\.exercise\((.*)\)\ndef (\w+)", re.MULTILINE)


def graded_by(name: str) -> list[str]:
    """Return the tests that grade an exercise, such as "tests/test_masks.py::test_name"."""
    files = {path: path.read_text("utf-8") for path in sorted(ROOT.glob("tests/test_*.py"))}
    marks = [(path, *mark) for path, text in files.items() for mark in MARK.findall(text)]
    return [f"tests/{path.name}::{test}" for path, names, test in marks if f'"{name}"' in names]


def grade(folder: Path, names: list[str]) -> dict[str, str]:
    """Return what is wrong by exercise, "" if all tests pass. Raises UserError and OSError."""
    tests = {name: graded_by(name) for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", *FLAGS, f"--junitxml={report}"]
        command += dict.fromkeys(test for each in tests.values() for test in each)
        try:
            done = subprocess.run(command, cwd=folder, timeout=SECONDS, capture_output=True)
        except subprocess.TimeoutExpired:
            raise UserError(f"no end after {SECONDS} seconds: does a loop never stop?") from None
        if not report.exists():
            raise UserError(f"pytest failed: {done.stderr.decode('utf-8', 'replace')[-300:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {name: first_mistake(name, tests[name], cases) for name in names}


def first_mistake(name: str, tests: list[str], cases: list[ElementTree.Element]) -> str:
    """Return the sentence of one failed test of an exercise, if possible one that names why."""
    texts = []
    for test in tests:
        module, _, function = test.replace("/", ".").partition(".py::")
        own = [x for x in cases if x.get("name") == module]  # it could not be imported
        for case in cases:
            if (case.get("classname"), case.get("name").partition("[")[0]) == (module, function):
                own.append(case)
        texts += [sentence(name, case) for case in own] or [f"{test} did not run"]
    named = [text for text in texts if text.startswith("Mistake")]
    first = next(filter(None, named + texts), "")
    return re.sub("^(Mistake|AssertionError): ", "", first)


def sentence(name: str, case: ElementTree.Element) -> str:
    """Return why a test failed, in one sentence, or "" if it passed."""
    failure = next((x for x in case if x.tag in ("failure", "error")), None)
    if failure is None:
        return ""
    errors = re.findall("^E   (.*)", failure.text, re.MULTILINE) or [failure.get("message")]
    error = re.sub("{{.*?}} ", "", errors[-1 if "collection" in failure.get("message") else 0])
    kind, _, text = error.partition(":")
    if not kind.startswith("assert "):
        kind = kind.rpartition(".")[2]
    kind, text = kind.strip(), text.strip()
    if text.startswith("exercise "):  # of `Function.blank`
        return "not written yet" if text == f"exercise {name}" else f"first do {text}"
    if kind.startswith("assert ") or (kind == "AssertionError" and text[:7] in ("", "assert ")):
        fact = case.get("name").partition("[")[0].removeprefix("test_").replace("_", " ")
        return f"it does not hold that {fact}"
    if kind in ("Mistake", "AssertionError"):
        return f"{kind}: {text}"
    places = re.findall(r"^(\S+\.py):(\d+): ", failure.text, re.MULTILINE)
    places = [x for x in places if x[0] in str(EXERCISES[name]["code"])]
    return f"{kind}: {text}" + (" ({}, line {})".format(*places[-1]) if places else "")
