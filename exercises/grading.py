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

SECONDS = 60  # per exercise, for loops that never end
FLAGS = ("-o", "addopts=", "-m", "not slow", "--tb=short", "--continue-on-collection-errors")
MARK = re.compile(r"^@pytest\.mark\.exercise\((.*)\)\ndef (\w+)", re.MULTILINE)


def tests_of(name: str) -> dict[str, list[str]]:
    """Return the functions that grade an exercise, by module of tests/."""
    modules = {}
    for path in sorted(ROOT.glob("tests/test_*.py")):
        marks = MARK.findall(path.read_text("utf-8"))
        if chosen := [function for names, function in marks if f'"{name}"' in names]:
            modules[path.stem] = chosen
    return modules


def grade(folder: Path, names: list[str]) -> dict[str, str]:
    """Return what is wrong by exercise, "" if all tests pass. Raises UserError and OSError."""
    tests = {name: tests_of(name) for name in names}
    pairs = dict.fromkeys((file, x) for each in tests.values() for file in each for x in each[file])
    with tempfile.TemporaryDirectory() as scratch:
        report, limit = Path(scratch) / "report.xml", SECONDS * len(names)
        command = [sys.executable, "-m", "pytest", *FLAGS, f"--junitxml={report}"]
        command += [f"tests/{file}.py::{function}" for file, function in pairs]
        try:
            done = subprocess.run(command, cwd=folder, timeout=limit, capture_output=True)
        except subprocess.TimeoutExpired:
            raise UserError(f"no end after {limit} seconds: does a loop never stop?") from None
        if not report.exists():
            text = (done.stderr or done.stdout).decode("utf-8", "replace")
            raise UserError(f"pytest failed: {text[-300:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {name: first_mistake(name, tests[name], cases) for name in names}


def first_mistake(name: str, tests: dict[str, list[str]], cases: list) -> str:
    """Return the sentence of one failed test of an exercise, if possible one that names why."""
    texts = []
    for file, functions in tests.items():
        own = [x for x in cases if x.get("classname") == f"tests.{file}"]
        own = [x for x in own if x.get("name").partition("[")[0] in functions]
        own += [x for x in cases if x.get("name") == f"tests.{file}"]  # an import failed
        texts += [sentence(name, case) for case in own] or [f"{file}.py did not run"]
    named = [text for text in texts if text.startswith("Mistake")]
    first = next(filter(None, named + texts), "")
    return re.sub("^(Mistake|AssertionError): ", "", first)


def sentence(name: str, case: ElementTree.Element) -> str:
    """Return why a test failed, in one sentence, or "" if it passed."""
    failure = next((x for x in case if x.tag in ("failure", "error")), None)
    if failure is None:
        return ""
    errors = re.findall("^E   (.*)", failure.text, re.MULTILINE) or [failure.get("message")]
    error = errors[-1 if "collection" in failure.get("message") else 0].strip()
    kind, _, text = error.partition(": ")
    kind, text = kind.split(".")[-1], text.strip()
    if text.startswith("exercise "):  # of `Function.blank`
        return "not written yet" if text == f"exercise {name}" else f"first do {text}"
    if text and kind in ("Mistake", "AssertionError"):
        return f"{kind}: {text}"
    if kind.lower().startswith("assert"):
        fact = case.get("name").partition("[")[0].removeprefix("test_").replace("_", " ")
        return f"it does not hold that {fact}"
    code = " ".join(EXERCISES[name]["code"])
    places = re.findall(r"^(\S+\.py):(\d+): ", failure.text, re.MULTILINE)
    where = [f" ({file}, line {line})" for file, line in places if file in code]
    return f"{kind}: {text}{where[-1] if where else ''}"
