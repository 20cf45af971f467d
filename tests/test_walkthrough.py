"""docs/walkthrough.md: its outputs, its verdicts, its edits and its notebook."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import build
from same_code import ROOT

PAGE = build.PAGE.read_text("utf-8")
CELLS = build.read_cells(PAGE)
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+")
LINK = r"\]\(\.\./experiments/([\w-]+/[\w-]+\.patch|flags\.toml)\)"
QUOTE = re.compile(rf"\[([\w-]+){LINK}\s*(?:>\s*)?\*\*(.+?)\*\*")
EDIT = re.compile(r"In `([\w./]+)`, replace\s`(.+?)`\swith\s`(.+?)`", re.DOTALL)


def same_output(actual: str, expected: str) -> bool:
    """Compare texts; decimals may differ by two units of the last place, as on other processors."""
    if NUMBER.sub("#", " ".join(actual.split())) != NUMBER.sub("#", " ".join(expected.split())):
        return False
    for one, other in zip(NUMBER.findall(actual), NUMBER.findall(expected), strict=True):
        decimals = len(other.partition(".")[2])
        tolerance = 2.5 * 10**-decimals if "." in other and "e" not in other else 0
        if one != other and abs(float(one) - float(other)) > tolerance:
            return False
    return True


@pytest.mark.slow
def test_the_page_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the corpus is cached here
    outputs = build.run_cells(CELLS, tmp_path)
    for cell, output in zip(CELLS, outputs, strict=True):
        place = f"{build.PAGE.name}, line {cell.line}, prints\n{output}"
        if cell.varies:
            assert len(output.splitlines()) == len(cell.output.splitlines()), place
        else:
            assert same_output(output, cell.output), place
    for picture in (picture for cell in CELLS for picture in cell.pictures):
        assert (tmp_path / picture).stat().st_size > 5000, f"{picture} is empty"


def test_every_picture_is_in_the_repository():
    pictures = [picture for cell in CELLS for picture in cell.pictures]
    assert len(pictures) == PAGE.count("](walkthrough/") == len(set(pictures)) >= 8
    for picture in pictures:
        assert (build.PAGE.parent / picture).read_bytes()[1:4] == b"PNG"


def verdicts_on_real_text(readme: str) -> dict[str, str]:
    """Return the column `spa-eng` of the tables of experiments."""
    verdicts = {}
    for table in re.findall(r"^\| experiment \|.*\n(?:\|.*\n)+", readme, re.MULTILINE):
        header, _, *rows = (line.strip("|").split(" | ") for line in table.splitlines())
        for row in rows:
            cells = dict(zip([word.strip() for word in header], row, strict=True))
            verdicts[re.search(r"\[([\w-]+)\]", row[0])[1]] = cells.get("spa-eng", "").strip()
    return {name: verdict for name, verdict in verdicts.items() if verdict}


def test_verdicts_are_those_of_the_table_of_experiments():
    verdicts = verdicts_on_real_text((ROOT / "experiments" / "RESULTS.md").read_text("utf-8"))
    links = re.findall(LINK, PAGE)
    quotes = QUOTE.findall(PAGE)
    assert len(verdicts) > 10 and len(quotes) > 20
    assert len(links) == len(quotes), "a link to an experiment has no verdict"
    for name, path, quoted in quotes:
        assert path in (f"{Path(path).parent}/{name}.patch", "flags.toml")
        verdict = verdicts.get(name, "not measured yet").partition(" [")[0]  # without the interval
        assert quoted == verdict, f"update {name} on the page"


def test_every_section_has_something_to_try_and_edits_are_of_lines_that_exist():
    sections = re.split(r"^## \d+ ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) == 21 and all("> **Try it.**" in section for section in sections)
    text = re.sub(r"\n> ?", " ", PAGE)  # without the marks of quotations
    edits = EDIT.findall(text)
    assert len(edits) == len(re.findall(r"replace\s`", text)) > 15
    for path, old, new in edits:
        source = (ROOT / path).read_text("utf-8")
        assert source.count(old) == 1, f"{path}: {source.count(old)} times {old}"
        ast.parse(source.replace(old, new))  # still Python


def test_links_of_all_documents_lead_to_files_and_headings():
    folders = (ROOT, ROOT / "docs", ROOT / "benchmarks", ROOT / "experiments")
    pages = [path for folder in folders for path in folder.glob("*.md")]
    pages += (ROOT / "experiments/log").glob("*.md")
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {path}"
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M) if anchor else []
            anchors = [re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in headings]
            assert not anchor or anchor in anchors, f"{page.name}: {anchor}"


def test_the_notebook_is_made_from_the_page():
    text = build.NOTEBOOK.read_text("utf-8")
    assert len(text.encode()) <= 1_000_000
    cells = json.loads(text)["cells"]
    expected = build.make_notebook(PAGE).cells
    assert ["".join(cell["source"]) for cell in cells] == [cell.source for cell in expected]
    texts = [cell.source for cell in expected if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\((\S+)\)", text)]
    assert links and all(link.startswith("https://") for link in links)  # others lead nowhere
    install, *cells = (cell for cell in cells if cell["cell_type"] == "code")
    assert 'REPOSITORY = "…"' in "".join(install["source"])
    for cell, shown in zip(cells, CELLS, strict=True):
        outputs = cell["outputs"]
        printed = "".join("".join(each["text"]) for each in outputs if "text" in each)
        assert shown.varies or same_output(printed, shown.output), shown.line
        pictures = [each for each in outputs if "image/png" in each.get("data", {})]
        assert len(pictures) == len(shown.pictures)


def test_the_notebook_clones_and_installs_the_project_once(monkeypatch, tmp_path):
    commands = []

    def run(command, check):
        assert check  # a failure stops the notebook
        commands.append(command)
        Path("transformer-by-hand").mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "executable", "python")
    monkeypatch.setattr("training.machine.load_tensorflow", lambda: None)
    for _ in range(2):  # the second time as after a restart
        monkeypatch.chdir(tmp_path)
        exec(build.INSTALL, {})
        assert Path.cwd() == tmp_path / "transformer-by-hand"
    clone, install, again = commands
    assert clone[:2] == ["git", "clone"] and clone[-2:] == ["…", "transformer-by-hand"]
    assert install[:4] == ["python", "-m", "pip", "install"] and again == install
