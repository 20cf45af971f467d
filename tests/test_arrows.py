"""Arrows between the rooms run one way: model/ knows itself and TensorFlow, its leaves nobody."""

import ast
import sys
from pathlib import Path

MODEL = Path(__file__).parents[1] / "model"


def imports(path):
    """The modules that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports by a relative name"
            # `from model import masks` names a module, `from model.masks import PAD` does not.
            inner = {f"model.{name.name}" for name in node.names} if node.module == "model" else ()
            found |= set(inner) or {node.module}
    return found


ARROWS = {path.stem: imports(path) for path in MODEL.glob("*.py")}


def test_the_model_knows_tensorflow_and_itself_alone():
    """Neither data/ nor train.py: a model is taken along with its folder. And no layer of Keras."""
    allowed = {"model", "tensorflow", "numpy"} | sys.stdlib_module_names
    for room, modules in ARROWS.items():
        strangers = {module for module in modules if module.split(".")[0] not in allowed}
        assert not strangers, f"model/{room}.py imports {strangers}"
        assert "keras" not in (MODEL / f"{room}.py").read_text("utf-8").replace("Keras", "")


def test_the_leaves_know_nobody():
    for leaf in ("masks", "layers", "optimizer"):
        assert not any(module.startswith("model") for module in ARROWS[leaf])


def test_no_arrow_leads_back():
    """Taking away whoever imports only what is gone already, everybody goes."""
    rest = {room: {m[len("model.") :] for m in modules if m.startswith("model.")}
            for room, modules in ARROWS.items()}  # fmt: skip
    while free := [room for room, known in rest.items() if not known & rest.keys()]:
        for room in free:
            del rest[room]
    assert not rest, f"a circle among {sorted(rest)}"
