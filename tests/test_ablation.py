"""The command `python -m ablation`, in a small repository whose worker does not train."""

import difflib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import write_corpus

import same_code
from ablation import __main__ as command
from ablation import executor, experiments, results, workspace
from ablation.experiments import BASELINE, ExperimentError
from ablation.workspace import Workspace
from utils import UserError, warn

ROOT = Path(__file__).resolve().parents[1]
MODEL = """
def answer():
    # the truth
    return 40


def other():
    return 1
"""
# Writes the result that a real worker writes. --fail raises an error, --sleep waits.
WORKER = """
import json, os, sys, threading, time
from pathlib import Path
from model.transformer import answer, other
job = json.loads(Path(sys.argv[1]).read_text())
threading.Thread(target=lambda: (os.read(0, 1), os._exit(143)), daemon=True).start()
if "about" not in job:
    from data.texts import TEXTS
    Path(job["texts"]).write_text(json.dumps([TEXTS, job["final"]]))
    Path(job["result"]).write_text('{"machine": "here", "processor": "fake"}')
    sys.exit()
flags = dict(flag.removeprefix("--").split("=") for flag in job["flags"])
number = lambda name: float(flags.get(name, 0))
Path(job["run"]).mkdir(exist_ok=True)
with open(os.path.join(job["run"], "started"), "a") as file:
    file.write("x")
time.sleep(number("sleep"))
if "kill" in flags:
    os.kill(os.getpid(), 9)
if "fail" in flags:
    raise ValueError("step 7")
seed = int(flags["seed"])
noise = [0, 0.5, -0.5, 0.25, -0.25][seed % 5] * ("bonus" in flags or answer() >= 50)
value = answer() + number("bonus") + seed * 7 % 5 / 2 + noise
scores = {"exact_match": value, "nats_per_character": value / 100, "bleu": value}
result = {"scores": scores, "weights": str(value + other()), "parameters": 10}
result |= {"seconds": {"train": 100.0, "score": 20.0}}
if "diverge" in flags:
    result = {"diverged": "step 3"}
Path(job["result"]).write_text(json.dumps(job["about"] | result))
"""
CONFIG = """
class Config:
    first: int = setting(
        1
    )
    other: int = setting(1)
    label_smoothing: float = 0.1
"""
RECIPES = """
[mini]
flags = "--first=1"
score = "exact_match"
delta = 1.0
average = 1
[loss]
flags = "--first=2"
score = "nats_per_character"
delta = 0.001
average = 1
"""
FLAGS = """
[more]
question = "Is more better?"
theme = "positions"
flags = "--bonus=8"
[lost]
question = "Does it diverge?"
theme = "positions"
flags = "--diverge=1"
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small git checkout that is used instead of the project's."""
    files = {
        "model/__init__.py": "",
        "model/transformer.py": MODEL,
        "data/texts.py": "TEXTS = 'old'\n",
        ".gitignore": "comparisons\n.cache\n__pycache__\n",
        "ablation/__init__.py": "",
        "ablation/worker.py": WORKER,
        "experiments/recipes.toml": RECIPES,
        "experiments/flags.toml": FLAGS,
        "train.py": "import model.transformer, model.loss\n",
        "config.py": CONFIG,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for module in (same_code, workspace, experiments):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(experiments, "HERE", tmp_path / "experiments")
    monkeypatch.setattr(results, "HERE", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "--quiet"], check=True)
    commit()
    return tmp_path


def commit():
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def add(repository, name, **keys):
    """Save an experiment that only sets flags."""
    with open(repository / "experiments/flags.toml", "a") as file:
        keys = {"question": "1?", "theme": "positions"} | keys
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        file.write(f"[{name}]\n{lines}")


@pytest.fixture
def ask(repository, monkeypatch, capsys):
    """Calls `python -m ablation`; returns its standard output, and has status and errors."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["ablation", *words])
        warn.cache_clear()
        call.status = command.run(command.parse_flags())
        out, call.errors = capsys.readouterr()
        return out

    return call


def verdict(out, name, seeds):
    """Return the word and the gain that were printed after a number of seeds, or None."""
    match = re.search(rf"^{name}: (.*) \[.* after {seeds} seeds", out, re.MULTILINE)
    return match and match[1]


def started(repository, name, recipe="mini"):
    """Return how many times the runs of an experiment have started."""
    paths = repository.glob(f"comparisons/{recipe}/{name}/seed-*/started")
    return sum(len(path.read_text()) for path in paths)


def workspace_of(folder, **options):
    """Create a workspace of the recipe mini, with the texts to score."""
    space = Workspace(experiments.recipes()["mini"], folder, **options)
    executor.Pool().probe(space.probe())
    return space


def key_of(tmp_path_factory, experiment):
    return workspace_of(tmp_path_factory.mktemp("scratch")).key(experiment)


# ---- Edits ---------------------------------------------------------------------------------------


def test_an_uncommitted_edit_gets_a_verdict(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--json")
    assert verdict(out, r"edit-\w+", 3) == "better +10.0" and ask.status == 0
    assert re.search(r"^baseline seed 0: 40.0 points(;|$)", out, re.MULTILINE)
    assert re.search(r"^edit-\w+ seed 2: 51.5 points(, gain \+9.5 points)?$", out, re.MULTILINE)
    assert len(re.findall(r"gain \+.* points$", out, re.MULTILINE)) == 3  # one per pair
    (found,) = json.loads(out.splitlines()[-1])
    assert found["outcome"] == "better" and found["gain"] == 10 and found["bleu"] is None
    assert 0 < found["p"] < 0.05 and found["low"] < 10 < found["high"] and found["seeds"] == 3
    assert "comparisons since the last confirmed edit: 1; of as many" in out
    assert "next, if better: confirm it with new seeds: repeat the command with --final" in out
    assert started(repository, "baseline") == started(repository, "edit-*") == 3
    assert "confirmed edit: 1;" in ask()  # nothing is run again, and the same edit counts once
    assert started(repository, "baseline") == started(repository, "edit-*") == 3
    edit(repository / "model/transformer.py", "return 50", "return 30")
    assert ": worse after 3 seeds\n" in ask() and ask.status == 1  # by exactly 10 each
    edit(repository / "model/transformer.py", "return 30", "return 40  # the same")
    with pytest.raises(ExperimentError, match="executes nothing of edit-.* comments"):
        ask()
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)
    with pytest.raises(ExperimentError, match="nothing to compare.*--against"):
        ask()


def test_whatever_an_edit_can_execute_is_part_of_the_key(repository, tmp_path_factory):
    """New modules that are imported, tables of packages, and modules that are said to be harmless;
    but not comments, and nothing that is not imported.
    """
    edit(repository / "model/transformer.py", "return 1", "import losses\n    return 1")
    for name in ("losses.py", "model/words.tsv", "evaluation/rerank.py", "training/more.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        keys = []
        for text in ("one = 1\n", "one = 2\n", "one = 1\n# A comment.\n"):
            (repository / name).write_text(text)
            keys.append(key_of(tmp_path_factory, experiments.edit()))
        assert keys[0] != keys[1] and (keys[0] == keys[2]) == name.endswith(".py"), name
    before = key_of(tmp_path_factory, experiments.edit())
    (repository / "tests").mkdir()
    (repository / "tests/test_more.py").write_text("one = 1\n")
    assert key_of(tmp_path_factory, experiments.edit()) == before


def test_files_that_are_not_part_of_an_edit_are_named(repository, ask):
    (repository / "model/words.json").write_text("[1]")
    commit()
    subprocess.run(["git", "init", "--quiet", "another"], check=True)  # without a commit
    nested = ("out/a/source/config.py", "env3/lib/site.py")  # a copy, and an environment
    names = ("model/words.json", "größe.tsv", "corpora/one.tsv", "benchmarks/speed.py", "a.md")
    for name in (*names, *nested):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("[2]")
    with pytest.raises(ExperimentError, match="nothing to compare"):
        ask()
    (repository / "model/new.tsv").write_text("a\tb\n")
    out = ask("--plan")
    assert re.search(r"^edit-\w+ changes model/new.tsv$", out, re.MULTILINE)
    left = "corpora/one.tsv, env3/lib/site.py, größe.tsv, model/words.json, out/a/source/config.py"
    assert f"of packages count: another/, {left}\n" in out
    (repository / "model/tables").mkdir()
    (repository / "model/tables/more.tsv").write_text("a\tb\n")
    assert experiments.edit().files == ["model/new.tsv"]
    (repository / "model/tables/__init__.py").write_text("")
    assert "model/tables/more.tsv" in experiments.edit().files
    shutil.rmtree(repository / "model/tables")
    (repository / "corpora/prepare.py").write_text("[2]")  # next to a table that is a corpus
    assert experiments.edit().files == ["corpora/prepare.py", "model/new.tsv"]


def test_the_project_may_be_a_folder_of_a_larger_repository(repository, ask, monkeypatch):
    """Runs import their own copy of the source, whatever the environment says."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(repository))
    inner = repository / "inner"
    for name in ("model", "experiments", "ablation", "data"):
        shutil.copytree(repository / name, inner / name)
    commit()
    for module in (same_code, workspace, experiments):
        monkeypatch.setattr(module, "ROOT", inner)
    monkeypatch.setattr(experiments, "HERE", inner / "experiments")
    edit(inner / "model/transformer.py", "return 40", "return 50")
    assert verdict(ask(), r"edit-\w+", 3) == "better +10.0"
    experiments.save("attention/sharper", "Sharper?")
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)
    edit(inner / "model/transformer.py", "def answer():", "def answer(more=0):")
    commit()
    experiments.refresh("sharper")
    assert "\n def answer(more=0):\n" in experiments.read("sharper").diff


def test_both_sides_are_scored_on_the_texts_that_the_baseline_reads(repository, tmp_path_factory):
    edit(repository / "data/texts.py", "old", "new")
    space = workspace_of(tmp_path_factory.mktemp("scratch"))
    assert json.loads(space.texts.read_text()) == ["old", False]
    commit()
    for final in (False, True):
        space = workspace_of(tmp_path_factory.mktemp("scratch"), final=final)
        assert json.loads(space.texts.read_text()) == ["new", final]
    (repository / "data/texts.py").write_text("raise SystemExit('error: no texts')")
    commit()
    with pytest.raises(ExperimentError, match="cannot prepare the comparison: no texts$"):
        workspace_of(tmp_path_factory.mktemp("scratch"))


def test_files_that_flags_name_are_part_of_the_key(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    talks = write_corpus(folder / "my talks")
    weights = folder / "run/checkpoints/ckpt-1.index"
    weights.parent.mkdir(parents=True)
    for flags, file in ((f"--corpus  '{talks}'", next(talks.glob("train.*"))),
                        (f"--init-from={folder}/run", weights)):  # fmt: skip
        keys = []
        for text in ("a\tb\n", "a\tc\n", "a\tb\n"):
            file.write_text(text)
            more = replace(experiments.read("more"), flags=flags)
            keys.append(key_of(tmp_path_factory, more))
        assert keys[0] == keys[2] != keys[1], flags
    before = key_of(tmp_path_factory, more)
    weights.parent.rename(weights.parent.with_name("moved"))  # as a text of another label
    assert key_of(tmp_path_factory, more) != before
    with pytest.raises(ExperimentError, match="data: give an absolute path"):
        key_of(tmp_path_factory, replace(more, flags="--corpus data"))


def test_a_run_of_an_edit_that_could_have_state_does_not_resume(repository, tmp_path_factory):
    found = []
    for name in ("model/transformer.py", "data/pipeline.py", "train.py", "data/batches.py"):
        with open(repository / name, "a") as file:
            file.write("\nmore = 1\n")
        space = workspace_of(tmp_path_factory.mktemp("scratch"))
        job = space.prepare_job(experiments.edit(), 0, {"machine": "m"})
        found.append(job["resumable"])
        commit()
    assert found == [True, True, False, True]
    run = Path(space.prepare_job(BASELINE, 0, {"machine": "m"})["run"])
    for machine, kept in (("m", True), ("other", False)):  # it has other arithmetic
        run.mkdir(exist_ok=True)
        space.prepare_job(BASELINE, 0, {"machine": machine})
        assert run.exists() == kept


def test_what_cannot_be_compared_or_has_no_effect_is_reported_before_anything_runs(repository, ask):
    for flags in ("--lowercase", "--no-reverse", "--max-length=9", "--tokenizer word"):
        add(repository, name := f"x{len(flags)}", flags=flags)
        with pytest.raises(ExperimentError, match="could not be compared"):
            ask(name, "--plan", "--recipe", "loss")
    add(repository, "long", flags="--bonus=1", average=21)
    with pytest.raises(ExperimentError, match="averages 21 of 20 epochs"):
        ask("long", "--plan")
    add(repository, "none", flags="--epochs  many")
    with pytest.raises(ExperimentError, match="none: --epochs many: give a number"):
        ask("none", "--plan")
    add(repository, "open", flags="--corpus 'a")
    with pytest.raises(ExperimentError, match="'a: No closing quotation"):
        ask("open", "--plan")
    edit(repository / "config.py", "        1\n", "        2\n")
    ask("--plan")
    assert "changes the default of --first, which recipe mini never uses" in ask.errors
    edit(repository / "config.py", "other: int", "lowercase: int")
    with pytest.raises(ExperimentError, match="changes --lowercase, so its scores could not"):
        ask("--plan")
    edit(repository / "model/transformer.py", "return 40", "return (40")
    with pytest.raises(ExperimentError, match=r"edit-\w+: model/transformer.py, line \d+: '\('"):
        ask("--plan")


def test_an_edit_that_the_recipe_never_executes_is_named(repository, ask):
    (repository / "model/recurrent.py").write_text("import model.cells\n")
    (repository / "model/cells.py").write_text("ONE = 1\n")
    commit()
    edit(repository / "model/cells.py", "1", "2")
    with pytest.raises(ExperimentError, match="recipe mini executes nothing of edit-"):
        ask("--plan")
    edit(repository / "model/transformer.py", "return 40", "return 50")
    ask("--plan")
    assert "changes model/cells.py, which recipe mini never uses" in ask.errors
    edit(repository / "model/transformer.py", "# the truth", "import model.cells")
    ask("--plan")
    assert "never uses" not in ask.errors


def test_modules_of_a_package_are_used_where_it_is_imported(repository):
    (repository / "train.py").write_text("import model\nfrom model.attention import heads\n")
    package = repository / "model/attention"
    package.mkdir()
    (package / "__init__.py").write_text("from .core import heads\n")
    (package / "core.py").write_text("from . import rope\nfrom ..cells import cell\n")
    used = same_code.imported_files(["train.py"], repository)
    names = ("__init__.py", "core.py", "rope.py")
    assert used > {"model/cells.py", *(f"model/attention/{name}" for name in names)}
    assert "model/__init__.py" not in used


def test_a_cluster_needs_no_folder_in_a_fresh_clone(repository, ask, monkeypatch):
    def reached(*words):
        raise UserError("reached")

    monkeypatch.setattr(command, "Workspace", reached)
    with pytest.raises(UserError, match="reached"):
        ask("more", "--cluster", "host:1")


def test_a_recipe_needs_no_shards(repository, tmp_path):
    recipe = replace(experiments.recipes()["mini"], flags="--first=2")
    assert "--shards=1" in Workspace(recipe, tmp_path).probe()["flags"]


def test_the_cache_depends_on_all_files_of_the_generator():
    for name in ("data/mini/verbs.tsv", "data/mini/extra/verbs.py"):
        assert "ids" in same_code.can_change(name)


def test_an_edit_of_what_the_models_are_is_compared(repository, ask):
    (repository / "model/deep.py").write_text("from model.transformer import answer\n")
    (repository / "model/__init__.py").write_text("from model.deep import answer\n")
    ask("--plan")
    assert "never uses" not in ask.errors


@pytest.mark.parametrize(
    ("old", "new"), [('None, "label smoothing', '0.0, "label smoothing'), ("else 0.1", "else 0.2")]
)
def test_an_edit_of_the_default_smoothing_is_judged_by_bleu(old, new):
    text = Path(same_code.ROOT, "config.py").read_text("utf-8")
    assert text.count(old) == 1
    texts = text.splitlines(), text.replace(old, new).splitlines()
    diff = "\n".join(difflib.unified_diff(*texts, "a/config.py", "b/config.py", lineterm=""))
    recipe = experiments.recipes()["spa-eng"]
    assert experiments.Experiment("smoother", "?", diff=diff).for_recipe(recipe).score == "bleu"


def test_an_edit_of_the_loss_is_judged_by_bleu(repository, ask):
    """In the stubbed runs, what gains BLEU also increases the loss."""
    assert verdict(out := ask("more", "--recipe", "loss"), "more", 3) == "worse -0.0800"
    assert "BLEU +8.0, which disagrees" in out
    for name in ("model/loss.py", "data/text.py", "evaluation/search.py", "config.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(CONFIG.replace("0.1", "0.2"))
        assert "BLEU is judged" in ask("--recipe", "loss", "--plan"), name
        (repository / name).write_text(CONFIG)
        commit()
    add(repository, "objective", flags="--bonus=9", score="bleu")
    out = ask("objective", "--recipe", "loss")
    assert verdict(out, "objective", 3) == "better +9.0" and "seed 0: 49.0 BLEU" in out


def test_commits_are_compared_with_an_earlier_one(repository, ask, monkeypatch):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    commit()
    edit(repository / "model/transformer.py", "return 50", "return 50 + 1")
    assert verdict(ask("--against", "HEAD~1"), r"edit-\w+", 3) == "better +11.0"
    with pytest.raises(ExperimentError, match="--against"):
        ask("more", "--against", "HEAD~1")
    out = ask("--save", "attention/later", "Why?", "--against", "HEAD~1")
    assert "the patch, check out HEAD~1, which it fits, and use: python -m ablation later\n" in out
    with pytest.raises(UserError, match="--against HEAD~7: git read-tree"):
        ask("--against", "HEAD~7")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="git was not found"):
        ask()


# ---- Saved experiments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["-c", "diff.mnemonicPrefix=true"], ["-c", "diff.noprefix=false"]]
)
def test_the_files_of_a_patch_are_found_whatever_their_prefix(repository, words):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    diff = subprocess.run(["git", *words, "diff"], capture_output=True, text=True).stdout
    path = repository / "experiments/positions/sharper.patch"
    path.parent.mkdir()
    for text in (diff, re.sub(r"^([-+]{3} .*)$", "\\1\t2026-11-24", diff, flags=re.MULTILINE)):
        path.write_text(f'question = "Why?"\n\n{text}')
        assert experiments.read("sharper").files == ["model/transformer.py"]
    bare = ["git", "-c", "diff.noprefix=true", "diff"]
    diff = subprocess.run(bare, capture_output=True, text=True).stdout
    path.write_text(f'question = "Why?"\n\n{diff}')
    with pytest.raises(ExperimentError, match="add an empty line and a diff"):
        experiments.read("sharper")


def test_invalid_files_are_rejected(repository, ask):
    path = repository / "experiments/flags.toml"
    for line in ('score "b"', 'colour = "red"', 'question = "again"'):
        path.write_text(f"{FLAGS}[odd]\nquestion = 'a'\n{line}\n")
        with pytest.raises(ExperimentError, match="flags.toml: "):
            experiments.read("odd")
    path.write_text(FLAGS)
    with pytest.raises(ExperimentError, match="did you mean more"):
        experiments.read("mor")
    with pytest.raises(ExperimentError, match="choose one of mini, loss; there is no large"):
        ask("more", "--recipe", "large")
    with pytest.raises(ExperimentError, match="no experiment suits the recipe"):
        (repository / "model/new.py").write_text("one = 1")  # the edit is not taken instead
        edit(repository / "experiments/recipes.toml", "--first=2", "--model classifier")
        ask("--all", "--recipe", "loss")
    wrong = (["--all", "more"], ["--store"], ["more", "--seeds", "1"], ["more", "--plan", "--json"])
    for words in wrong:
        with pytest.raises(ExperimentError, match="--"):
            ask(*words)


def test_an_edit_is_saved_and_a_patch_that_has_moved_is_refreshed(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--save", "attention/sharper", 'Do "sharper" weights help?')
    assert "wrote experiments/attention/sharper.patch: model/transformer.py\n" in out
    with pytest.raises(ExperimentError, match="give THEME/NAME"):
        ask("--save", "sharper", "Again?")
    with pytest.raises(ExperimentError, match="sharper: there is such an experiment"):
        ask("--save", "positions/sharper", "Again?")
    subprocess.run(["git", "checkout", "--quiet", "model"], check=True)
    assert experiments.read("sharper").question == 'Do "sharper" weights help?'
    before = experiments.read("sharper").change
    edit(repository / "model/transformer.py", "def answer():", "def answer(more=0):")
    commit()
    with pytest.raises(ExperimentError, match="--refresh sharper may fix it"):
        ask("sharper", "--plan")
    ask("--refresh", "sharper")
    assert experiments.read("sharper").change == before
    assert verdict(ask("sharper"), "sharper", 3) == "better +10.0"
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    with pytest.raises(ExperimentError, match="sharper: .*by hand"):
        ask("--refresh", "sharper")
    edit(repository / "model/transformer.py", "return 41", "return 50")
    commit()
    with pytest.raises(ExperimentError, match="sharper: the last commit has all of its changes"):
        ask("--refresh", "sharper")
    assert experiments.read("sharper").change == before
    worktrees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout
    assert worktrees.count("\n") == 1
    with pytest.raises(ExperimentError, match="nothing to save"):
        ask("--save", "attention/more-of-it", "Why?")


def test_an_experiment_may_average_other_epochs_and_have_flags_for_a_recipe(
    repository, tmp_path_factory
):
    """The key of a result depends on them; a number equal to the recipe's changes nothing."""
    keys = {}
    for average in (0, 1, 2):
        more = replace(experiments.read("more"), average=average)
        keys[average] = key_of(tmp_path_factory, more)
    assert keys[0] == keys[1] != keys[2]
    with open(repository / "experiments/flags.toml", "a") as file:
        file.write('[some]\nquestion = "1?"\nflags = "--a=1"\nrecipe-flags = {loss = "--b=1"}\n')
    recipes, some = experiments.recipes(), experiments.read("some")
    assert [some.for_recipe(recipes[name]).flags for name in recipes] == ["--a=1", "--b=1"]


# ---- Stages and results --------------------------------------------------------------------------


def test_a_plan_names_the_change_and_the_runs_with_their_time(repository, ask, monkeypatch):
    monkeypatch.setattr(command, "cores", lambda: [0, 1])
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--plan")
    assert re.search(r"^edit-\w+ changes model/transformer.py$", out, re.MULTILINE)
    assert "stage of 3 seeds: 6 runs\nstage of 8 seeds: 16 runs\n" in out
    assert "standard deviation of a difference: unknown" in out and ask.status == 3
    assert not [*(repository / "comparisons").rglob("started")]
    ask("--seeds", "2")  # a run takes two minutes
    assert "of 3 seeds: 2 runs, about 2 minutes on 2 cores\n" in ask("--plan")
    assert "of 3 seeds: 6 runs\n" in ask("--plan", "--final")
    assert "may change the batches" not in out
    edit(repository / "data/texts.py", "old", "new")
    assert "may change the batches" in ask("--plan")


def test_seeds_are_added_until_the_experiment_is_decided(repository, ask):
    add(repository, "some", flags="--bonus=1.2")
    out = ask("some", "more")
    assert verdict(out, "some", 3).startswith("undecided") and verdict(out, "some", 5)
    assert verdict(out, "more", 3) and not verdict(out, "more", 5) and ask.status in (0, 3)
    before = out[out.index("some: undecided") : out.index("some seed 3")]
    assert "\nundecided so far: more seeds follow" in before
    assert not out.rpartition("some: ")[2].count("more seeds follow")


def run_again(repository, ask, *words):
    """Return how many runs of the baseline and of `more` were necessary, and the output."""
    shutil.rmtree(repository / "comparisons", ignore_errors=True)
    out = ask("more", *words)
    return started(repository, "baseline"), started(repository, "more"), out


def test_a_stored_result_is_of_the_same_code_or_verified_by_seed_0_or_run_again(repository, ask):
    """Seed 0 may have other weights: the order of the variables is part of their hash."""
    ask("more", "--store")
    assert run_again(repository, ask)[:2] == (0, 0)
    edit(repository / "model/transformer.py", "# the truth", "# a comment")
    commit()
    assert run_again(repository, ask)[:2] == (0, 0)
    edit(repository / "model/transformer.py", "return 1", "return 3")  # not the scores
    commit()
    shutil.rmtree(repository / "comparisons")
    out = ask("more", "--plan")
    assert "of 3 seeds: 6 runs, about " in out
    assert "more: results of this code: 0; of other code: 3, used only if seed 0" in out
    assert out.count("fewer if seed 0 has the stored scores") == 2
    *count, out = run_again(repository, ask, "--store")
    assert count == [1, 1] and verdict(out, "more", 3) == "better +8.0"
    assert "\nmore: results of this code: 1; of other code: 3, of which 3 are used\n" in out
    assert len(results.read_lines(experiments.recipes()["mini"])) == 6  # each is stored once
    assert run_again(repository, ask)[:2] == (0, 0)  # they have the new key now
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    add(repository, "some", flags="--bonus=1.2")
    shutil.rmtree(repository / "comparisons")
    out = ask("some", "--seeds", "2")  # its seed 0 runs while that of the baseline is verified
    checked = out.index("\nbaseline: results of this code: 1;")
    assert out.index("\nsome seed 0:") < checked < out.index("\nsome seed 1:")
    *count, out = run_again(repository, ask)
    assert count == [3, 3]
    assert "\nmore: results of this code: 1; of other code: 3, of which 0 are used\n" in out


def test_stored_results_of_another_machine_count_and_new_ones_run_in_pairs(
    repository, ask, monkeypatch
):
    add(repository, "some", flags="--bonus=1.2")
    ask("more", "some", "--store")
    shutil.rmtree(repository / "comparisons")
    other = {"machine": "there", "processor": "a new one"}
    probe = executor.Pool.probe
    monkeypatch.setattr(executor.Pool, "probe", lambda *words: probe(*words) | other)
    assert verdict(ask("more"), "more", 3) == "better +8.0"
    assert not started(repository, "more")
    ask("more", "--seeds", "6", "--store")
    assert started(repository, "more") == started(repository, "baseline") == 3
    lines = results.read_lines(experiments.recipes()["mini"])
    machines = [x["machine"] for x in lines if x["experiment"] == "more"]
    assert machines == ["here"] * 3 + ["there"] * 3
    edit(repository / "model/transformer.py", "return 1", "return 3")
    commit()
    out = ask("more", "--plan")  # a machine with these scores has the same arithmetic
    assert "\nmore: results of this code: 0; of other code: 6, used only if seed 0" in out
    assert verdict(out := ask("more"), "more", 3) == "better +8.0"
    assert "code: 6, of which 6 are used; 3 only in pairs of another machine\n" in out


def test_the_run_that_completes_a_pair_has_its_gain(repository, ask):
    add(repository, "smoothing", flags="--bonus=1 --label-smoothing=0")
    ask("more", "smoothing", "--recipe", "loss", "--seeds", "2")
    for path in repository.glob("comparisons/loss/baseline/seed-1.*-*.json"):
        path.unlink()
    out = ask("more", "smoothing", "lost", "--recipe", "loss", "--seeds", "2")
    (line,) = (x for x in out.splitlines() if x.startswith("baseline seed 1: "))
    assert re.fullmatch(
        r"baseline seed 1: \S+ nats per character; more: gain \S+ nats per character; "
        r"smoothing: gain \S+ BLEU",
        line,
    )
    assert "gain" not in re.search("^lost seed 1: .*", out, re.MULTILINE)[0]


def test_a_changed_or_moved_experiment_is_run_again(repository, ask):
    ask("more", "--store")
    shutil.rmtree(repository / "comparisons")
    edit(repository / "experiments/flags.toml", "--bonus=8", "--bonus=9")
    assert verdict(ask("more"), "more", 3).startswith("better +9")
    assert started(repository, "more") == 3 and started(repository, "baseline") == 0
    path = repository / "model/transformer.py"
    twice = path.read_text() + "\n\ndef unused():\n    return 40\n"
    path.write_text(twice)
    commit()
    changes = []
    for text in (
        twice.replace("return 40", "return 50", 1),
        "return 50".join(twice.rsplit("return 40", 1)),
    ):
        path.write_text(text)
        (repository / "experiments/positions/moved.patch").unlink(missing_ok=True)
        ask("--save", "positions/moved", "1?")
        path.write_text(twice)
        changes.append(experiments.read("moved").change)
        out = ask("moved", "--store")
    assert changes[0] == changes[1]  # its lines do not say where they are
    assert "all scores equal the baseline's" in out and "\nmoved: no effect after 3 seeds" in out
    assert "moved is not stored: it is equal" in out and ask.status == 3
    lines = results.read_lines(experiments.recipes()["mini"])
    assert "moved" not in {line["experiment"] for line in lines}


def test_results_of_another_baseline_stay_with_it(repository, ask):
    add(repository, "same", flags="--bonus=1")
    ask("more", "same", "--store")
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    ask("more", "--store")
    recipe = experiments.recipes()["mini"]
    lines = results.read_lines(recipe)
    keys = {
        name: {x["baseline"] for x in lines if x["experiment"] == name} for name in ("more", "same")
    }
    assert len(keys["more"]) == 1 and not keys["more"] & keys["same"]
    pairs = results.stored_pairs(recipe)
    assert {name: len(each) for name, each in pairs.items()} == {"more": 3, "same": 5}
    assert [recipe.value(base) for _, base in pairs["same"].values()][0] == 40
    assert [recipe.value(base) for _, base in pairs["more"].values()][0] == 41
    assert "older results that are replaced: 10\n" in ask("same", "--store")
    assert len({line["baseline"] for line in results.read_lines(recipe)}) == 1


def test_results_of_other_flags_of_the_recipe_do_not_count(repository, ask, capsys):
    ask("more", "--store")
    edit(repository / "experiments/recipes.toml", "--first=1", "--first=3")
    recipe = experiments.recipes()["mini"]
    assert results.read_lines(recipe) == []
    assert "are of other flags of the recipe" in capsys.readouterr().err
    ask("more", "--store")
    assert len(results.stored_file(recipe).read_text().splitlines()) == 12  # none is lost


def test_runs_of_an_edit_count_when_it_gets_a_name_or_a_comment(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    ask()
    edit(repository / "model/transformer.py", "return 50", "return 50  # more")
    assert "of 3 seeds: 0 runs" in ask("--plan")
    ask("--save", "positions/named", "1?")
    subprocess.run(["git", "checkout", "--quiet", "model"], check=True)
    assert "of 3 seeds: 0 runs" in ask("named", "--plan")


def test_runs_of_an_earlier_commit_count_if_seed_0_has_the_same_scores(repository, ask):
    ask("more")
    edit(repository / "model/transformer.py", "return 1", "return 3")
    commit()
    assert verdict(ask("more"), "more", 3) == "better +8.0"
    found = [*repository.glob("comparisons/mini/more/seed-*.*-here.json")]
    assert sorted(path.name[:6] for path in found) == ["seed-0", "seed-0", "seed-1", "seed-2"]
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    ask("more")
    assert len([*repository.glob("comparisons/mini/more/seed-1.*-here.json")]) == 2


def test_results_of_this_code_take_precedence_over_those_of_other_code(repository, ask):
    ask("more", "--seeds", "2")
    for path in [*repository.glob("comparisons/mini/more/seed-?.*-here.json")]:
        line = json.loads(path.read_text())
        lower = {"exact_match": 10.0} if line["seed"] else {}
        other = line | {"key": "other", "scores": line["scores"] | lower}
        path.with_name(f"seed-{line['seed']}.other-here.json").write_text(json.dumps(other))
    out = ask("more", "--seeds", "2")
    assert "of other code: 2, of which 2 are used" in out
    assert verdict(out, "more", 2).endswith("+8.2")


def test_the_first_stage_decides_whatever_later_seeds_have(repository, ask):
    ask("more", "--seeds", "5")
    for path in repository.glob("comparisons/mini/more/seed-[34].*-*.json"):
        line = json.loads(path.read_text())
        path.write_text(json.dumps(line | {"scores": {"exact_match": 0.0}}))
    assert verdict(ask("more"), "more", 3) == "better +8.0"


def test_a_confirmation_has_other_seeds_and_is_stored(repository, ask):
    add(repository, "same", flags="--bonus=1")
    ask("same", "more", "--store")
    assert verdict(ask("more", "--final", "--seeds", "2", "--store"), "more", 2)[:6] == "better"
    job = repository / "comparisons/mini-final/baseline/seed-1.job.json"
    assert "--seed=101" in json.loads(job.read_text())["flags"]
    recipe = experiments.recipes()["mini"]
    before = results.read_lines(recipe)
    ask("more", "--final", "--seeds", "2", "--store")
    assert results.read_lines(recipe) == before and len(before) == 5 + 5 + 3 + 2 + 2
    assert {n: len(x) for n, x in results.stored_pairs(recipe, final=True).items()} == {"more": 2}
    assert {n: len(x) for n, x in results.stored_pairs(recipe).items()} == {"more": 3, "same": 5}
    assert "confirmed edit: 1;" in ask("same")


def test_a_diverged_run_makes_an_experiment_worse(repository, ask):
    out = ask("lost", "more")
    assert "lost: worse after 3 seeds (diverged)" in out and verdict(out, "more", 3)
    assert "\nlost seed 0: step 3\n" in out and ask.status == 3


# ---- Processes -----------------------------------------------------------------------------------


def test_the_first_run_that_fails_stops_the_others_and_shows_its_traceback(
    repository, ask, capsys, monkeypatch
):
    monkeypatch.setattr(executor, "cores", lambda: [0, 1])
    for name, flag in (("slow", "--sleep=60"), ("bad", "--fail=1"), ("large", "--kill=1")):
        add(repository, name, flags=flag)
    began = time.monotonic()
    with pytest.raises(ExperimentError, match=r"bad seed 0 failed: see .*seed-0.log"):
        ask("slow", "bad")
    assert time.monotonic() - began < 30
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "ValueError: step 7" and "worker.py" in "".join(lines[-4:])
    assert started(repository, "baseline") < 3
    assert not (repository / "comparisons/mini/slow/seed-1/started").exists()
    with pytest.raises(ExperimentError, match="large seed 0 failed"):
        ask("large")
    assert "killed, probably because memory ran out" in capsys.readouterr().out


def start(code, *words):
    """Start `python -m ablation` in a process of its own, after some code."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        f"{code}  # the tests may run under nohup\n"
        "import same_code; from ablation import __main__ as main, experiments, workspace\n"
        "for module in (same_code, experiments, workspace): module.ROOT = Path('.').resolve()\n"
        "experiments.HERE = experiments.ROOT / 'experiments'\n"
        "try: main.main()\nfinally: print(sorted(sys.modules))"
    )
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_does_not_import_tensorflow_and_has_a_status(repository):
    process = start("", "more", "--plan")
    out, errors = process.communicate(timeout=60)
    assert "more changes --bonus=8" in out and "'ablation.verdicts'" in out
    assert "tensorflow'" not in out + errors and process.returncode == 3
    process = start("", "--against", "x")
    _, errors = process.communicate(timeout=60)
    assert errors.startswith("error: --against x: ") and errors.count("\n") == 1, errors
    assert process.returncode == 2


def workers(folder):
    """Return the ids of the processes whose command line has a folder's name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            text = path.read_bytes().decode()
            found += [path.parent.name] if str(folder) in text and "worker" in text else []
    return found


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_runs_of_a_command_that_is_stopped_or_killed_end(repository, number):
    add(repository, "slow", flags="--sleep=200")
    ignored = f"import signal; signal.signal({int(number)}, signal.SIG_DFL)"
    process = start(ignored if number != signal.SIGKILL else "", "slow")
    try:
        wait_until(lambda: started(repository, "slow"))
        assert workers(repository)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    wait_until(lambda: not workers(repository))
    if number != signal.SIGKILL:
        assert process.returncode == 130 and "repeat the command" in errors
        assert "waiting for runs to save" in errors
