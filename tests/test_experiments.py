"""experiments/: patches apply, guards fail with them, checks and invariants pass.

The slow tests take one experiment per file that patches touch, and per recipe. All of them run with
`-m every_patch`: after a change of a patch, or of what it touches.
"""

import ast
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import types

import patched
import pytest

from ablation import experiments, results, tables, worker
from same_code import ROOT, git

RECIPES, SAVED = experiments.recipes(), experiments.saved()
GUARDED = [name for name, each in SAVED.items() if each.guard]
CHECKS = sorted(experiments.HERE.glob("*/*.py"))
INVARIANTS = ["tests/test_decoding.py", "tests/test_invariants.py"]
VARIANTS = "transformer-post or language_model-pre or classifier-max"  # one of each model


def sampled(names):
    """Return pytest parameters, of which the first that touch a file or a recipe are slow tests."""
    first = {}
    for name in names:
        for touched in (SAVED[name].recipe, *SAVED[name].files):
            first.setdefault(touched, name)
    marks = pytest.mark.every_patch, pytest.mark.slow
    return [pytest.param(x, marks=marks[: 1 + (x in first.values())]) for x in names]


def test_every_experiment_changes_something():
    assert len(SAVED) > 60 and "rope" in SAVED
    for each in SAVED.values():
        assert (each.diff or each.flags) and each.recipe in RECIPES and each.score in ("", "bleu")
        assert (experiments.HERE / each.theme).is_dir()


def test_the_flags_of_every_experiment_are_those_of_train():
    for each in SAVED.values():
        for name in (each.recipe, *each.recipe_flags):
            flags = f"{RECIPES[name].flags} {each.for_recipe(RECIPES[name]).flags}"
            assert worker.parse(shlex.split(flags))["epochs"] > 0


def test_multiples_of_a_setting_are_those_of_every_recipe():
    rates = {"double-learning-rate": 2, "half-learning-rate": 0.5}
    for name, factor in (rates | {"twice-the-epochs": 2}).items():
        setting = "learning_rate_scale" if name in rates else "epochs"
        for recipe in RECIPES.values():
            flags = f"{recipe.flags} {SAVED[name].for_recipe(recipe).flags}"
            own, changed = map(experiments.settings, (recipe.flags, flags))
            assert changed[setting] == factor * own.get(setting, 1.0), (name, recipe.name)


@pytest.mark.parametrize("name", [name for name, each in SAVED.items() if each.diff])
def test_every_patch_applies(name):
    SAVED[name].apply(ROOT, "--check")


def test_stored_results_are_of_the_present_experiments():
    for recipe in RECIPES.values():
        lines = results.read_lines(recipe)
        present = {x.name: x.for_recipe(recipe) for x in (experiments.BASELINE, *SAVED.values())}
        assert all(present[line["experiment"]].change == line["change"] for line in lines)
        keys = {line["key"] for line in lines if line["experiment"] == "baseline"}
        assert all(line["baseline"] in keys for line in lines)


def test_gains_at_several_sizes_are_drawn_in_one_plot():
    rungs = [tables.Table(RECIPES[name]) for name in ("shakespeare-half", "shakespeare")]
    (axes,) = tables.ladder(rungs).axes
    drawn = {lines.get_label(): lines for lines in axes.containers}
    both = rungs[0].shown().keys() & rungs[1].shown().keys()
    null = {name for name in both if SAVED[name].theme == "null"}  # they have no gain to carry over
    assert null and drawn.keys() == both - null == both & rungs[0].gains().keys()
    gains = [table.verdicts["rope"].gain for table in rungs]
    assert list(drawn["rope"].lines[0].get_ydata()) == gains


def test_gains_of_two_recipes_are_compared():
    gains = {f"edit-{i}": x / 100 for i, x in enumerate([*range(1, 12), -1])}  # 0.01 … 0.11, −0.01
    line = {name: 0.5 * x - 0.001 for name, x in gains.items()}
    # Of another sign, and d = 0.01 off the line, with leverage h = 1/12 + 0.064² / 0.0155 = 0.349.
    off = line | {"edit-11": 0.004, "other": 1.0}
    first, exact, second = (
        types.SimpleNamespace(recipe=RECIPES["shakespeare"], gains=lambda x=x: x)
        for x in (gains, line, off)
    )
    row = tables.transfer(first, exact)
    assert "| 12 of 12 [74 %, 100 %] |" in row  # 0.025^(1/12) = 0.735
    assert "| 10 of 10 [" in row and "| 1.00 | -0.0010 +0.50 × first, ± 0.0000 |" in row
    row = tables.transfer(first, second)
    assert "| 11 of 12 [" in row and "± 0.0026 |" in row  # d √((1 − h) / 10)
    few = types.SimpleNamespace(recipe=first.recipe, gains=lambda: dict.fromkeys("abc", 1.0))
    assert tables.transfer(first, few) == ""


def test_what_the_readme_quotes_is_stored():
    page = (experiments.HERE / "README.md").read_text("utf-8")
    example = re.search(r"A verdict looks like this: \*\*(.*?)\*\*", page)[1]
    assert example in (experiments.HERE / "RESULTS.md").read_text("utf-8")
    recipes = ("spa-eng", "spa-eng-long", "spa-eng-long-1x", "shakespeare")
    columns = [tables.Table(RECIPES[x]) for x in recipes]
    rows = re.findall(r"^\| \[.*?\]\(\S+/(\S+)\.patch\)[^|]*\|(.*)\|$", page, re.M)
    assert len(rows) == 9
    for name, cells in rows:
        for table, cell in zip(columns, cells.split("|"), strict=True):
            verdict, stored = table.verdicts.get(name), []
            if verdict:
                bleu = [] if verdict.bleu is None else [f"{verdict.bleu:z.1f}"]
                stored = [x.replace("-", "−") for x in (f"{verdict.gain:.3f}", *bleu)]
            quoted = cell.replace("undecided, ", "").strip()
            assert quoted == "; ".join(stored), f"{name} on {table.recipe.name}"


def test_every_guard_and_check_exists():
    for name in GUARDED:
        file, _, test = SAVED[name].guard.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text("utf-8")
    assert all(path.with_suffix(".patch").exists() for path in CHECKS) and len(CHECKS) > 30


def test_every_module_that_a_check_imports_exists():
    """The checks themselves run among the slow tests. A folder without code has no origin."""
    for path in CHECKS:
        nodes = [x for x in ast.walk(ast.parse(path.read_bytes())) if isinstance(x, ast.ImportFrom)]
        assert all(importlib.util.find_spec(node.module).origin for node in nodes), path


@pytest.fixture
def copy(tmp_path):
    """Copies the source and applies a patch."""

    def make(experiment):
        ignored = shutil.ignore_patterns("__pycache__", "*.png", "*.patch")
        for path in [*ROOT.glob("*.py"), *ROOT.glob("*.cfg")]:
            shutil.copy(path, tmp_path)
        for path in ROOT.glob("*/__init__.py"):
            shutil.copytree(path.parent, tmp_path / path.parent.name, ignore=ignored)
        shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
        experiment.apply(tmp_path)
        return tmp_path

    return make


def test_the_tests_end_at_once_at_a_syntax_error_of_an_edit(copy):
    folder = copy(experiments.BASELINE)
    with open(folder / "training/machine.py", "a") as file:  # conftest.py imports it
        file.write("\nreturn\n")
    command = [sys.executable, "-m", "pytest", "-m", "invariant"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 4 and done.stderr.count("syntax error") == 1
    assert "training/machine.py" in done.stderr and "'return' outside" in done.stderr


@pytest.mark.parametrize("name", sampled(SAVED))
def test_every_experiment_trains_and_decodes(name, copy):
    recipe = RECIPES[SAVED[name].recipe]
    small = " --num-layers 1 --d-model 32 --vocab-size 300 --max-length 9"
    flags = shlex.split(f"{recipe.flags} {SAVED[name].for_recipe(recipe).flags}{small}")
    assert patched.call(patched.train_and_decode, copy(SAVED[name]), flags) == (4, 20)


def test_experiments_that_change_the_batches_are_known():
    """By their flags, by the texts or their encoding, or by the loop."""
    broken = {name for name, each in SAVED.items() if not each.keeps_pairs}
    assert broken >= {"vocab-2000", "separate-vocabularies", "order-1", "draws-1", "bpe-dropout"}
    assert not broken & {"rope", "muon", "r-drop", "no-dropout"}


@pytest.mark.parametrize("name", sampled(GUARDED))
def test_guard_fails_with_its_patch(name, copy):
    status = patched.call(patched.run_test, copy(SAVED[name]), SAVED[name].guard)
    assert status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("name", sampled([path.stem for path in CHECKS]))
def test_patch_passes_its_check_and_the_invariants(name, tmp_path):
    """On the last commit, patched. Some invariants do not concern an optimizer or a loss."""
    archive, folder, patch = tmp_path / "source.tar", tmp_path / "source", SAVED[name]
    git("archive", f"--output={archive}", "HEAD")
    shutil.unpack_archive(archive, folder, filter="data")
    patch.apply(folder)
    check = folder / "experiments" / patch.theme / f"{name}.py"
    recurrent = any(re.match("model/(layers|recurrent)", name) for name in patch.files)
    variants = f"{VARIANTS} or recurrent-dot" if recurrent else VARIANTS
    runs = [[str(check)], ["-m", "invariant", *INVARIANTS, "-k", variants]]
    if not any(re.match("model/(?!optimizer|loss)", name) for name in patch.files):
        runs[1][-1] = f"(objective or train_step) and ({variants})"
    if name == "dynamic-tanh":  # trains rightly, but slowly: ten steps lower the objective by 9 %
        runs[1][-1] = f"({variants}) and not ten_train_steps"
    for arguments in runs:
        assert patched.call(patched.run_test, folder, *arguments) == pytest.ExitCode.OK
