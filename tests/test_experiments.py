"""Experiments: patches that apply, and bugs among them that are noticed; runs, and honest sums."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from evaluation import plots
from experiments import compare, jobs, patches, run, save
from experiments.patches import ExperimentError, Patch

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = {name: patches.read(name) for name in patches.names()}
ROOMS = {path.stem for path in ROOT.glob("*") if path.suffix == ".py" or path.is_dir()}
ROOMS |= {"conftest"}


# ---- The experiments that are kept --------------------------------------------------------------


@contextlib.contextmanager
def living_in(folder):
    """Import the project from another folder, TensorFlow staying as it is."""
    ours = lambda name: name.split(".")[0] in ROOMS or name.startswith("test_")  # noqa: E731
    kept, path = {name: sys.modules.pop(name) for name in [*sys.modules] if ours(name)}, [*sys.path]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        for name in [*sys.modules]:
            if ours(name):
                del sys.modules[name]
        sys.modules.update(kept)
        sys.path[:] = path


@pytest.fixture
def patched(tmp_path):
    """A copy of the source with a patch applied."""

    def make(patch):
        ignored = shutil.ignore_patterns("__pycache__", "*.png", "*.patch")
        for path in [*ROOT.glob("*.py"), *ROOT.glob("*.cfg")]:
            shutil.copy(path, tmp_path)
        for room in ("model", "data", "evaluation", "experiments", "tests"):
            shutil.copytree(ROOT / room, tmp_path / room, ignore=ignored)
        patch.apply(tmp_path)
        return tmp_path

    return make


def test_there_are_experiments_and_their_files_are_as_save_writes_them():
    assert len(EXPERIMENTS) > 20
    for name, patch in EXPERIMENTS.items():
        assert (patches.HERE / f"{name}.patch").read_text("utf-8") == patch.text()
        assert patch.diff or patch.flags, f"{name} changes nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_applies_trains_and_decodes(name, patched):
    patch = EXPERIMENTS[name]
    small = ["--num-layers", "1", "--d-model", "32", "--vocab-size", "300", "--max-length", "9"]
    # The recurrent ones say their size: as small as the others.
    words = ["32" if flag == "--d-model" else word
             for flag, word in zip(["", *patch.arguments], patch.arguments)]  # noqa: B905  # fmt: skip
    with living_in(patched(patch)):
        from config import Config, parser
        from model import MODELS
        from model.optimizer import Adam
        from train import make_train_step

        config = Config(**vars(parser("").parse_args([*small, *words])))
        model = MODELS[config.model](config, 20, 20)
        step = make_train_step(model, Adam(model.trainable_variables), config)
        source, target = np.random.default_rng(0).integers(4, 20, (2, 4, 7), np.int32)
        source[0, 4:] = target[1, 3:] = 0
        before = [variable.numpy() for variable in model.trainable_variables]
        assert all(np.isfinite(step(source, target)[0]) for _ in range(2))
        after = [variable.numpy() for variable in model.trainable_variables]
        moved = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        assert np.mean(moved) > 0.3 and all(np.isfinite(values).all() for values in after)
        logits, state = model.step(tf.constant([2, 2, 2, 2]), model.start(source))
        logits, _ = model.step(tf.argmax(logits, axis=-1, output_type=tf.int32), state)
        assert logits.shape == (4, 20) and np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, patch in EXPERIMENTS.items() if patch.guard])
def test_a_bug_is_noticed_by_the_test_that_its_experiment_names(name, patched, monkeypatch):
    folder = patched(EXPERIMENTS[name])
    monkeypatch.chdir(folder)
    with living_in(folder):
        status = pytest.main([EXPERIMENTS[name].guard, "-x", "-q", "--no-header", "--tb=no",
                              "-p", "no:cacheprovider", "-o", "addopts="])  # fmt: skip
    assert status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_a_guard_passes_where_nothing_is_broken(patched, monkeypatch):
    """Else the test above would be content with a test that always fails there. One stands for all:
    each runs in the suite as well.
    """
    folder = patched(patches.BASELINE)
    monkeypatch.chdir(folder)
    guard = EXPERIMENTS["concatenated-positions"].guard
    with living_in(folder):
        status = pytest.main([guard, "-q", "--no-header", "-p", "no:cacheprovider",
                              "-o", "addopts="])  # fmt: skip
    assert status == pytest.ExitCode.OK


# ---- Edit, save, run, compare: in a repository of its own, where train.py only pretends ----------

MODEL = (
    "import sys\n\ndef answer():\n    # the truth\n    return 40\n\n\ndef other():\n    return 1\n"
)
TRAIN = """
import argparse, json, os, subprocess, sys, time
from pathlib import Path
from model.answer import answer
parser = argparse.ArgumentParser()
for name in ("seed", "bonus", "sleep", "fail"):
    parser.add_argument("--" + name, type=int, default=0)
for name in ("name", "runs-dir", "cache-dir", "resume"):
    parser.add_argument("--" + name)
flags = parser.parse_args()
run = Path(flags.resume or Path(flags.runs_dir) / flags.name)
run.mkdir(exist_ok=flags.resume is not None)
git = lambda *a: subprocess.run(["git", *a], capture_output=True, text=True, check=True).stdout
if flags.resume:
    vars(flags).update(json.loads((run / "config.json").read_text()), resume=flags.resume)
else:
    (run / "provenance.json").write_text(json.dumps({"commit": git("rev-parse", "HEAD").strip(),
                                                     "folder": os.getcwd()}))
    (run / "source.diff").write_text(git("diff", "HEAD"))
    (run / "config.json").write_text(json.dumps(vars(flags)))
print("began" if not flags.resume else "resumed", flush=True)
time.sleep(flags.sleep if not flags.resume else 0)
if flags.fail:
    sys.exit("error: step 7: it cannot be")
(run / "value").write_text(str(answer() + flags.bonus + flags.seed))
line = {"tokens_per_second": 100.0, "seconds": 30.0}
(run / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""
EVALUATE = """
import json, sys
from pathlib import Path
run, _, split = sys.argv[1:]
value = float((Path(run) / "value").read_text())
scores = {"bleu": value / 2, "exact_match": value, "parameters": 1234}
scores["exact_match_by_tag"] = {"easy": [3, value], "hard": [2, value - 20]}
(Path(run) / f"scores-{split}.json").write_text(json.dumps(scores))
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small checkout, which `patches` takes for the project's."""
    (tmp_path / "model").mkdir()
    (tmp_path / "experiments").mkdir()
    for name, text in {"model/answer.py": MODEL, "train.py": TRAIN, "evaluate.py": EVALUATE,
                       ".gitignore": "runs\n.cache\n__pycache__\n",
                       "experiments/README.md": "# Mine\n<!-- mini -->\nold\n<!-- end of mini -->\n"
                       }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(patches, "ROOT", tmp_path)
    monkeypatch.setattr(patches, "HERE", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git("init", "--quiet")
    commit()
    return tmp_path


def git(*arguments):
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit():
    git("add", ".")
    git("commit", "--quiet", "-m", "one")


def asked(module, monkeypatch, *words):
    """What a command line makes of its words."""
    monkeypatch.setattr(sys, "argv", ["experiments", *words])
    return module.from_flags()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_edits_of_the_working_tree_become_the_patch(repository, monkeypatch, capsys):
    edit(repository / "model/answer.py", "return 40", "return 45")
    (repository / "model/extra.py").write_text("EXTRA = 1\n")
    (repository / "experiments/LOG.md").write_text("not part of it\n")
    git("add", "model/answer.py")  # staged or not, all is taken
    status = git("status", "--porcelain")
    save.save(asked(save, monkeypatch, "more", "Is  more better?", "--claim", "he says: it is"))
    assert "3 lines in 2 files" in capsys.readouterr().out
    made = {*git("status", "--porcelain").splitlines()} - {*status.splitlines()}
    assert made == {"?? experiments/more.patch"}
    patch = patches.read("more")
    assert patch.question == "Is more better?" and patch.claim == "he says: it is"
    assert "LOG" not in patch.diff
    git("reset", "--quiet", "--hard")
    (repository / "model/extra.py").unlink()
    patch.apply(repository)
    assert "return 45" in (repository / "model/answer.py").read_text()
    assert (repository / "model/extra.py").read_text() == "EXTRA = 1\n"
    for words, said in {
        ("more", "Again?"): "--replace",
        ("New!", "A name?"): "small letters",
        ("baseline", "A name?"): "baseline",
        ("new", " "): "question",
        ("new", "Words?", "--flags='"): "flags",
    }.items():
        with pytest.raises(ExperimentError, match=said):
            save.save(asked(save, monkeypatch, *words))
    git("checkout", "--quiet", ".")
    (repository / "model/extra.py").unlink()
    with pytest.raises(ExperimentError, match="nothing has been edited"):
        save.save(asked(save, monkeypatch, "new", "Of what?"))
    save.save(asked(save, monkeypatch, "new", "Flags alone?", "--flags=--bonus 3"))
    assert patches.read("new") == Patch("new", "Flags alone?", flags="--bonus 3")
    # Without edits another text leaves the diff as it is, and what was found by it.
    patches.write(replace(patch, finding="a lot"))
    save.save(asked(save, monkeypatch, "more", "Why?", "--replace"))
    assert patches.read("more") == replace(patch, question="Why?", finding="a lot")
    save.save(asked(save, monkeypatch, "more", "Why?", "--replace", "--flags=--bonus 1"))
    assert patches.read("more") == replace(patch, question="Why?", flags="--bonus 1")


def test_a_patch_that_does_not_apply_shows_its_hunk(repository, monkeypatch):
    edit(repository / "model/answer.py", "import sys", "import os")
    edit(repository / "model/answer.py", "return 1", "return 2")
    save.save(asked(save, monkeypatch, "two", "Two hunks?"))
    git("checkout", "--quiet", ".")
    before = (repository / "model/answer.py").read_text()
    edit(repository / "model/answer.py", "def other", "def another")
    with pytest.raises(ExperimentError) as caught:
        patches.read("two").apply(repository)
    said = str(caught.value)
    assert "experiments/two.patch does not apply" in said and "model/answer.py has not" in said
    assert "\n-    return 1\n+    return 2" in caught.value.detail
    assert "import os" not in caught.value.detail
    # Nor is half of it applied, though here it lies within a repository that does not know it.
    assert (repository / "model/answer.py").read_text() == before.replace(
        "def other", "def another"
    )


@pytest.mark.parametrize(
    "text", ["claim: x\n", "question: a\nquestion: b\n", "a b c\n", "question: a\nflags: '\n", ""]
)
def test_a_file_that_is_no_experiment_is_refused_in_a_sentence(repository, text):
    (repository / "experiments/odd.patch").write_text(text)
    with pytest.raises(ExperimentError, match="odd.patch"):
        patches.read("odd")
    with pytest.raises(ExperimentError, match="only odd"):
        patches.read("missing")


@pytest.fixture
def experiments(repository, monkeypatch, capsys):
    """Runs experiments.run there → how many failed, and what it printed."""
    for name, recipe in jobs.RECIPES.items():
        monkeypatch.setitem(jobs.RECIPES, name, jobs.Recipe([], recipe.splits, recipe.folder))
    monkeypatch.setattr(compare.Row, "bootstrap", lambda self, split: 0.125)

    def call(*words):
        failed = run.run(asked(run, monkeypatch, "--jobs", "1", *words))
        return failed, capsys.readouterr()

    return call


def test_runs_are_of_the_commit_with_the_patch_and_are_not_done_twice(
    repository, experiments, monkeypatch, capsys
):
    edit(repository / "model/answer.py", "return 40", "return 45")
    save.save(asked(save, monkeypatch, "more", "Is more better?"))
    failed, said = experiments("more", "--seeds", "2")
    assert failed == 0 and "[4/4]" in said.out and "model/answer.py" in said.err  # not in it
    runs = repository / "runs/experiments"
    values = {str(path.parent.relative_to(runs)): path.read_text() for path in runs.rglob("value")}
    assert values == {"baseline/seed-0": "40", "baseline/seed-1": "41",
                      "more/seed-0": "45", "more/seed-1": "46"}  # fmt: skip
    provenance = json.loads((runs / "more/seed-0/provenance.json").read_text())
    assert provenance["commit"] == git("rev-parse", "HEAD").strip()
    assert provenance["folder"] == str(repository)  # where a corpus of the user's is found
    assert (runs / "more/seed-0/source.diff").read_text() == patches.read("more").diff
    assert (runs / "baseline/seed-0/source.diff").read_text() == ""
    times = [path.stat().st_mtime_ns for path in sorted(runs.rglob("value"))]
    assert "0 of them finished before" not in experiments("more", "--seeds", "2")[1].out
    assert times == [path.stat().st_mtime_ns for path in sorted(runs.rglob("value"))]
    # A comment is no other code; a line is. The old runs are kept.
    edit(repository / "model/answer.py", "return 45", "return 40")
    with open(repository / "model/answer.py", "a") as file:
        file.write("    # a comment\n")
    edit(repository / "model/answer.py", "def other():\n", 'def other():\n    """A docstring."""\n')
    commit()
    assert "4 of them finished" in experiments("more", "--seeds", "2")[1].out
    edit(repository / "model/answer.py", "return 1", "return 3")
    commit()
    with pytest.raises(ExperimentError, match="other code.*--again"):
        experiments("more", "--seeds", "2")
    assert "4 of them finished" in experiments("more", "--seeds", "2", "--commit", "HEAD~1")[1].out
    failed, said = experiments("more", "--seeds", "1", "--again")
    assert failed == 0 and len(list(runs.glob("*/seed-0.until-*"))) == 2
    with pytest.raises(ExperimentError, match="translations are compared"):
        experiments("more", "--", "--model", "classifier")
    with pytest.raises(ExperimentError, match="other flags"):
        experiments("more", "--seeds", "1", "--", "--bonus", "1")
    # What is left of the old code is not compared with the new.
    compare.compare(asked(compare, monkeypatch, "more"))  # one baseline is old: which, is a draw
    assert "has other code or flags than the others: left out" in capsys.readouterr().out
    shutil.rmtree(runs / "baseline")
    assert experiments("baseline", "--seeds", "2")[0] == 0
    compare.compare(asked(compare, monkeypatch, "more"))
    assert "more seed-1 has no baseline of the same seed, code" in capsys.readouterr().out
    # Nor are runs of the patch as it was before taken for those of the patch as it is.
    save.save(asked(save, monkeypatch, "more", "And now?", "--flags=--bonus 1", "--replace"))
    compare.compare(asked(compare, monkeypatch, "more"))
    assert capsys.readouterr().out.count("another patch than today's: left out") == 2
    shutil.rmtree(runs / "baseline/seed-0")
    assert "0 of them finished" in experiments("baseline", "--seeds", "1")[1].out
    with run.alone(runs), pytest.raises(ExperimentError, match="another experiments.run"):
        experiments("baseline", "--seeds", "1")


def test_a_failure_is_told_and_the_others_go_on(repository, experiments, monkeypatch, capsys):
    save.save(asked(save, monkeypatch, "bad", "Does it fail?", "--flags=--fail 1"))
    save.save(asked(save, monkeypatch, "good", "Does it go on?", "--flags=--bonus 3"))
    failed, said = experiments("bad", "good", "--seeds", "1")
    assert failed == 1 and "bad seed 0: FAILED: error: step 7: it cannot be" in said.out
    assert (repository / "runs/experiments/good/seed-0/value").read_text() == "43"
    readme = (repository / "experiments/README.md").read_text()
    compare.compare(asked(compare, monkeypatch))
    assert readme == (repository / "experiments/README.md").read_text()  # unasked
    said = capsys.readouterr().out
    assert "bad seed-0 failed: error: step 7" in said and "[good]" in said
    assert "one seed; BLEU by chance of sentences: p = 0.125" in said
    assert experiments("bad", "good", "--seeds", "1")[0] == 1  # and is tried again


def test_stopped_in_a_run_it_goes_on_with_it(repository, monkeypatch):
    save.save(asked(save, monkeypatch, "slow", "Is it slow?", "--flags=--sleep 60"))
    commit()
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        "from experiments import jobs, patches, run; patches.ROOT = Path('.').resolve(); "
        "patches.HERE = patches.ROOT / 'experiments'; "
        "jobs.RECIPES['mini'] = jobs.Recipe([], ['test'], 'runs/experiments'); run.main()"
    )
    command = [sys.executable, "-c", code, "slow", "--seeds", "1", "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = repository / "runs/experiments/slow/seed-0.log"
    until = time.monotonic() + 30
    while not (log.exists() and "began" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "goes on from here" in err
    assert not (log.parent / "seed-0/value").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert again.returncode == 0, again.stderr
    assert "1 of them finished before" in again.stdout and "resumed" in log.read_text()
    assert (log.parent / "seed-0/value").read_text() == "40"


# ---- Honest sums --------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [*range(1, 21)])
def test_the_interval_is_students(freedom):
    t = compare.STUDENT[freedom - 1]
    outside = tf.math.betainc(freedom / 2, 0.5, freedom / (freedom + t**2))
    assert float(outside) == pytest.approx(0.05, abs=1e-4)


def test_differences_are_paired_by_seed():
    # Worked by hand: mean 2, deviation 1, so 4.303 · 1 / √3 to either side.
    found = compare.Difference([1.0, 2.0, 3.0])
    assert str(found) == "+2.0 [-0.5, +4.5]" and found.verdict == "inside the noise"
    found = compare.Difference([11.0, 12.0, 13.0])
    assert found.half == pytest.approx(4.303 / 3**0.5) and found.verdict == "better"
    assert compare.Difference([-11.0, -12.0, -13.0]).verdict == "worse"
    assert compare.Difference([5.0]).verdict == "one seed" and str(found) == "+12.0 [+9.5, +14.5]"


def test_the_table_and_the_plot_of_runs_with_a_known_answer(
    repository, experiments, monkeypatch, capsys
):
    edit(repository / "model/answer.py", "return 40", "return 45")
    save.save(asked(save, monkeypatch, "more", "Is more better?"))
    save.save(asked(save, monkeypatch, "same", "Nothing?", "--flags=--bonus 0", "--replace"))
    edit(repository / "model/answer.py", "return 45", "return 40")
    (repository / "experiments/same.patch").write_text(
        "question: Nothing?\nflags: --bonus 0\nfinding: nothing, as one would think\n"
    )
    assert experiments("--all", "--seeds", "3")[0] == 0
    drawn = []
    monkeypatch.setattr(plots, "forest", lambda stem, rows, *_: drawn.append((stem, rows)))
    (repository / "experiments/mini.svg").touch()
    compare.compare(asked(compare, monkeypatch, "--all"))
    text = (repository / "experiments/README.md").read_text("utf-8")
    assert text.startswith("# Mine\n<!-- mini -->") and text.endswith("<!-- end of mini -->\n")
    assert "old" not in text and "- **same**: nothing, as one would think\n" in text
    rows = {line.split("|")[1].split(":")[0].strip(" []"): line.split("|")
            for line in text.splitlines() if line.startswith("| ")}  # fmt: skip
    cells = [cell.strip() for cell in rows["more](more.patch)"]][1:-1]
    assert cells[:5] == ["[more](more.patch): Is more better?", "3", "46.0 ± 1.0",
                         "+5.0 [+5.0, +5.0]", "23.0 ± 0.5"]  # fmt: skip
    assert cells[8:12] == ["better", "1,234", "100", "0.5"]
    assert [cell.strip() for cell in rows["same](same.patch)"]][4] == "+0.0 [+0.0, +0.0]"
    assert [cell.strip() for cell in rows["more"]][1:-1] == ["more", "46.0", "26.0"]  # easy, hard
    ((stem, points),) = drawn
    assert dict((name, rest) for name, *rest in points) == {"more": [5, 5, 5], "same": [0, 0, 0]}
    assert text == (repository / "experiments/README.md").read_text("utf-8")
    again = capsys.readouterr().out
    assert again.startswith("| experiment | n |")


def test_of_one_seed_the_sentences_are_drawn_again(tmp_path):
    """sacreBLEU's paired bootstrap on outputs that are as good, and on much worse ones."""
    (tmp_path / "talks").mkdir()
    texts = [f"the number {i} comes before the number {i + 1} ." for i in range(60)]
    for split in ("train", "validation", "test"):
        for language in ("en", "pt"):
            (tmp_path / "talks" / f"{split}.{language}").write_text("\n".join(texts) + "\n")
    settings = {"corpus": str(tmp_path / "talks")}
    runs = {}
    wrong = {name: [*texts] for name in ("best", "alike", "worse")}
    for name, places in {"best": [3], "alike": [4], "worse": range(60)}.items():
        for place in places:
            wrong[name][place] = wrong[name][place][:-9]
    for name, outputs in (wrong | {"same": wrong["best"]}).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
        (tmp_path / name / "translations-test.txt").write_text("\n".join(outputs) + "\n")
        runs[name] = compare.Run(tmp_path / name, 0, (), {}, 0, 0, "")
    chance = {
        name: compare.Row(Patch(name, "?"), [runs[name]], [runs["best"]]).bootstrap("test")
        for name in ("same", "alike", "worse")
    }
    assert chance["same"] == 1 and chance["alike"] > 0.1 and chance["worse"] < 0.01


def test_a_forest_plot_is_drawn(tmp_path):
    rows = [
        ("a", 1.0, -1.0, 3.0),
        ("b", 5.0, 4.0, 6.0),
        ("c", -3.0, -90.0, 84.0),
        ("d", 2, None, None),
    ]
    plots.forest(tmp_path / "forest", rows, "a title", "points")
    text = (tmp_path / "forest.svg").read_text("utf-8")
    places = [text.index(f">{name}</text>") for name in "cadb"]
    assert places == sorted(places)  # from the bottom, the smallest first
    assert (tmp_path / "forest.png").stat().st_size > 5000
