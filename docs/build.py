"""Run docs/walkthrough.md, and write its outputs, its pictures and docs/walkthrough.ipynb.

A cell of the page is a block ```python. What it prints follows in a block ```text, or in a block
```text varies if it depends on trained weights: those differ between processors. A figure is saved
to the picture that is linked after its cell.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from same_code import ROOT
from utils import make_parser

PAGE = ROOT / "docs" / "walkthrough.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CELL = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text(?P<varies> varies)?\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
PICTURE = re.compile(r"^!\[[^]]*\]\(([^)]+)\)\n", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)]+\)")
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
COLAB = f"""\
[![Open in Colab]({BADGE})](https://colab.research.google.com/)

In Colab, upload this notebook, and in the next cell write the address from which you cloned the
project in place of …; in a clone, run the cell as it is."""
INSTALL = """\
import importlib
import os
import subprocess
import sys

REPOSITORY = "…"  # the address of this project, as for git clone

if os.path.exists("../model/attention.py"):  # opened where it lies, in a clone
    os.chdir("..")
if not os.path.exists("model/attention.py"):
    if not os.path.exists("transformer-by-hand"):
        command = ["git", "clone", "--quiet", "--depth=1", REPOSITORY, "transformer-by-hand"]
        subprocess.run(command, check=True)
    os.chdir("transformer-by-hand")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "-e", "."]
    subprocess.run(command, check=True)

importlib.import_module("training.machine").load_tensorflow()  # without its messages"""


@dataclass
class Cell:
    """Code of the page, with the output and the pictures that follow it."""

    code: str
    line: int  # of the page, where the code begins
    output: str
    varies: bool  # whether the output depends on trained weights
    span: tuple[int, int]  # of the code and the output in the text of the page
    pictures: list[str]  # paths relative to the page


def read_cells(text: str) -> list[Cell]:
    """Return the cells of a page."""
    matches = [*CELL.finditer(text)]
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return [
        Cell(
            code=match["code"],
            line=text.count("\n", 0, match.start("code")),
            output=match["output"] or "",
            varies=bool(match["varies"]),
            span=match.span(),
            pictures=PICTURE.findall(text, match.end(), end),
        )
        for match, end in zip(matches, ends, strict=True)
    ]


def run_cells(cells: list[Cell], folder: Path) -> Iterator[str]:
    """Run the cells, save their figures below `folder`, and yield what each one prints.

    Raises ValueError if a cell does not draw as many figures as pictures follow it.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
    namespace = {"__name__": "walkthrough"}
    for cell in cells:
        code = compile("\n" * cell.line + cell.code, PAGE, "exec")  # tracebacks have page lines
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        figures = pyplot.get_fignums()
        if len(figures) != len(cell.pictures):
            raise ValueError(f"{PAGE}, line {cell.line}: {len(figures)} figures, {cell.pictures}")
        for number, picture in zip(figures, cell.pictures, strict=True):
            (folder / picture).parent.mkdir(parents=True, exist_ok=True)
            pyplot.figure(number).savefig(folder / picture, dpi=110, facecolor="white")
        pyplot.close("all")
        yield printed.getvalue()


def with_outputs(text: str, cells: list[Cell], outputs: list[str]) -> str:
    """Return the page with new outputs."""
    for cell, output in reversed([*zip(cells, outputs, strict=True)]):
        block = f"```python\n{cell.code}```\n"
        if output:
            block += f"\n```text{' varies' * cell.varies}\n{output}```\n"
        text = text[: cell.span[0]] + block + text[cell.span[1] :]
    return text


def make_notebook(text: str):
    """Convert a page without its outputs and pictures to a notebook that has not been run.

    Links to other files and to headings become plain text: they lead nowhere in Colab.
    """
    import jupytext
    import nbformat

    cells = read_cells(text)
    text = PICTURE.sub("", with_outputs(text, cells, [""] * len(cells)))
    text = "".join(
        part if part.startswith("```") else LINK.sub(r"\1", part)
        for part in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    )
    notebook = jupytext.reads(text, fmt="md")
    notebook.cells[:0] = [nbformat.v4.new_markdown_cell(COLAB), nbformat.v4.new_code_cell(INSTALL)]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # by default random
    return notebook


def run_notebook(notebook) -> None:
    """Run a notebook in this project, and keep what its cells print and draw."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":  # without messages on standard error
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]


def write_page() -> None:
    """Write the outputs into the page, and the pictures."""
    text = PAGE.read_text("utf-8")
    cells = read_cells(text)
    outputs = list(run_cells(cells, PAGE.parent))
    PAGE.write_text(with_outputs(text, cells, outputs), "utf-8")


def write_notebook() -> None:
    """Write the notebook."""
    import nbformat

    notebook = make_notebook(PAGE.read_text("utf-8"))
    run_notebook(notebook)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    parser = make_parser(__doc__, prog="python -m docs.build")
    parser.add_argument("what", choices=["page", "notebook", "all"], nargs="?", default="all")
    what = parser.parse_args().what
    if what != "notebook":
        write_page()
    if what != "page":
        write_notebook()
