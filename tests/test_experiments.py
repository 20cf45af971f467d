"""Experiments: patches apply, guards fail with them; saving, running and comparing."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import patched
import pytest

from experiments import compare, jobs, patches, run, save
from experiments.patches import ExperimentError, Patch

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = {name: patches.read(name) for name in patches.names()}


# ---- The patches in experiments/ ----------------------------------------------------------------


def test_patch_files_are_in_the_format_that_save_writes():
    assert len(EXPERIMENTS) > 20
    for name, patch in EXPERIMENTS.items():
        assert (patches.HERE / f"{name}.patch").read_text("utf-8") == patch.text()
        assert patch.diff or patch.flags, f"{name} changes nothing"


@pytest.mark.parametrize("name", [name for name, patch in EXPERIMENTS.items() if patch.diff])
def test_every_patch_applies(name):
    EXPERIMENTS[name].apply(ROOT, check=True)


@pytest.mark.parametrize("name", [name for name, patch in EXPERIMENTS.items() if patch.guard])
def test_every_guard_exists(name):
    file, _, test = EXPERIMENTS[name].guard.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text("utf-8")


@pytest.fixture
def copy(tmp_path):
    """Copies the source and applies a patch."""

    def make(patch):
        ignored = shutil.ignore_patterns("__pycache__", "*.png", "*.patch")
        for path in [*ROOT.glob("*.py"), *ROOT.glob("*.cfg")]:
            shutil.copy(path, tmp_path)
        for path in ROOT.glob("*/__init__.py"):
            shutil.copytree(path.parent, tmp_path / path.parent.name, ignore=ignored)
        shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
        patch.apply(tmp_path)
        return tmp_path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_trains_and_decodes(name, copy):
    patch = EXPERIMENTS[name]
    small = "--num-layers 1 --d-model 32 --vocab-size 300 --max-length 9".split()
    flags = [*jobs.RECIPES[patch.recipe or "mini"].flags, *patch.arguments, *small]
    assert patched.call(patched.train_and_decode, copy(patch), flags) == (4, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, patch in EXPERIMENTS.items() if patch.guard])
def test_guard_fails_with_its_patch(name, copy):
    folder = copy(EXPERIMENTS[name])
    status = patched.call(patched.run_test, folder, EXPERIMENTS[name].guard)
    assert status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_guard_passes_without_its_patch(copy):
    """In a copy; in place, every guard is a test of the suite."""
    guard = EXPERIMENTS["concatenated-positions"].guard
    folder = copy(patches.BASELINE)
    assert patched.call(patched.run_test, folder, guard) == pytest.ExitCode.OK


@pytest.mark.slow
def test_bigrams_are_vectors_of_neighbouring_words(copy):
    ids = np.int32([[5, 6, 7, 3, 0], [6, 0, 7, 10, 3]])  # two texts with eos; one word is dropped
    folder = copy(EXPERIMENTS["bigrams"])
    embeddings, table, vectors = patched.call(patched.embed_bigrams, folder, ids)
    expected = table[ids]
    for place, (first, second) in {(0, 1): (5, 6), (0, 2): (6, 7), (1, 3): (7, 10)}.items():
        expected[place] += vectors[(first * 1_000_003 + second) % 2**18]
    np.testing.assert_allclose(embeddings, 2 * expected, rtol=1e-6)  # √d_model = 2


# ---- Save, run and compare, in a small repository whose train.py does not train -----------------

MODEL = """
import sys

def answer():
    # the truth
    return 40


def other():
    return 1
"""
# Writes what train.py writes into a run directory. --fail exits with an error, --sleep waits.
TRAIN = """
import argparse, json, os, subprocess, sys, time
from pathlib import Path
from model.answer import answer
parser = argparse.ArgumentParser()
for name in ("seed", "bonus", "sleep", "fail"):
    parser.add_argument("--" + name, type=int, default=0)
for name in ("name", "runs-dir", "cache-dir", "resume", "model"):
    parser.add_argument("--" + name)
flags = parser.parse_args()
run = Path(flags.resume or Path(flags.runs_dir) / flags.name)
run.mkdir(exist_ok=flags.resume is not None)
git = lambda *a: subprocess.run(["git", *a], capture_output=True, text=True, check=True).stdout
if flags.resume:
    vars(flags).update(json.loads((run / "config.json").read_text()), resume=flags.resume)
else:
    commit = git("rev-parse", "HEAD").strip()
    text = json.dumps({"commit": commit, "folder": os.getcwd()})
    (run / "provenance.json").write_text(text)
    (run / "source.diff").write_text(git("diff", "HEAD"))
    (run / "config.json").write_text(json.dumps(vars(flags)))
print("resumed" if flags.resume else "started", flush=True)
time.sleep(0 if flags.resume else flags.sleep)
if flags.fail:
    sys.exit("error: step 7: the loss is nan")
(run / "value").write_text(str(answer() + flags.bonus + flags.seed))
line = {"tokens_per_second": 100.0, "seconds": 30.0}
(run / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""
EVALUATE = """
import json, sys
from pathlib import Path
run, _, split = sys.argv[1:]
run = Path(run)
value = float((run / "value").read_text())
if json.loads((run / "config.json").read_text())["model"] == "classifier":
    scores = {"accuracy": value / 100, "parameters": 1234}
else:
    scores = {"bleu": value / 2, "exact_match": value, "accuracy": 0.5, "parameters": 1234}
    scores["exact_match_by_tag"] = {"easy": [3, value], "hard": [2, value - 20]}
(run / f"scores-{split}.json").write_text(json.dumps(scores))
"""
README = "# Mine\n<!-- mini -->\nold\n<!-- end of mini -->\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small git checkout that `patches` uses instead of the project's."""
    files = {
        "model/answer.py": MODEL,
        "train.py": TRAIN,
        "evaluate.py": EVALUATE,
        ".gitignore": "runs\n.cache\n__pycache__\n",
        "experiments/README.md": README,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
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
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit():
    git("add", ".")
    git("commit", "--quiet", "-m", "one")


def parse(module, monkeypatch, *words):
    """Parse a command line of a program of experiments/."""
    monkeypatch.setattr(sys, "argv", ["experiments", *words])
    return module.parse_flags()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_save_writes_the_edits_of_the_working_tree(repository, monkeypatch, capsys):
    edit(repository / "model/answer.py", "return 40", "return 45")
    (repository / "model/extra.py").write_text("EXTRA = 1\n")
    (repository / "experiments/LOG.md").write_text("not saved\n")
    git("add", "model/answer.py")  # staged or not, all edits are saved
    status = git("status", "--porcelain")
    save.save(parse(save, monkeypatch, "more", "Is  more better?", "--claim", "always"))
    assert "3 lines in 2 files" in capsys.readouterr().out
    new = {*git("status", "--porcelain").splitlines()} - {*status.splitlines()}
    assert new == {"?? experiments/more.patch"}
    patch = patches.read("more")
    assert patch.question == "Is more better?" and patch.claim == "always"
    assert "LOG" not in patch.diff
    git("reset", "--quiet", "--hard")
    (repository / "model/extra.py").unlink()
    patch.apply(repository, check=True)
    assert "return 40" in (repository / "model/answer.py").read_text()
    patch.apply(repository)
    assert "return 45" in (repository / "model/answer.py").read_text()
    assert (repository / "model/extra.py").read_text() == "EXTRA = 1\n"


@pytest.mark.parametrize(
    "words, keyword",
    [
        (("more", "Again?"), "--replace"),
        (("New!", "A name?"), "name"),
        (("baseline", "A name?"), "baseline"),
        (("new", " "), "question"),
        (("new", "Words?", "--flags='"), "flags"),
        (("new", "Of what?"), "nothing"),
    ],
)
def test_save_rejects(words, keyword, repository, monkeypatch):
    patches.write(Patch("more", "Is more better?", flags="--bonus 1"))
    with pytest.raises(ExperimentError, match=keyword):
        save.save(parse(save, monkeypatch, *words))


def test_save_replaces_only_what_is_given(repository, monkeypatch):
    edit(repository / "model/answer.py", "return 40", "return 45")
    save.save(parse(save, monkeypatch, "more", "Is more better?"))
    git("checkout", "--quiet", ".")
    patch = replace(patches.read("more"), finding="a lot")
    patches.write(patch)
    save.save(parse(save, monkeypatch, "more", "Why?", "--replace"))
    assert patches.read("more") == replace(patch, question="Why?")
    save.save(parse(save, monkeypatch, "more", "Why?", "--replace", "--flags=--bonus 1"))
    assert patches.read("more") == replace(patch, question="Why?", flags="--bonus 1", finding="")


def test_patch_that_does_not_apply_reports_its_hunk(repository, monkeypatch):
    edit(repository / "model/answer.py", "import sys", "import os")
    edit(repository / "model/answer.py", "return 1", "return 2")
    save.save(parse(save, monkeypatch, "two", "Two hunks?"))
    git("checkout", "--quiet", ".")
    edit(repository / "model/answer.py", "def other", "def another")
    before = (repository / "model/answer.py").read_text()
    with pytest.raises(
        ExperimentError, match="two.patch does not apply.*model/answer.py"
    ) as caught:
        patches.read("two").apply(repository)
    assert "\n-    return 1\n+    return 2" in caught.value.detail
    assert "import os" not in caught.value.detail
    assert (repository / "model/answer.py").read_text() == before  # not even in part


@pytest.mark.parametrize(
    "text", ["claim: x\n", "question: a\nquestion: b\n", "a b c\n", "question: a\nflags: '\n", ""]
)
def test_invalid_patch_files_are_rejected(repository, text):
    (repository / "experiments/odd.patch").write_text(text)
    with pytest.raises(ExperimentError, match="odd.patch"):
        patches.read("odd")
    with pytest.raises(ExperimentError, match="odd"):
        patches.read("missing")


@pytest.fixture
def run_experiments(repository, monkeypatch, capsys):
    """Calls experiments.run. Returns the number of failures, standard output and error."""
    for name, recipe in jobs.RECIPES.items():
        flags = ["--model", "classifier"] if name == "imdb" else []
        monkeypatch.setitem(jobs.RECIPES, name, jobs.Recipe(flags, recipe.splits, recipe.folder))
    monkeypatch.setattr(compare.Row, "bootstrap", lambda self, split: 0.125)

    def call(*words):
        failed = run.run(parse(run, monkeypatch, "--jobs", "1", *words))
        return failed, *capsys.readouterr()

    return call


@pytest.fixture
def more(repository, monkeypatch):
    """Saves the experiment "more", whose answer is 45 instead of 40; leaves the edit in place."""
    edit(repository / "model/answer.py", "return 40", "return 45")
    save.save(parse(save, monkeypatch, "more", "Is more better?"))


def values(folder):
    """Return what the runs in a directory have written, by name and seed."""
    paths = folder.rglob("value")
    return {path.parent.relative_to(folder).as_posix(): float(path.read_text()) for path in paths}


def test_runs_are_of_the_commit_with_the_patch(repository, run_experiments, more):
    failed, out, err = run_experiments("more", "--seeds", "2")
    assert failed == 0 and "[4/4]" in out
    assert "model/answer.py" in err  # the edit is not part of the commit
    runs = repository / "runs/experiments"
    expected = {"baseline/seed-0": 40, "baseline/seed-1": 41, "more/seed-0": 45, "more/seed-1": 46}
    assert values(runs) == expected
    provenance = json.loads((runs / "more/seed-0/provenance.json").read_text())
    assert provenance["commit"] == git("rev-parse", "HEAD").strip()
    assert provenance["folder"] == str(repository)  # relative paths, as of --corpus, are the user's
    assert (runs / "more/seed-0/source.diff").read_text() == patches.read("more").diff
    assert (runs / "baseline/seed-0/source.diff").read_text() == ""


def test_finished_runs_are_skipped_unless_code_or_flags_differ(
    repository, run_experiments, more, monkeypatch
):
    def output(*words):
        return run_experiments("more", "--seeds", "1", *words)[1]

    runs = repository / "runs/experiments"
    output("--splits", "test")
    times = [path.stat().st_mtime_ns for path in sorted(runs.rglob("value"))]
    assert "2 finished" in output("--splits", "test")
    assert times == [path.stat().st_mtime_ns for path in sorted(runs.rglob("value"))]
    compare.compare(parse(compare, monkeypatch, "more", "--splits", "test"))
    with pytest.raises(ExperimentError, match="no finished baseline"):
        compare.compare(parse(compare, monkeypatch, "more"))
    assert " 0 finished" in output()  # one more split is to be scored
    assert len(list(runs.rglob("scores-compositional.json"))) == 2
    # Comments and docstrings are not code.
    git("checkout", "--quiet", "model")
    edit(repository / "model/answer.py", "def other():\n", 'def other():\n    """A docstring."""\n')
    edit(repository / "model/answer.py", "return 1", "return 1  # a comment")
    commit()
    assert "2 finished" in output()
    edit(repository / "model/answer.py", "return 1", "return 3")
    commit()
    with pytest.raises(ExperimentError, match="code.*--again"):
        output()
    assert "2 finished" in output("--commit", "HEAD~1")
    assert "FAILED" not in output("--again")
    assert len(list(runs.glob("*/seed-0.until-*"))) == 2
    with pytest.raises(ExperimentError, match="flags"):
        output("--", "--bonus", "1")


def test_run_directory_of_another_program_is_kept(repository, run_experiments):
    (repository / "runs/experiments/baseline/seed-0").mkdir(parents=True)
    with pytest.raises(ExperimentError, match="seed-0"):
        run_experiments("baseline", "--seeds", "1")


def test_only_runs_of_the_same_code_are_compared(
    repository, run_experiments, more, monkeypatch, capsys
):
    def report():
        compare.compare(parse(compare, monkeypatch, "more"))
        return capsys.readouterr().out

    runs = repository / "runs/experiments"
    git("checkout", "--quiet", "model")
    run_experiments("more", "--seeds", "2")
    edit(repository / "model/answer.py", "return 1", "return 3")
    commit()
    run_experiments("more", "--seeds", "1", "--again")
    assert "baseline seed-" in report()  # one of the two is left out
    shutil.rmtree(runs / "baseline")
    run_experiments("baseline", "--seeds", "2")
    assert "more seed-1 has no baseline" in report()
    save.save(parse(save, monkeypatch, "more", "And now?", "--flags=--bonus 1", "--replace"))
    assert report().count("older patch") == 2
    shutil.rmtree(runs / "baseline/seed-0")
    assert "0 finished" in run_experiments("baseline", "--seeds", "1")[1]


def test_second_process_is_locked_out(repository, run_experiments):
    with run.lock_folder(repository / "runs/experiments"), pytest.raises(ExperimentError):
        run_experiments("baseline", "--seeds", "1")


def test_failed_run_is_reported_and_others_continue(
    repository, run_experiments, monkeypatch, capsys
):
    save.save(parse(save, monkeypatch, "bad", "Does it fail?", "--flags=--fail 1"))
    save.save(parse(save, monkeypatch, "good", "Do others continue?", "--flags=--bonus 3"))
    failed, out, _ = run_experiments("bad", "good", "--seeds", "1")
    assert failed == 1 and "bad seed 0: FAILED: error: step 7" in out
    assert (repository / "runs/experiments/good/seed-0/value").read_text() == "43"
    compare.compare(parse(compare, monkeypatch))
    assert (repository / "experiments/README.md").read_text() == README  # only with --all
    out = capsys.readouterr().out
    assert "bad seed-0 is not finished" in out and "step 7" in out and "[good]" in out
    assert "one seed" in out and "p = 0.125" in out
    assert run_experiments("bad", "good", "--seeds", "1")[0] == 1  # failed runs are repeated


def test_classifiers_are_compared_by_accuracy(repository, run_experiments, monkeypatch, capsys):
    words = ("pairs", "Do pairs help?", "--flags=--bonus 2", "--recipe", "imdb")
    save.save(parse(save, monkeypatch, *words))
    save.save(parse(save, monkeypatch, "more", "Is more better?", "--flags=--bonus 9"))
    save.save(parse(save, monkeypatch, "label", "A label?", "--flags=--model classifier"))
    failed, out, _ = run_experiments("pairs", "--seeds", "2")
    assert failed == 0 and "test accuracy 42.0" in out
    assert len(values(repository / "runs/experiments-imdb")) == 4
    compare.compare(parse(compare, monkeypatch, "pairs"))
    row = next(line for line in capsys.readouterr().out.splitlines() if "[pairs]" in line)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[3:6] == ["42.5 ± 0.7", "+2.0 [+2.0, +2.0]", "better"]
    assert jobs.for_recipe("imdb") == ["pairs"] and jobs.for_recipe("ted") == ["label", "more"]
    with pytest.raises(ExperimentError, match="--recipe"):
        run_experiments("more", "pairs")
    with pytest.raises(ExperimentError, match="--model"):
        run_experiments("label")


def test_stopped_run_is_resumed(repository, monkeypatch):
    save.save(parse(save, monkeypatch, "slow", "Is it slow?", "--flags=--sleep 60"))
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
    deadline = time.monotonic() + 30
    while not (log.exists() and "started" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "resume" in err
    assert not (log.parent / "seed-0/value").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert again.returncode == 0, again.stderr
    assert "1 finished" in again.stdout and "resumed" in log.read_text()
    assert (log.parent / "seed-0/value").read_text() == "40"


# ---- Statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [*range(1, 21)])
def test_quantiles_of_students_t(freedom):
    """The density integrates to 2.5 % beyond the quantile; x = √n tan(angle) makes it finite."""
    angle = np.linspace(math.atan(compare.STUDENT[freedom - 1] / freedom**0.5), math.pi / 2, 10_001)
    density = np.cos(angle) ** (freedom - 1)
    scale = math.gamma((freedom + 1) / 2) / (math.pi**0.5 * math.gamma(freedom / 2))
    assert scale * np.trapezoid(density, angle) == pytest.approx(0.025, abs=5e-5)


def test_differences_are_paired_by_seed():
    # By hand: mean 2, deviation 1, so 4.303 · 1 / √3 on either side.
    small = compare.Difference([1.0, 2.0, 3.0])
    assert str(small) == "+2.0 [-0.5, +4.5]" and small.verdict == "inside the noise"
    large = compare.Difference([11.0, 12.0, 13.0])
    assert large.half == pytest.approx(4.303 / 3**0.5) and large.verdict == "better"
    assert str(large) == "+12.0 [+9.5, +14.5]"
    assert compare.Difference([-11.0, -12.0, -13.0]).verdict == "worse"
    assert compare.Difference([5.0]).verdict == "one seed"


def test_report_of_runs_with_known_scores(repository, run_experiments, more, monkeypatch, capsys):
    git("checkout", "--quiet", "model")
    same = Patch("same", "Nothing?", flags="--bonus 0", finding="no difference")
    patches.write(same)
    patches.write(Patch("pairs", "Of labels?", recipe="imdb", flags="--bonus 1"))
    assert run_experiments("--all", "--seeds", "3")[0] == 0
    drawn, forest = [], compare.forest
    monkeypatch.setattr(compare, "forest", lambda *args: drawn.append(args) or forest(*args))
    compare.compare(parse(compare, monkeypatch, "--all"))
    text = (repository / "experiments/README.md").read_text("utf-8")
    assert text.startswith("# Mine\n<!-- mini -->") and text.endswith("<!-- end of mini -->\n")
    assert "old" not in text and "- **same**: no difference\n" in text and "pairs" not in text
    assert (repository / "experiments/mini.png").stat().st_size > 5000
    rows = {
        line.split("|")[1].split(":")[0].strip(" []"): [cell.strip() for cell in line.split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    }
    cells = rows["more](more.patch)"][1:-1]
    assert cells[:4] == [
        "[more](more.patch): Is more better?",
        "3",
        "46.0 ± 1.0",
        "+5.0 [+5.0, +5.0]",
    ]
    assert cells[4] == "23.0 ± 0.5" and cells[8:12] == ["better", "1,234", "100", "0.5"]
    assert rows["same](same.patch)"][4] == "+0.0 [+0.0, +0.0]"
    assert rows["more"][1:-1] == ["more", "46.0", "26.0"]  # easy, hard
    ((points, *_),) = drawn
    assert points == [("more", 5, 5, 5), ("same", 0, 0, 0)]
    assert capsys.readouterr().out.startswith("| experiment | n |")


def test_bootstrap_tells_equal_from_worse_outputs(tmp_path):
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
    p = {
        name: compare.Row(Patch(name, "?"), [runs[name]], [runs["best"]]).bootstrap("test")
        for name in ("same", "alike", "worse")
    }
    assert p["same"] == 1 and p["alike"] > 0.1 and p["worse"] < 0.01


def test_forest_plot_is_sorted_and_marks_noise():
    rows = [("a", 1, -1, 3), ("b", 5, 4, 6), ("c", -3, -90, 84), ("d", 2, None, None)]
    figure = compare.forest(rows, "a title", "points")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "a", "d", "b"]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in points] == [-3, 1, 2, 5]
    assert [line.get_mfc() != "white" for line in points] == [False, False, False, True]
    colours = [text.get_text().split(":")[0] for text in figure.legends[0].texts]
    assert colours == ["inside the noise", "one seed", "better"]
    assert axes.get_xlim()[1] < 10  # the interval of c is clipped
