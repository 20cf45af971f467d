"""The command `python -m ablation`, in a small repository whose runs do not train."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

import same_code
from ablation import __main__ as command
from ablation import executor, experiments, results, spread, tables, workspace
from ablation.experiments import BASELINE, ExperimentError
from ablation.worker import load_texts, parse
from ablation.workspace import Workspace
from config import Config
from utils import UserError

ROOT = Path(__file__).resolve().parents[1]
HERE = {"machine": "here", "processor": "fake"}
NOISE = [0, 0.5, -0.5, 0.25, -0.25]  # of an edit, by seed
MODEL = """
def answer():
    # the truth
    return 40


def other():
    return 1
"""
RECIPES = """
[mini]
flags = "--epochs=20"
score = "exact_match"
delta = 1.0
average = 1
[loss]
flags = "--epochs=21"
score = "nats_per_character"
delta = 0.001
average = 1
[shakespeare]
flags = "--epochs=22"
score = "exact_match"
delta = 1.0
average = 1
"""
FLAGS = """
[more]
question = "Is more better?"
theme = "positions"
flags = "--d-model=136"
[lost]
question = "Does it diverge?"
theme = "positions"
flags = "--word-dropout=0.9"
"""


def fake_execute(job):
    """Do what a worker does, without training: each unit of `d_model` adds a point to `answer`, and
    32 units double the best learning rate.
    """
    source, code, about = Path(job["source"]), {}, job.get("about")
    exec((source / "model/transformer.py").read_text(), code)
    answer, other = code["answer"](), code["other"]()
    if about is None:
        exec((source / "data/texts.py").read_text(), code)
        Path(job["texts"]).write_text(json.dumps([code["TEXTS"], job["final"]]))
        result = HERE
    else:
        flags = parse(job["flags"])
        Config(seed=flags["seed"])  # raises UserError if it is invalid
        Path(job["run"]).mkdir(exist_ok=True)
        with open(Path(job["run"], "started"), "a") as file:
            file.write("x")
        bonus, seed = flags.get("d_model", 128) - 128, flags["seed"]
        noise = NOISE[seed % 5] * (bonus > 0 or answer >= 50)
        value = answer + bonus + seed * 7 % 5 / 2 + noise
        octaves = math.log2(flags.get("learning_rate_scale", 1))
        value += octaves * bonus - 16 * octaves**2  # a parabola, highest at bonus / 32
        scores = {"exact_match": value, "nats_per_character": value / 100, "bleu": value}
        result = {"scores": scores, "weights": str(value + other), "parameters": 10}
        result |= {"seconds": {"train": 100.0, "score": 20.0}}
        result = about | ({"diverged": "step 3"} if "word_dropout" in flags else result)
    Path(job["result"]).write_text(text := json.dumps(result))
    return {"host": "here", "status": 0, "why": "", "result": text}


def diverging(chosen):
    """Return a `fake_execute` whose runs diverge if `chosen(job)`."""

    def execute(job):
        answer = fake_execute(job)
        if "about" not in job or not chosen(job):
            return answer
        result = json.dumps(json.loads(answer["result"]) | {"diverged": "step 3"})
        Path(job["result"]).write_text(result)
        return answer | {"result": result}

    return execute


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small project, in a folder of a git checkout, that is used instead of this one."""
    files = {
        "model/__init__.py": "",
        "model/transformer.py": MODEL,
        "data/__init__.py": "",
        "data/texts.py": "TEXTS = 'old'\n",
        ".gitignore": "comparisons\n.cache\n__pycache__\n",
        "experiments/recipes.toml": RECIPES,
        "experiments/flags.toml": FLAGS,
        "train.py": "import model.transformer, model.loss\n",
    }
    project = tmp_path / "project"
    for name, text in files.items():
        (project / name).parent.mkdir(exist_ok=True, parents=True)
        (project / name).write_text(text)
    for module in (same_code, workspace, experiments):
        monkeypatch.setattr(module, "ROOT", project)
    for module in (experiments, results):
        monkeypatch.setattr(module, "HERE", project / "experiments")
    monkeypatch.setattr(executor, "execute", fake_execute)
    monkeypatch.chdir(project)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    commit()
    return project


def commit():
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)


def undo():
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)


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


def make_workspace(**options):
    """Create a workspace of the recipe mini, with the texts to score."""
    folder = tempfile.mkdtemp(dir=experiments.ROOT.parent)
    space = Workspace(experiments.recipes()["mini"], folder, **options)
    fake_execute(space.probe())
    return space


# ---- Edits ---------------------------------------------------------------------------------------


def test_an_uncommitted_edit_gets_a_verdict(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--json")
    assert verdict(out, r"edit-\w+", 3) == "better +10.0" and ask.status == 0
    assert "\nbaseline seed 0: 40.0 points\n" in out
    (line,) = json.loads(out.splitlines()[-1])
    assert line["outcome"] == "better" and line["gain"] == 10 and line["bleu"] is None
    assert 0 < line["p"] < 0.05 and line["low"] < 10 < line["high"] and line["seeds"] == 3
    assert "positives: 0.025\n" in out and "positives: 0.025\n" in ask()  # it counts once
    ledger = repository / "comparisons/comparisons.jsonl"
    complete = ledger.read_text()
    ledger.write_text(complete + '{"experi')
    assert json.loads(ask("--json").splitlines()[-1]) == [line] and ask.status == 0
    ledger.write_text(complete)
    assert started(repository, "*", "shakespeare") == 6
    edit(repository / "model/transformer.py", "return 50", "return 30")
    assert ": worse after 3 seeds\n" in ask() and ask.status == 1  # by exactly 10 each
    edit(repository / "model/transformer.py", "return 30", "return 30  # more")
    assert "of 3 seeds: at most 0 runs" in ask("--plan")  # its runs count whatever its name is
    ask("--save", "positions/named", "1?")
    undo()
    assert "of 3 seeds: at most 0 runs" in ask("named", "--recipe", "shakespeare", "--plan")
    with pytest.raises(ExperimentError, match="--against"):
        ask()


def test_whatever_an_edit_can_execute_is_part_of_the_key(repository):
    """New modules that are imported, tables of packages, modules of a run; but not comments."""
    (repository / "model/transformer.py").write_text(MODEL + "def unused():\n    import losses\n")
    for name in ("losses.py", "model/words.tsv", "evaluation/rerank.py", "training/more.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        keys = []
        for text in ("one = 1\n", "one = 2\n", "one = 1\n# A comment.\n"):
            (repository / name).write_text(text)
            keys.append(make_workspace().key(experiments.edit()))
        assert keys[0] != keys[1] and (keys[0] == keys[2]) == name.endswith(".py"), name


def test_an_edit_is_code_and_tables_of_packages_but_no_copies_of_the_source(repository):
    for name in ("out/a/config.py", "corpora/one.tsv", "data/my.tsv", "benchmarks/a.py", "a.md"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("[2]")
    assert experiments.edit() is None
    (repository / "model/tables").mkdir()
    names = ["corpora/prepare.py", "extra/__init__.py", "extra/gate.py", "model/new.tsv"]
    names += ["model/tables/more.tsv", "new.py", "plot.py"]
    (repository / "extra").mkdir()
    for name in names:
        (repository / name).write_text("a = 1\n")
    edit(repository / "train.py", "model.loss", "model.loss, new, corpora.prepare, extra.gate")
    assert experiments.edit().files == [*names[:-1], "train.py"]  # nothing imports plot.py
    (repository / "train.py").rename(repository / "fit.py")
    assert make_workspace().check(experiments.edit()) is None


def test_both_sides_are_scored_on_the_texts_that_the_baseline_reads(repository):
    edit(repository / "data/texts.py", "old", "new")
    space = make_workspace()
    assert json.loads(space.texts.read_text()) == ["old", False]
    commit()
    for final in (False, True):
        space = make_workspace(final=final)
        assert json.loads(space.texts.read_text()) == ["new", final]


def test_a_corpus_without_new_combinations_has_none_to_score(tmp_path):
    (tmp_path / "mini.tsv").write_text("a b\tc d\n" * 50)
    with pytest.raises(UserError, match="no generalization split"):
        load_texts(["--corpus", str(tmp_path / "mini.tsv")], 20, final=False)


def test_files_that_flags_name_are_part_of_the_key(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("my files")
    (folder / "run").mkdir()
    keys = []
    for name, text in (("run/a", "1"), ("run/a", "2"), ("run/a", "1"), ("run/b", "1")):
        (folder / "run/a").unlink(missing_ok=True)
        (folder / name).write_text(text)
        more = replace(experiments.read("more"), flags=f"--init-from '{folder}/run'")
        keys.append(make_workspace().key(more))
    assert keys[0] == keys[2] and len({*keys}) == 3


def test_a_run_of_an_edit_that_could_have_state_does_not_resume(repository):
    resumable = []
    for name in ("model/transformer.py", "data/pipeline.py", "train.py", "data/batches.py"):
        with open(repository / name, "a") as file:
            file.write("\nmore = 1\n")
        space = make_workspace()
        job = space.prepare_job(experiments.edit(), 0, {"machine": "m"})
        resumable.append(job["resumable"])
        commit()
    assert resumable == [True, True, False, True] and "--shards=1" in job["flags"]
    run = Path(space.prepare_job(BASELINE, 0, {"machine": "m"})["run"])
    for machine, kept in (("m", True), ("other", False)):  # it has other arithmetic
        run.mkdir(exist_ok=True)
        space.prepare_job(BASELINE, 0, {"machine": machine})
        assert run.exists() == kept


def test_what_cannot_be_compared_is_refused_before_anything_runs(repository, ask):
    """A language model may have another tokenizer if it keeps the text."""
    with open(repository / "experiments/recipes.toml", "a") as file:
        flags = "--model language_model --epochs=20"
        file.write(f'[text]\nflags = "{flags}"\nscore = "nats_per_character"\ndelta = 1.0\n')
        file.write(f'[words]\nflags = "{flags}"\nscore = "bleu"\ndelta = 1.0\n')
    cases = {"--no-reverse": "loss", "--tokenizer char": "loss", "--tokenizer word": "text"}
    cases |= {"--epochs=0": "loss", "--d-model=64": "words"}
    for number, (flags, recipe) in enumerate(cases.items()):
        add(repository, f"odd-{number}", flags=flags)
        with pytest.raises(ExperimentError, match=r"compared|averages 1 epoch|no score bleu"):
            ask(f"odd-{number}", "--recipe", recipe, "--plan")
    add(repository, "many", flags="--keep-checkpoints 3", average=4)
    with pytest.raises(ExperimentError, match="averages 4 epochs, .* 3"):
        ask("many", "--recipe", "mini", "--plan")
    assert "unpaired" in ask("odd-1", "--recipe", "text", "--plan")
    edit(repository / "model/transformer.py", "return 40", "return (40")
    with pytest.raises(ExperimentError, match=r"model/transformer.py, line \d+: '\('"):
        ask("--plan")


SETTINGS = """class Config:
    lowercase: bool = setting(False, "x")
    max_length: int = setting(
        128,
        "maximum tokens",
    )
    batch_tokens: int = setting(1024, "x")
    d_model: int = setting(128, "x")
"""


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("False", "True", "changes --lowercase"),
        ("128,\n        ", "99,\n        ", "changes --max-length"),
        ("1024", "2048", ", unpaired"),
        ("(128, ", "(64, ", ", paired"),
        ("    d_model", "    gate: bool = setting(False)\n    d_model", ", paired"),
        ("maximum", "greatest", ", paired"),
    ],
)
def test_a_default_counts_as_its_flag_does(repository, ask, old, new, answer):
    (repository / "config.py").write_text(SETTINGS)
    edit(repository / "train.py", "import ", "import config, ")
    commit()
    edit(repository / "config.py", old, new)
    try:
        out = ask("--recipe", "loss", "--plan")
    except ExperimentError as error:
        out = str(error)
    assert answer in out


def test_an_edit_that_the_recipe_never_executes_is_refused(repository, ask):
    (repository / "model/recurrent.py").write_text("import model.cells\n")
    (repository / "model/cells.py").write_text("ONE = 1\n")
    commit()
    comment = ("transformer", "# the truth", "# a comment", "comment")
    for path, old, new, why in (comment, ("cells", "1", "2", "--recipe")):
        edit(repository / f"model/{path}.py", old, new)
        with pytest.raises(ExperimentError, match=f"does not affect .* {why}"):
            ask("--plan")
    edit(repository / "model/transformer.py", "# a comment", "import model.cells")
    ask("--plan")
    undo()
    (repository / "model/deep.py").write_text("from model.transformer import answer\n")
    (repository / "model/__init__.py").write_text("from model.deep import answer\n")
    ask("--plan")  # model/__init__.py decides what the models are


def test_an_edit_without_effect_has_one_pair(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 41 - 1")
    assert "no effect after 1 seed" in ask() and ask.status == 3
    assert "best rate" not in ask("--tune")
    assert started(repository, "*", "shakespeare") == 2


def test_one_pair_shows_its_gain_but_gets_no_verdict(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    assert "no verdict" in ask("--seeds", "1") and ask.status == 3
    out = ask()
    # Which of the pairs that run at the same time is the second depends on the machine.
    assert re.search(r"so far \+\d+\.\d points \(2 pairs\)", out)
    assert "so far +10.0 points (3 pairs)" in out


def test_the_progress_bar_counts_the_updates_inside_of_runs(tmp_path):
    log = tmp_path / "log"
    job, states = {"log": str(log)}, ["epoch 1/2:   1%|▏ | 9/900 [0:09]", "epoch 2/2:  75%|▏ | 9"]
    assert executor.trained(job, 0) == 0
    log.write_text("\n".join([*states, "translating: 10%|▏ | 1/10"]))
    assert executor.trained(job, 0) == 0.75
    assert executor.trained(job, time.time() + 60) == 0  # of an earlier command


def test_modules_of_a_package_are_used_where_it_is_imported(repository):
    (repository / "train.py").write_text("import model\nfrom model.attention import heads\n")
    (repository / "model/attention").mkdir()
    code = {"__init__": "from .core import heads", "core": "from . import rope, cells"}
    for name, text in code.items():
        (repository / f"model/attention/{name}.py").write_text(text)
    used = same_code.imported_files(["train.py"], repository)
    assert used > {f"model/attention/{name}.py" for name in ("__init__", "core", "rope", "cells")}
    assert "model/__init__.py" not in used


def test_an_edit_of_the_default_smoothing_is_judged_by_bleu():
    recipe = experiments.recipes()["spa-eng"]
    for line, score in (('None, "label smoothing [0.2]"', "bleu"), ("    d_model: int = 9", "")):
        diff = f"--- a/config.py\n+++ b/config.py\n@@ -1 +1 @@\n-1\n+{line}\n"
        assert experiments.Experiment("new", "?", diff=diff).for_recipe(recipe).score == score


def test_an_edit_of_the_loss_is_judged_by_bleu(repository, ask):
    """In these runs, what gains BLEU also increases the loss."""
    assert verdict(out := ask("more", "--recipe", "loss"), "more", 3) == "worse -0.0800"
    assert "; BLEU +8.0\n" in out
    for name in ("model/loss.py", "data/text.py", "evaluation/search.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("ONE = 1\n")
        assert "judged in BLEU" in ask("--recipe", "loss", "--plan"), name
        commit()
    add(repository, "objective", flags="--d-model=137 --label-smoothing=0")
    out = ask("objective", "--recipe", "loss")
    assert verdict(out, "objective", 3) == "better +9.0" and "seed 0: 49.0 BLEU" in out


def test_commits_are_compared_with_an_earlier_one(repository, ask, monkeypatch):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    commit()
    edit(repository / "model/transformer.py", "return 50", "return 50 + 1")
    assert verdict(ask("--against", "HEAD~1"), r"edit-\w+", 3) == "better +11.0"
    ask("--save", "attention/later", "Why?", "--against", "HEAD~1", "--recipe", "mini")
    later = experiments.read("later")
    assert (later.files, later.recipe) == (["model/transformer.py"], "mini")
    with pytest.raises(ExperimentError, match="choose from mini"):
        ask("--save", "attention/last", "Why?", "--recipe", "lost")
    with pytest.raises(UserError, match="--against HEAD~7"):
        ask("--against", "HEAD~7")


# ---- Saved experiments ---------------------------------------------------------------------------


def test_invalid_files_and_flags_are_rejected(repository, ask, capsys):
    path = repository / "experiments/flags.toml"
    for line in ('score "b"', 'colour = "red"', 'question = "again"'):
        path.write_text(f"{FLAGS}[odd]\nquestion = 'a'\n{line}\n")
        with pytest.raises(ExperimentError, match="flags.toml: "):
            experiments.read("odd")
    path.write_text(FLAGS)
    for words, why in (("mor", "mean more"), ("more --recipe large", "mini, loss")):
        with pytest.raises(ExperimentError, match=why):
            ask(*words.split())
    with pytest.raises(ExperimentError, match="--store"):
        ask("--store")
    for flags in (["--against", "HEAD~1"], ["--seeds", "-1"]):
        with pytest.raises(SystemExit):
            ask("more", *flags)
    assert "not allowed" in capsys.readouterr().err


def test_an_edit_is_saved_and_a_patch_that_has_moved_is_refreshed(repository, ask):
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--save", "attention/sharper", 'Do "sharper" weights help?')
    assert "experiments/attention/sharper.patch" in out
    for name in ("sharper", "positions/sharper"):
        with pytest.raises(ExperimentError, match=r"THEME/NAME|another name"):
            ask("--save", name, "Again?")
    undo()
    assert experiments.read("sharper").question == 'Do "sharper" weights help?'
    before = experiments.read("sharper").change
    edit(repository / "model/transformer.py", "def answer():", "def answer(more=0):")
    commit()
    with pytest.raises(ExperimentError, match="--refresh sharper"):
        ask("sharper", "--plan")
    ask("--refresh", "sharper")
    assert experiments.read("sharper").change == before
    assert verdict(ask("sharper"), "sharper", 3) == "better +10.0"
    for old, new, why in (("40", "41", "git apply -3"), ("41", "50", "all")):
        edit(repository / "model/transformer.py", f"return {old}", f"return {new}")
        with pytest.raises(ExperimentError, match="uncommitted"):
            ask("--refresh", "sharper")
        commit()
        with pytest.raises(ExperimentError, match=f"sharper: .*{why}"):
            ask("--refresh", "sharper")
    assert experiments.read("sharper").change == before
    with pytest.raises(ExperimentError, match="nothing to save"):
        ask("--save", "attention/more-of-it", "Why?")


def test_an_experiment_may_average_other_epochs_and_have_flags_for_a_recipe(repository):
    """The key of a result depends on them; a number equal to the recipe's changes nothing."""
    keys = {}
    for average in (0, 1, 2):
        more = replace(experiments.read("more"), average=average)
        keys[average] = make_workspace().key(more)
    assert keys[0] == keys[1] != keys[2]
    with open(repository / "experiments/flags.toml", "a") as file:
        file.write('[some]\nquestion = "1?"\nflags = "--dff=1"\nrecipe-flags = {loss = "--dff=2"}')
    recipes, some = experiments.recipes(), experiments.read("some")
    flags = [some.for_recipe(recipes[name]).flags for name in ("mini", "loss")]
    assert flags == ["--dff=1", "--dff=2"]


# ---- Stages and results --------------------------------------------------------------------------


def test_a_plan_names_the_change_and_the_runs_with_their_time(repository, ask, monkeypatch):
    monkeypatch.setattr(executor, "cores", lambda: [0, 1])
    edit(repository / "model/transformer.py", "return 40", "return 50")
    out = ask("--plan")
    assert re.search(r"^edit-\w+ changes model/transformer.py; ", out, re.MULTILINE)
    assert "3 seeds: at most 6 runs" in out and "8 seeds: at most 16 runs" in out
    assert ask.status == 0
    assert not [*(repository / "comparisons").rglob("started")] and "unpaired" not in out
    ask("--seeds", "2")  # a run takes two minutes
    assert "3 seeds: at most 2 runs, 2 at a time, about 2 minutes\n" in ask("--plan")
    monkeypatch.setattr(executor, "cores", lambda: [0])  # as a cluster has its own number
    assert "3 seeds: at most 2 runs, 1 at a time, about 4 minutes\n" in ask("--plan")
    assert "8 seeds: at most 16 runs" in ask("--plan", "--final")
    edit(repository / "data/texts.py", "old", "new")
    assert "unpaired" in ask("--plan")


def test_seeds_are_added_until_the_experiment_is_decided(repository, ask):
    add(repository, "some", flags="--d-model=129")
    out = ask("some", "more")
    assert verdict(out, "some", 3).startswith("undecided") and verdict(out, "some", 5)
    assert verdict(out, "more", 3) and not verdict(out, "more", 5) and ask.status in (0, 3)


def run_again(repository, ask, *words):
    """Return how many runs of the baseline and of `more` were necessary, and the output."""
    shutil.rmtree(repository / "comparisons", ignore_errors=True)
    out = ask("more", *words)
    return started(repository, "baseline"), started(repository, "more"), out


def test_a_stored_result_is_of_the_same_code_or_verified_by_seed_0_or_run_again(repository, ask):
    """Seed 0 may have other weights: the order of the variables is part of their hash."""
    add(repository, "other", flags="--d-model=138")
    ask("more", "other", "--store")
    assert run_again(repository, ask)[:2] == (0, 0)
    edit(repository / "model/transformer.py", "# the truth", "# a comment")
    commit()
    assert run_again(repository, ask)[:2] == (0, 0)
    edit(repository / "model/transformer.py", "return 1", "return 3")  # not the scores
    commit()
    shutil.rmtree(repository / "comparisons")
    assert "3 seeds: at most 6 runs" in ask("more", "--plan")
    *count, out = run_again(repository, ask, "--store")
    assert count == [1, 1] and verdict(out, "more", 3) == "better +8.0"
    recipe = experiments.recipes()["mini"]
    assert len(results.read_lines(recipe)) == 9  # each is stored once
    pairs, _ = results.stored_pairs(recipe)
    assert [len(pairs[name]) for name in ("more", "other")] == [3, 3]
    assert run_again(repository, ask)[:2] == (0, 0)  # they have the new key now
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    assert run_again(repository, ask)[:2] == (3, 3)


def test_stored_results_of_another_machine_count_and_new_ones_run_in_pairs(
    repository, ask, monkeypatch
):
    add(repository, "some", flags="--d-model=129")
    ask("more", "some", "--store")
    shutil.rmtree(repository / "comparisons")
    other = {"machine": "there", "processor": "a new one"}
    monkeypatch.setattr("test_ablation.HERE", other)
    assert verdict(ask("more"), "more", 3) == "better +8.0"
    assert not started(repository, "more")
    ask("more", "--seeds", "6", "--store")
    assert started(repository, "more") == started(repository, "baseline") == 3
    lines = results.read_lines(experiments.recipes()["mini"])
    machines = [x["machine"] for x in lines if x["experiment"] == "more"]
    assert machines == ["here"] * 3 + ["there"] * 3
    edit(repository / "model/transformer.py", "return 1", "return 3")
    commit()
    assert verdict(ask("more"), "more", 3) == "better +8.0"  # the same arithmetic


def test_a_changed_experiment_is_run_again_and_one_without_effect_is_not_stored(repository, ask):
    ask("more", "--store")
    shutil.rmtree(repository / "comparisons")
    edit(repository / "experiments/flags.toml", "136", "137")
    edit(repository / "model/transformer.py", "return 1", "return 2")  # without any effect
    ask("--save", "positions/idle", "1?")
    subprocess.run(["git", "checkout", "--quiet", "model"], check=True)
    out = ask("more", "idle", "--store", "--recipe", "mini")
    assert verdict(out, "more", 3) == "better +9.0"
    assert started(repository, "more") == 3 and started(repository, "baseline") == 0
    assert "\nidle: no effect after 1 seed" in out and ask.status == 3
    lines = results.read_lines(experiments.recipes()["mini"])
    assert {line["experiment"] for line in lines} == {"baseline", "more"}


def test_results_of_another_baseline_stay_with_it(repository, ask):
    add(repository, "same", flags="--d-model=129")
    ask("more", "same", "--store")
    edit(repository / "model/transformer.py", "return 40", "return 41")
    commit()
    ask("more", "--store")
    recipe = experiments.recipes()["mini"]
    pairs, _ = results.stored_pairs(recipe)
    assert {name: len(each) for name, each in pairs.items()} == {"more": 3, "same": 5}
    assert [recipe.value(base) for _, base in pairs["same"].values()][0] == 40
    assert [recipe.value(base) for _, base in pairs["more"].values()][0] == 41
    ask("same", "--store")
    assert len({line["baseline"] for line in results.read_lines(recipe)}) == 1
    stored = results.stored_file(recipe).read_text()
    edit(repository / "experiments/recipes.toml", "--epochs=20", "--epochs=23")
    assert results.read_lines(experiments.recipes()["mini"]) == []  # those of other flags stay
    ask("more", "--store")
    assert set(stored.splitlines()) < set(results.stored_file(recipe).read_text().splitlines())


def test_unpaired_runs_are_judged_by_their_own_baseline_in_the_tables(repository, ask):
    add(repository, "shorter", flags="--vocab-size=300 --d-model=136")
    add(repository, "shortest", flags="--vocab-size=200 --d-model=138")
    said = {"shorter": ask("shorter", "--store", "--seeds", "5")}
    edit(repository / "model/transformer.py", "return 40", "return 48")
    commit()
    said["shortest"] = ask("shortest", "--store", "--seeds", "5")
    table = tables.Table(experiments.recipes()["mini"])
    for name, out in said.items():
        assert table.cell(name).startswith(verdict(out, name, 5))
    run = re.search(r"run = \[([\d.]+)", spread.table(table.recipe))
    assert float(run[1]) < 2  # not that between the baselines


def test_a_baseline_that_diverged_is_not_stored(repository, ask, monkeypatch):
    def chosen(job):
        return (job["about"]["experiment"], job["about"]["seed"]) == ("baseline", 4)

    monkeypatch.setattr(executor, "execute", diverging(chosen))
    with pytest.raises(ExperimentError, match="seed 4"):
        ask("more", "--seeds", "5")
    ask("more", "--seeds", "3", "--store")
    lines = results.read_lines(experiments.recipes()["mini"])
    assert len(lines) == 9 and not any("diverged" in line for line in lines)


def test_results_of_this_code_take_precedence_over_those_of_other_code(repository, ask):
    ask("more", "--seeds", "2")
    for path in [*repository.glob("comparisons/mini/more/seed-?.*-here.json")]:
        line = json.loads(path.read_text())
        lower = {"exact_match": 10.0} if line["seed"] else {}
        other = line | {"key": "other", "scores": line["scores"] | lower}
        path.with_name(f"seed-{line['seed']}.other-here.json").write_text(json.dumps(other))
    assert len([*repository.glob("comparisons/mini/more/seed-?.*-here.json")]) == 4
    out = ask("more", "--seeds", "2")
    assert verdict(out, "more", 2).endswith("+8.2")


def test_a_confirmation_has_eight_pairs_of_other_seeds_for_each_change(repository, ask):
    add(repository, "same", flags="--d-model=138")
    ask("more", "--store")
    out = ask("more", "same", "--final", "--store")
    assert "\ncomparisons: 2; expected" in out  # the edits of before still count
    recipe = experiments.recipes()["mini"]
    seeds = [{*x} for x in results.stored_pairs(recipe, final=True)[0].values()]
    assert len(seeds[0]) == len(seeds[1]) == 8 and min(seeds[0] | seeds[1]) >= 100
    assert not seeds[0] & seeds[1]
    for name, points, each in zip(("more", "same"), (8, 10), seeds, strict=True):
        noise = [NOISE[seed % 5] for seed in each]
        assert verdict(out, name, 8) == f"better {points + sum(noise) / 8:+.1f}"
    before = results.stored_file(recipe).read_text()
    ask("more", "--final", "--store")  # nothing runs again: a second chance would not be one
    assert results.stored_file(recipe).read_text() == before
    assert [len(results.read_lines(recipe, final)) for final in (False, True)] == [6, 32]
    path, first = results.stored_file(recipe), sorted(seeds[0])[:3]
    lines = [json.loads(line) for line in before.splitlines()]
    lines = [x for x in lines if x["seed"] in (0, 1, 2, *first)]
    for line in (x for x in lines if x["experiment"] == "more" and x["final"]):
        line["scores"]["exact_match"] -= 8 + 9 * (line["seed"] % 2)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (row,) = tables.confirmed(tables.Table(recipe)).splitlines()
    # One stage: no more seeds would decide it.
    assert re.fullmatch(r"\| more \| mini \| better \+8.* † \| undecided .* 3 seeds \|", row)


def test_runs_that_are_not_paired_are_compared_with_all_of_the_baseline(repository, ask):
    add(repository, "shorter", flags="--vocab-size=300 --d-model=136")
    ask("more", "--seeds", "5", "--store")
    line = json.loads(ask("shorter", "--seeds", "3", "--json").splitlines()[-1])[0]
    runs = [40 + seed * 7 % 5 / 2 for seed in range(5)]
    own = [48 + seed * 7 % 5 / 2 + noise for seed, noise in enumerate(NOISE[:3])]
    assert line["gain"] == pytest.approx(sum(own) / 3 - sum(runs) / 5) and not line["paired"]
    edit(repository / "experiments/recipes.toml", "delta = 1.0", "delta = 1.0\nseeds = 4")
    assert "stage of 4 seeds" in ask("more", "--plan")


def with_rate(repository, rate):
    """Give the recipe a learning rate."""
    flags = f"--epochs=20 --learning-rate-scale={rate}"
    edit(repository / "experiments/recipes.toml", '"--epochs=20"', f'"{flags}"')


def test_each_side_is_tuned_by_three_seeds_and_judged_by_others(repository, ask):
    """The parabola of `more` is a point higher at its vertex, 2^¼; the baseline's is at 1."""
    with_rate(repository, 1)
    add(repository, "shorter", flags="--vocab-size=300 --d-model=136")
    out = ask("more", "--tune", "--plan")
    assert "\ntuning of more: about 9 runs" in out and ": at most 6 runs" in out
    out = ask("more", "--tune", "--json")
    assert verdict(out, "more", 3) == "better +9.0" and ask.status == 0
    assert "mean gain so far" not in out.partition("more: best rate")[0]
    answer = json.loads(out.splitlines()[-1])[0]
    assert answer["note"] == "rate × 1.19, baseline's × 1" and answer["experiment"] == "more"
    folder, seeds = repository / "comparisons/mini", {}
    for path in folder.glob("*/seed-?"):
        seeds[path.parent.name] = {*seeds.get(path.parent.name, ()), int(path.name[-1])}
    first = ["baseline@0.5", "baseline@2", "more", "more@0.5", "more@2"]
    judging = {"more@1.19": {3, 4, 5}, "baseline": {0, 1, 2, 3, 4, 5}}
    assert seeds == dict.fromkeys(first, {0, 1, 2}) | judging
    assert "\ntuning of more: about 0 runs" in ask("more", "--tune", "--plan")
    # The seeds that chose the baseline's rate do not count for runs that are not paired, either.
    out = ask("shorter", "--tune")
    assert verdict(out, "shorter", 3) == "better +9.00" and "comparisons: 2;" in out
    with pytest.raises(ExperimentError, match="--store"):
        ask("more", "--tune", "--store")


def test_an_experiment_without_effect_is_not_tuned(repository, ask, monkeypatch):
    add(repository, "same", flags="--dropout-rate=0.2")
    monkeypatch.setattr(executor, "cores", lambda: range(16))
    ask("same", "--seeds", "8")  # all at a time
    out = ask("same", "more", "--tune")
    assert "same: no effect" in out and verdict(out, "more", 3) == "better +9.0"


def test_a_best_rate_at_an_end_is_followed_by_one_further(repository, ask):
    """The best rates are 1 for the baseline, a quarter of the recipe's, and 4 and 64 for others."""
    with_rate(repository, 4)
    for name, width in ("wide", 192), ("wider", 320):
        add(repository, name, flags=f"--d-model={width} --learning-rate-scale=0.5", average=1)
    out = ask("wide", "wider", "--tune")
    assert re.findall(r"wide: .*at an end: trying × (\S+)", out) == ["2", "4", "8"]
    assert verdict(out, "wide", 3) == "better +128.0" and "(rate × 4, baseline's × 1)" in out
    assert "(rate × 8 (at an end), baseline's × 1)" in out  # not further


def test_a_default_of_the_rate_has_no_effect_on_tuned_runs(repository, ask):
    ask("more", "--tune")
    folders = {path.parent.name for path in repository.glob("comparisons/mini/*/seed-4")}
    assert folders == {"more@1.19", "baseline@1"}  # with the flag in both


def test_tuning_ignores_a_baseline_that_diverges_at_its_own_rate(repository, ask, monkeypatch):
    def chosen(job):
        return parse(job["flags"])["learning_rate_scale"] == 4

    monkeypatch.setattr(executor, "execute", diverging(chosen))
    with_rate(repository, 4)
    assert verdict(ask("more", "--tune"), "more", 3) == "better +9.0"
    with pytest.raises(ExperimentError, match="baseline diverged"):
        ask("more")


def test_one_score_chooses_the_rates(repository, ask):
    add(repository, "smooth", flags="--label-smoothing=0.2 --d-model=129")
    with pytest.raises(ExperimentError, match="--tune .* BLEU"):
        ask("more", "smooth", "--tune", "--recipe", "loss")
    out = ask("smooth", "--tune", "--recipe", "loss")  # of which a lower one would be at an end
    assert "\nbaseline: best rate × 1\n" in out


def test_a_diverged_run_makes_an_experiment_worse(repository, ask):
    out = ask("lost", "more")
    assert "lost: worse after 3 seeds (diverged)" in out and verdict(out, "more", 3)
    assert "\nlost seed 0: step 3\n" in out and ask.status == 3


# ---- Processes -----------------------------------------------------------------------------------


def test_a_run_that_fails_ends_the_command_and_shows_its_log(repository, ask, monkeypatch, capsys):
    def fail(job):
        failed = {"status": 1, "result": None, "why": "ValueError: step 7"}
        return fake_execute(job) | (failed if "lost" in job.get("run", "") else {})

    monkeypatch.setattr(executor, "execute", fail)
    with pytest.raises(ExperimentError, match=r"step 7; .*lost/seed-\d.log"):
        ask("lost")
    assert capsys.readouterr().out.endswith("ValueError: step 7\n")
    failed_probe = {"host": "here", "status": 2, "result": None, "why": "no texts"}
    monkeypatch.setattr(executor, "execute", lambda job: failed_probe)
    with pytest.raises(ExperimentError, match="no texts; "):
        ask("more")


def test_the_command_does_not_import_tensorflow():
    code = "import sys, ablation.__main__; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_ends_in_one_line_at_a_signal(repository, number, monkeypatch, capsys):
    """That runs then save and end is a test of the executor."""
    waiting = [number]  # one signal, although two runs begin at the same time

    def stop(job):
        if "run" in job and waiting:
            os.kill(os.getpid(), waiting.pop())
            time.sleep(1)
        return fake_execute(job)

    monkeypatch.setattr(executor, "execute", stop)
    monkeypatch.setattr(command, "prepare_streams", lambda: None)
    monkeypatch.setattr(sys, "argv", ["ablation", "more"])
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(x, signal.SIG_DFL) for x in numbers]  # nohup may ignore one
    try:
        with pytest.raises(SystemExit) as end:
            command.main()
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
    assert end.value.code == 130 and "error: " in capsys.readouterr().err
