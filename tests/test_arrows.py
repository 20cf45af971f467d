"""Imports run one way: programs → evaluation → training → data, model; no cycles within either."""

import ast
import sys

import pytest

from same_code import ROOT

# What each part of the project may import of the others.
LAYERS = {
    "utils": set(),
    "same_code": {"utils"},
    "config": {"utils"},
    "model": {"config", "utils"},
    "data": {"config", "utils", "same_code"},
    "training": {"config", "data", "model", "same_code", "utils"},
    "evaluation": {"config", "data", "model", "same_code", "training", "utils"},
}
PROJECT = {*LAYERS, "train", "evaluate", "translate", "ablation", "benchmarks", "tests"}


def imports(path):
    """Return the names of all modules that a file imports, at its top or in a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            # `from model import masks` imports a module, `from model.masks import PAD` does not.
            inner = {f"{node.module}.{name.name}" for name in node.names}
            names |= inner if node.module in ("model", "data") else {node.module}
    return names


MODEL = {path.stem: imports(path) for path in (ROOT / "model").glob("*.py")}


def test_packages_import_only_lower_layers():
    for package, allowed in LAYERS.items():
        for path in [*(ROOT / package).glob("*.py"), *ROOT.glob(f"{package}.py")]:
            ours = {module.split(".")[0] for module in imports(path)} & PROJECT - {package}
            assert ours <= allowed, f"{path} imports {ours - allowed}"


def test_model_imports_only_tensorflow():
    allowed = {"config", "model", "tensorflow", "numpy"} | sys.stdlib_module_names
    for name, modules in MODEL.items():
        others = {module for module in modules if module.split(".")[0] not in allowed}
        assert not others, f"model/{name}.py imports {others}"
        text = (ROOT / "model" / f"{name}.py").read_text("utf-8")
        assert "keras" not in text.replace("Keras", ""), f"model/{name}.py uses Keras"


def test_what_encodes_does_not_import_the_plan_of_batches():
    """So that an edit of the plan does not encode again."""
    for name in "pipeline", "encoding":
        assert "data.batches" not in imports(ROOT / f"data/{name}.py")


@pytest.mark.parametrize("package", ["model", "data"])
def test_packages_have_no_import_cycle(package):
    """Remove modules whose imports have all been removed, until none is left."""
    rest = {f"{package}.{path.stem}": imports(path) for path in (ROOT / package).glob("*.py")}
    while free := [name for name, imported in rest.items() if not imported & rest.keys()]:
        for name in free:
            del rest[name]
    assert not rest, f"import cycle among {sorted(rest)}"
