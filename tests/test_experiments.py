"""Experiments: patches apply, guards fail with them; verdicts, stored baselines, the report."""

import json
import re
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
import scipy.stats
import tensorflow as tf
from helpers import TINY, run_loop, steps_saved, write_corpus
from test_page import browse, needs_browser

from evaluation import translator
from experiments import patches, recipes, report, run, runs, stats
from experiments.patches import ExperimentError
from experiments.recipes import RECIPES, Recipe, Sample
from experiments.stats import Rule, Sigma
from training.records import load_config

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = {name: patches.read(name) for name in patches.names()}


# ---- The patches in experiments/ ----------------------------------------------------------------


def test_every_patch_changes_something():
    assert len(EXPERIMENTS) > 20
    assert all(patch.diff or patch.flags for patch in EXPERIMENTS.values())


@pytest.mark.parametrize("name", [name for name, patch in EXPERIMENTS.items() if patch.diff])
def test_every_patch_applies(name):
    EXPERIMENTS[name].apply(ROOT, "--check")


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
    flags = [*RECIPES[patch.recipe or "mini"].flags.split(), *patch.flags.split(), *small]
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


# ---- Statistics ---------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
BASELINE = RANDOM.normal(70, 1, 16).tolist()


def test_levels_of_equally_spaced_looks_are_the_published_ones():
    """The information is 1/3, 2/3 and 1: boundaries of Lan & DeMets with O'Brien & Fleming's
    spending and a two-sided error of 5 %, as in every table of group-sequential designs."""
    limits = scipy.stats.norm.isf(np.array(stats.levels((2, 5, 10))) / 2)
    np.testing.assert_allclose(limits, [3.710, 2.511, 1.993], atol=1e-3)
    assert stats.levels((7,)) == pytest.approx((0.05,))


@pytest.mark.parametrize("note, equal", [("", True), ("two-humped", False)])
def test_interval_is_that_of_scipy(note, equal):
    row, rule = RANDOM.normal(71, 1, 6), Rule(0.5, (6,))
    sigma = stats.pool(row, BASELINE) if equal else stats.pool(BASELINE)
    verdict = stats.judge(row, BASELINE, sigma, rule, note)
    interval = scipy.stats.ttest_ind(row, BASELINE, equal_var=equal).confidence_interval(0.95)
    assert (verdict.low, verdict.high) == pytest.approx(tuple(interval))
    if equal:
        assert stats.judge_question(row, BASELINE, stats.pool(BASELINE), rule) == verdict


def test_no_difference_means_that_two_one_sided_tests_reject():
    rule, words = Rule(0.8, (16,)), []
    for shift in np.linspace(-1.5, 1.5, 61):
        row = np.array(BASELINE[::-1]) + shift
        verdict = stats.judge_question(row, BASELINE, stats.pool(BASELINE), rule)
        tests = [
            scipy.stats.ttest_ind(row + d, BASELINE, alternative=side).pvalue
            for d, side in ((0.8, "greater"), (-0.8, "less"))
        ]
        difference = scipy.stats.ttest_ind(row, BASELINE).pvalue < 0.05
        expected = ("better" if shift > 0 else "worse") if difference else "undecided"
        words.append("no difference" if not difference and max(tests) < 0.05 else expected)
        assert verdict.word == words[-1], shift
    assert {*words} == {"better", "worse", "no difference", "undecided"}


def test_table_uses_dunnetts_interval_for_healthy_rows_and_names_the_others():
    rows = {f"row {i}": RANDOM.normal(70 + i, 1, 6) for i in range(4)}
    rows |= {"humps": [2.0, 32, 6, 31, 3, 30], "flat": [0.0] * 6, "lost": [np.nan, 70, 70, 70]}
    assert stats.unhealthy({"baseline": BASELINE, **rows}) == {
        "humps": "two-humped",
        "flat": "hardly varies",
        "lost": "diverged",
    }
    verdicts = stats.judge_table(rows, BASELINE, Rule(2.0, (6,)))
    healthy = [rows[f"row {i}"] for i in range(4)]
    interval = scipy.stats.dunnett(*healthy, control=BASELINE, rng=1).confidence_interval(0.95)
    for i, ends in enumerate(zip(interval.low, interval.high, strict=True)):
        verdict = verdicts[f"row {i}"]
        assert (verdict.low, verdict.high) == pytest.approx(ends, abs=0.02)
    assert [verdicts[name].word for name in ("humps", "flat", "lost")] == ["worse"] * 3
    assert str(verdicts["lost"]) == "worse (diverged)"


def test_undecided_says_how_many_more_seeds_would_decide():
    def ask(n):
        return stats.judge([1.35] * n, [0.0] * n, Sigma(2.0, 200), Rule(2.0, (16,)))

    more = ask(16).more
    assert str(ask(16)).startswith("undecided +1.4 [-") and f"about {more} more seeds" in str(
        ask(16)
    )
    assert [ask(16 + more - i).word for i in range(2)] == ["better", "undecided"]


def test_equal_models_are_rarely_called_different_and_a_planted_effect_is_found():
    sigma, rule = stats.pool(BASELINE), Rule(2.0, (6, 10, 16))
    strict = rule._replace(delta=0.01)  # so that no question ends as "no difference"
    for each in (rule, strict):
        shares = stats.resample(BASELINE, sigma, each)
        assert shares["better"][-1] + shares["worse"][-1] <= 0.05
    assert shares["better"][-1] + shares["worse"][-1] > 0.02  # or the intervals are too wide
    for look, effect in enumerate(stats.detectable(sigma, rule)):
        found = stats.resample(BASELINE, sigma, rule, effect, 2000)["better"][look]
        assert found > 0.78, (look, effect)  # 0.8, less the error of 2,000 tries


# ---- Runs, in a small repository whose trial.py does not train -----------------------------------

MODEL = """
def answer():
    # the truth
    return 40


def other():
    return 1
"""
# Writes the result that a real trial writes. --fail exits with an error, --sleep waits.
TRIAL = """
import json, os, sys, time
from pathlib import Path
from model.answer import answer
job = json.loads(Path(sys.argv[1]).read_text())
flags = dict(flag.removeprefix("--").split("=") for flag in job["flags"])
number = lambda name: float(flags.get(name, 0))
Path(job["run"]).mkdir(exist_ok=True)
with open(os.path.join(job["run"], "started"), "a") as file:
    file.write("x")
time.sleep(number("sleep"))
if "fail" in flags:
    sys.exit("error: step 7")
seed = int(flags["seed"])
value = answer() + number("bonus") + seed * 7 % 5 / 2
result = {"scores": {"1": {"exact_match": value}}, "weights": str(value), "parameters": 10}
result |= {"curve": [[5, 3.0], [9, 100 / value]], "seconds": {"train": 2.0, "score": 1.0}}
if "diverge" in flags:
    result = {"diverged": "step 3"}
Path(job["result"]).write_text(json.dumps(job["about"] | result))
"""
SMALL = Recipe(
    "mini",
    "--first=1",
    headline="exact_match",
    delta=1.0,
    sample=Sample("test"),
    final=Sample("test"),
    averages=(1,),
    looks=(3, 5),
)
README = "# Mine\n<!-- results -->\nold\n<!-- end of results -->\nrest\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small git checkout that the experiments use instead of the project's."""
    files = {
        "model/__init__.py": "",
        "model/answer.py": MODEL,
        ".gitignore": "runs\n.cache\n__pycache__\n",
        "experiments/__init__.py": "",
        "experiments/trial.py": TRIAL,
        "experiments/README.md": README,
        "experiments/bad.patch": "question: Does it fail?\nflags: --fail=1\n",
        "experiments/lost.patch": "question: Does it diverge?\nflags: --diverge=1\n",
        "experiments/more.patch": "question: Is <b>more</b> better?\ntheme: positions\n"
        "claim: always\nflags: --bonus=8\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(patches, "ROOT", tmp_path)
    monkeypatch.setattr(patches, "HERE", tmp_path / "experiments")
    monkeypatch.setattr(runs, "load_texts", lambda recipe, final: [final])
    monkeypatch.setitem(RECIPES, "mini", SMALL)
    monkeypatch.setitem(RECIPES, "ted", replace(SMALL, name="ted"))
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "--quiet"], check=True)
    commit()
    return tmp_path


def commit():
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "-m", "one"], check=True)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def ask(repository, monkeypatch, capsys):
    """Calls experiments.run. Returns the number of failed runs and standard output."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["experiments.run", *words])
        failed = run.run(run.parse_flags())
        return failed, capsys.readouterr().out

    return call


def started(folder):
    """Return how many times the runs of an experiment have started."""
    return sum(len(path.read_text()) for path in folder.glob("seed-*/started"))


def test_an_uncommitted_edit_gets_a_verdict(repository, ask):
    edit(repository / "model/answer.py", "return 40", "return 50")
    failed, out = ask()
    assert failed == 0 and re.search(r"edit-\w+, 3 seeds: better \+10.0 \[\+", out)
    folder = repository / "runs/experiments/mini"
    assert started(folder / "baseline") == 5 and started(next(folder.glob("edit-*"))) == 3
    ask()  # nothing is run again
    assert started(folder / "baseline") == 5 and started(next(folder.glob("edit-*"))) == 3
    edit(repository / "model/answer.py", "return 50", "return 40  # the same")
    with pytest.raises(ExperimentError, match="changes nothing"):
        ask()
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)
    with pytest.raises(ExperimentError, match="nothing to ask"):
        ask()


def test_seeds_are_added_until_the_question_is_decided(repository, ask):
    (repository / "experiments/some.patch").write_text("question: 1?\nflags: --bonus=1.2\n")
    _, out = ask("some", "--plan")
    assert "3 seeds: 8 runs" in out and "5 seeds: 10 runs" in out and "unknown" in out
    assert not [*(repository / "runs").rglob("started")]
    _, out = ask("some")
    assert "some, 3 seeds: undecided" in out and "some, 5 seeds: " in out
    _, out = ask("more", "--plan")
    assert "5 seeds, a difference of" in out and "5 seeds: 5 runs" in out and "minutes" in out


def test_stored_baseline_stands_only_if_seed_0_has_equal_bits(repository, ask, monkeypatch):
    baseline = repository / "runs/experiments/mini/baseline"

    def runs_of_baseline():
        shutil.rmtree(repository / "runs", ignore_errors=True)
        out = ask("more")[1]
        return started(baseline), out

    ask("baseline", "more", "--store")
    assert runs_of_baseline()[0] == 0
    edit(repository / "model/answer.py", "# the truth", "# a comment")
    commit()
    assert runs_of_baseline()[0] == 0
    edit(repository / "model/answer.py", "return 1", "return 3")  # no score depends on it
    commit()
    count, out = runs_of_baseline()
    assert count == 1 and "another model/answer.py; it stands: equal bits" in out
    edit(repository / "model/answer.py", "return 40", "return 41")
    commit()
    count, out = runs_of_baseline()
    assert count == 5 and "more, 3 seeds: better +8" in out
    assert "another model/answer.py; 5 seeds are run here" in out
    monkeypatch.setattr(runs, "processor", lambda: "a new one")
    assert "another processor" in runs_of_baseline()[1]


def test_failed_and_diverged_runs_are_named_and_the_others_judged(repository, ask):
    failed, out = ask("bad", "lost", "more")
    assert failed == 5 and "bad seed 0 FAILED: error: step 7" in out
    assert "lost, 3 seeds: worse (diverged)" in out and "more, 3 seeds: better" in out
    assert "bad, " not in out
    ask("bad", "lost", "more")
    folder = repository / "runs/experiments/mini"
    assert started(folder / "lost") == 3 and started(folder / "bad") == 10  # failed ones run again


def test_invalid_patch_files_are_rejected(repository):
    for text in ("claim: x\n", "question: a\nquestion: b\n", "a b c\n", "question: a\nflags: '\n"):
        (repository / "experiments/odd.patch").write_text(text)
        with pytest.raises(ExperimentError, match="odd.patch"):
            patches.read("odd")
    with pytest.raises(ExperimentError, match="choose from bad, lost"):
        patches.read("missing")


def test_interrupted_runs_are_stopped_and_resume(repository):
    (repository / "experiments/slow.patch").write_text("question: Slow?\nflags: --sleep=60\n")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        "from experiments import patches, run, runs; from experiments.recipes import *\n"
        "patches.ROOT = Path('.').resolve(); patches.HERE = patches.ROOT / 'experiments'\n"
        f"runs.load_texts = lambda *_: []; RECIPES['mini'] = {SMALL!r}\nrun.main()"
    )
    command = [sys.executable, "-c", code, "slow"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    file = repository / "runs/experiments/mini/slow/seed-0/started"
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "repeat the command" in errors
    assert not [*file.parent.parent.glob("*.*.json.*")] and file.read_text() == "x"


def test_texts_for_the_final_score_are_not_among_those_that_decide():
    small = replace(
        RECIPES["mini"],
        sample=Sample("compositional", 300, seed=1),
        final=Sample("compositional", 300, seed=2),
    )
    first, final = (recipes.load_texts(small, final) for final in (False, True))
    assert not {*map(str.lower, first.sources)} & {*map(str.lower, final.sources)}
    assert len(first.sources) == 300 and len({*first.tags}) == 11
    for name in ("mini", "ted", "imdb"):
        assert RECIPES[name].sample.split != "test" and RECIPES[name].sample != RECIPES[name].final


# ---- The report ----------------------------------------------------------------------------------


@pytest.fixture
def reported(repository, ask):
    """A repository with stored results and their report."""
    shutil.copy(ROOT / "experiments/template.html", repository / "experiments")
    ask("--all", "--store")
    report.write()
    return repository / "experiments"


def test_readme_is_written_between_its_markers(reported):
    text = (reported / "README.md").read_text("utf-8")
    assert text.startswith("# Mine\n<!-- results -->") and text.endswith("-->\nrest\n")
    (row,) = [line for line in text.splitlines() if "[more](more.patch)" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0].endswith("Is <b>more</b> better?") and cells[1] == "always"
    assert cells[2].startswith("better +8.0 [+") and cells[3] == "not measured yet"
    assert cells[4] == "× 1.00, × 1.00" and text.index("### Positions") < text.index(row)
    assert "old" not in text and "lost (diverged)" in text
    assert (reported / "mini.png").stat().st_size > 5000


def test_forest_plot_shades_the_zone_and_explains_its_colours(repository, ask):
    ask("--all", "--store")
    results = report.Results(SMALL, run.read_stored("mini"))
    for name, (word, difference) in {
        "equal": ("no difference", 0.1),
        "far": ("worse", -90),
    }.items():
        ends = difference - 0.4, difference + 0.4
        results.verdicts[name] = stats.Verdict(word, difference, *ends, 3)
    figure = report.forest(results)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["far", "equal", "more"]
    legend = [text.get_text() for text in figure.legends[0].texts]
    assert legend == ["±1 points: too small to matter", "worse", "no difference", "better"]
    (zone,) = axes.patches
    assert (zone.get_x(), zone.get_width()) == (-1, 2)
    assert axes.get_xlim()[0] > -10 and [text.get_text() for text in axes.texts] == ["-90", "+8"]


@needs_browser
def test_page_shows_questions_seeds_curves_and_diffs_as_text(reported, ask):
    edit(reported.parent / "model/answer.py", "return 40", "return 40 + 0 * len('</script>')")
    diff = subprocess.run(["git", "diff", "model"], capture_output=True, text=True).stdout
    (reported / "more.patch").write_text((reported / "more.patch").read_text() + f"\n{diff}")
    report.write()
    page = reported / "report.html"
    text = page.read_text("utf-8")
    assert not re.search(r"//\w+\.(?!w3)|url\(|@import|\b(src|href) *=", text)
    script = """
    const card = document.getElementById("more");
    return [card.querySelector("h3").textContent, card.querySelector(".verdict").textContent,
            card.querySelectorAll(".seeds circle").length,
            card.querySelectorAll(".curves path[stroke-width]").length,
            [...card.querySelectorAll(".added, .removed")].map((line) => line.textContent),
            document.querySelectorAll("article").length,
            document.documentElement.scrollWidth <= window.innerWidth];
    """
    question, verdict, seeds, lines, changes, cards, fits = browse(page, "more", script)
    assert question == "Is <b>more</b> better?" and verdict.startswith("mini: better +8.0")
    assert seeds == 5 + 3 and lines == 2 and cards == 3 and fits
    assert changes == ["-    return 40", "+    return 40 + 0 * len('</script>')"]


# ---- With TensorFlow -----------------------------------------------------------------------------


def test_an_average_is_over_the_ends_of_epochs_however_often_a_run_saves(tmp_path, monkeypatch):
    """A resumed run has more checkpoints within an epoch, and must get the same scores."""
    write_corpus(tmp_path / "talks")
    settings = {"corpus": str(tmp_path / "talks"), "batch_tokens": 1500, "runs_dir": str(tmp_path)}
    settings = TINY | settings | {"cache_dir": str(tmp_path / "cache"), "epochs": 3}

    def train(name, save_every, **changes):
        def grow(step, training):
            training.model.trainable_variables[0].assign_add(tf.ones([400, 16]) * 2.0**step)

        monkeypatch.setattr("training.run.SAVE_EVERY", save_every)
        run_loop(settings | {"name": name} | changes, grow)
        folder = tmp_path / name
        model = translator.load(folder, load_config(folder), average=2).model
        return steps_saved(folder), model.trainable_variables[0].numpy()

    (_, first, second, third), expected = train("seldom", 180)
    for keep in (2, 99):
        steps, average = train(f"keep-{keep}", 0, keep_checkpoints=keep)
        assert steps == ([second, third] if keep == 2 else [*range(third + 1)])
        np.testing.assert_array_equal(average, expected)
    steps, average = train("stopped", 180, max_steps=third - 1)
    assert steps == [0, first, second, third - 1]
    assert (average < expected).all()  # of the first and second epoch


@pytest.mark.slow
def test_trial_trains_and_scores_the_same_bits_again(tmp_path):
    recipe = RECIPES["smoke"]
    (tmp_path / "texts.json").write_text(json.dumps(recipes.load_texts(recipe)))
    results = []
    for name in ("one", "two"):
        files = {"run": "runs/" + name, "cache": "cache", "texts": "texts.json", "result": name}
        job = {key: str(tmp_path / value) for key, value in files.items()}
        job |= {"flags": [*recipe.flags.split(), "--seed=3"], "averages": [2, 1], "about": {"a": 1}}
        (tmp_path / "job").write_text(json.dumps(job))
        command = [sys.executable, "-m", "experiments.trial", str(tmp_path / "job")]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
        results.append(json.loads((tmp_path / name).read_text()))
    one, two = results
    assert one["a"] == 1 and len(one["weights"]) == 16 and len(one["curve"]) == 2
    for key in ("weights", "scores", "curve", "parameters"):
        assert one[key] == two[key]
    assert one["scores"]["2"]["loss"] != one["scores"]["1"]["loss"]
    assert one["scores"]["2"]["by_tag"].keys() == {
        *json.loads((tmp_path / "texts.json").read_text())[2]
    }
    assert not (tmp_path / "runs/one/checkpoints").exists()


@pytest.mark.slow
def test_tensorboard_reads_the_stored_curves(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.write_events(tmp_path, [{"seed": 4, "curve": [[10, 2.5], [20, 1.5]]}])
    events = EventAccumulator(str(tmp_path / "seed-4/validation"))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("metrics/loss")]
    assert points == [(10, 2.5), (20, 1.5)]
