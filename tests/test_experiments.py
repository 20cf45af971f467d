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
from types import SimpleNamespace

import numpy as np
import patched
import power
import pytest
import scipy.stats
import tensorflow as tf
from helpers import TINY, run_loop, steps_saved, training_in_process, write_corpus
from test_page import browse, needs_browser

from data.splits import Split
from evaluation import translator
from experiments import patches, question, recipes, report, run, runs, stats, worker
from experiments.patches import ExperimentError
from experiments.recipes import RECIPES, Recipe
from experiments.stats import Sigma
from training import machine
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


def test_stored_results_are_of_the_present_patches():
    for recipe in RECIPES:
        stored = question.read_stored(recipe)
        assert not stored or not question.changed(stored)


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
    flags = [*RECIPES[patch.recipe].flags.split(), *patch.flags.split(), *small]
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


def ask_one(row, rule, prior=stats.NO_ROWS, baseline=BASELINE):
    return stats.judge({"row": row}, baseline, *rule, prior)["row"]


@pytest.mark.parametrize("n, spread, equal", [(6, 1, True), (6, 9, False), (10, 1, False)])
def test_interval_is_students_or_welchs_for_ten_seeds_and_unhealthy_rows(n, spread, equal):
    row, rule = np.linspace(-spread, spread, n) + 70, (0.1, (n,))
    sigma = stats.pool(row, BASELINE) if n == 10 else stats.pool(BASELINE)
    verdict = ask_one(row, rule)
    assert bool(verdict.note) == (spread == 9)
    if n == 10:  # the baseline's part of the error is pooled, the row's is its own
        errors = np.var(row, ddof=1) / n, sigma.value**2 / 16
        df = sum(errors) ** 2 / (errors[0] ** 2 / (n - 1) + errors[1] ** 2 / sigma.df)
        half_width = scipy.stats.t.isf(0.025, df) * sum(errors) ** 0.5
        mean = np.mean(row) - np.mean(BASELINE)
        interval = mean - half_width, mean + half_width
    else:
        test = scipy.stats.ttest_ind(row, BASELINE, equal_var=equal)
        interval = tuple(test.confidence_interval(0.95))
    assert (verdict.low, verdict.high) == pytest.approx(interval)


def test_no_difference_means_that_two_one_sided_tests_reject_and_shows_their_interval():
    rule, words = (0.9, (6,)), []
    for shift in np.linspace(-2, 2, 81):
        row = np.array(BASELINE[:6]) - np.mean(BASELINE[:6]) + 70 + shift
        verdict = ask_one(row, rule)
        tests = [
            scipy.stats.ttest_ind(row + d, BASELINE, alternative=side).pvalue
            for d, side in ((0.9, "greater"), (-0.9, "less"))
        ]
        test = scipy.stats.ttest_ind(row, BASELINE)
        expected = ("better" if test.statistic > 0 else "worse") if test.pvalue < 0.05 else ""
        words.append(expected or ("no difference" if max(tests) < 0.05 else "undecided"))
        assert verdict.word == words[-1], shift
        level = 0.9 if verdict.word == "no difference" else 0.95
        interval = tuple(test.confidence_interval(level))
        assert (verdict.low, verdict.high) == pytest.approx(interval)
        assert ("at 90 %" in str(verdict)) == (level == 0.9)
    assert {*words} == {"better", "worse", "no difference", "undecided"}


def test_table_uses_dunnetts_interval_and_names_unhealthy_rows():
    rows = {f"row {i}": RANDOM.normal(70 + i, 1, 6) for i in range(4)}
    healthy = stats.judge(rows, BASELINE, 0.1, (6,))
    dunnett = scipy.stats.dunnett(*rows.values(), control=BASELINE, rng=1)
    interval = dunnett.confidence_interval(0.95)
    for verdict, *ends in zip(healthy.values(), interval.low, interval.high, strict=True):
        assert (verdict.low, verdict.high) == pytest.approx(ends, abs=0.02)
    rows |= {"humps": [2.0, 32, 6, 31, 3, 30], "flat": [0.0] * 6, "lost": [np.nan, 70, 70, 70]}
    rows["once"] = [np.nan]
    notes = {"humps": "varies more than the others", "flat": "nearly constant", "lost": "diverged"}
    notes["once"] = "diverged"
    assert stats.unhealthy(rows, BASELINE) == notes
    verdicts = stats.judge(rows, BASELINE, 2.0, (6,))
    assert [verdicts[name].word for name in notes] == ["worse"] * 4
    assert str(verdicts["lost"]) == "worse after 4 seeds (diverged)"


def test_constant_rows_do_not_change_the_standard_deviation():
    flat = {f"flat {i}": [float(i)] * 16 for i in range(5)}
    assert stats.unhealthy(flat | {"row": np.add(BASELINE, 1)}, BASELINE).keys() == flat.keys()
    verdict = ask_one([0.0] * 16, (2.0, (16,)))
    assert verdict.note == "nearly constant" and verdict.high - verdict.low > 0.5


def test_undecided_says_how_many_more_seeds_would_decide_at_the_last_look():
    compared, delta = stats.Comparison(1.35, 0.7, 0.3), 2.0
    now, last = (3.0, 2.5), (2.0, 1.7)
    verdict = stats.decide(compared, 6, now, last, delta)
    assert verdict.word == "undecided"
    assert str(verdict).endswith(f" after 6 seeds, about {verdict.more} more needed")
    for more, word in ((verdict.more, "better"), (verdict.more - 1, "undecided")):
        larger = compared._replace(error=0.7 * (6 / (6 + more)) ** 0.5)
        assert stats.decide(larger, 6 + more, last, last, delta).word == word
    # The baseline does not grow, so no number of seeds decides.
    verdict = stats.decide(compared._replace(baseline_error=0.8), 6, now, last, delta)
    assert verdict.more is None and str(verdict).endswith(", more than 1,000 needed")
    # These seeds would decide at the last look.
    verdict = stats.decide(compared._replace(error=0.4, baseline_error=0.4), 6, now, last, delta)
    assert verdict.word == "undecided" and str(verdict).endswith(", about 1 more needed")


def test_no_end_of_an_interval_is_shown_as_zero():
    texts = [str(stats.Verdict("better", 3.02, low, 6.0, 4)) for low in (0.02, 1.0, 0.0)]
    assert texts[0] == "better +3.02 [+0.02, +6.00] after 4 seeds"
    assert texts[1] == "better +3.0 [+1.0, +6.0] after 4 seeds"
    assert texts[2] == "better +3.020 [+0.000, +6.000] after 4 seeds"  # it is zero


def test_seeds_after_the_last_look_have_its_level():
    looks = (6, 10, 16)
    first, second, third = (scipy.stats.t.isf(x / 2, 50) for x in stats.levels(looks))
    limits = [stats.limits(n, 16, 50, looks, (n,))[0] for n in (5, 6, 7, 16, 20)]
    assert limits == pytest.approx([first, first, second, third, third])


def test_equal_models_are_rarely_called_different_and_a_planted_effect_is_detected():
    prior, looks = Sigma(stats.pool(BASELINE).value, 200), RECIPES["mini"].looks
    deviations = power.residuals(BASELINE)
    assert np.var(deviations) == pytest.approx(np.var(BASELINE, ddof=1))
    for delta in (2.0, 0.01):  # with 0.01, no question ends as "no difference"
        shares = power.resample(deviations, prior, delta, looks, 16, tries=2000)
        assert shares["better"][-1] + shares["worse"][-1] <= 0.06
    assert shares["better"][-1] + shares["worse"][-1] > 0.02  # or the intervals are too wide
    sizes = [stats.detectable(prior, 2.0, looks, *more) for more in ((16,), (16, 30), (6,))]
    assert min(sizes[1][-1], sizes[2][-1]) > 1.05 * sizes[0][-1]  # many questions; few seeds
    for look in (0, 3):
        shares = power.resample(deviations, prior, 2.0, looks, 16, sizes[0][look], 500)
        assert shares["better"][look] > 0.74, look  # 0.8, less the error of 500 tries


@pytest.mark.parametrize("ratio", [0.6, 1.5, 2])
def test_false_alarms_stay_rare_where_the_spread_of_a_row_is_another(ratio):
    random, rule, alarms = np.random.default_rng(1), (0.01, (10, 16)), 0
    for _ in range(500):
        row, baseline = random.normal(0, ratio, 16), random.normal(0, 1, 16)
        words = [ask_one(row[:n], rule, Sigma(1.0, 250), baseline).word for n in rule[1]]
        alarms += not {"better", "worse"}.isdisjoint(words)
    assert alarms / 500 < 0.08  # 0.12 with the pooled standard deviation and a ratio of 1.5


# ---- Runs, in a small repository whose worker.py does not train ----------------------------------

MODEL = """
def answer():
    # the truth
    return 40


def other():
    return 1
"""
# Writes the result that a real worker writes. --fail exits with an error, --sleep waits.
WORKER = """
import json, os, sys, time
from pathlib import Path
from model.answer import answer, other
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
result = {"scores": {"exact_match": value, "loss": other()}, "weights": str(value)}
result |= {"curve": [[5, 3.0], [9, 100 / value]], "seconds": {"train": 2.0, "score": 1.0}}
result["parameters"] = 10
if "diverge" in flags:
    result = {"diverged": "step 3"}
Path(job["result"]).write_text(json.dumps(job["about"] | result))
"""
SMALL = Recipe("mini", "--first=1", headline="exact_match", delta=1.0, average=1, looks=(3, 5))
README = "# Mine\n<!-- results -->\nold\n<!-- end of results -->\nrest\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small git checkout that the experiments use instead of the project's."""
    files = {
        "model/__init__.py": "",
        "model/answer.py": MODEL,
        ".gitignore": "runs\n.cache\n__pycache__\n",
        "experiments/__init__.py": "",
        "experiments/worker.py": WORKER,
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


def verdict(out, name, seeds):
    """Return the word and the difference that were printed after a number of seeds, or None."""
    match = re.search(rf"^{name}: (.*) \[.* after {seeds} seeds", out, re.MULTILINE)
    return match and match[1]


def started(folder):
    """Return how many times the runs of an experiment have started."""
    return sum(len(path.read_text()) for path in folder.glob("seed-*/started"))


def test_an_uncommitted_edit_gets_a_verdict(repository, ask):
    edit(repository / "model/answer.py", "return 40", "return 50")
    failed, out = ask()
    assert failed == 0 and verdict(out, r"edit-\w+", 3) == "better +10.0"
    folder = repository / "runs/experiments/mini"
    assert started(folder / "baseline") == 5 and started(next(folder.glob("edit-*"))) == 3
    ask()  # nothing is run again
    assert started(folder / "baseline") == 5 and started(next(folder.glob("edit-*"))) == 3
    edit(repository / "model/answer.py", "return 50", "return 40  # the same")
    with pytest.raises(ExperimentError, match="changes nothing"):
        ask()
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)
    with pytest.raises(ExperimentError, match="nothing to compare"):
        ask()


def test_seeds_are_added_until_the_question_is_decided(repository, ask):
    (repository / "experiments/some.patch").write_text("question: 1?\nflags: --bonus=1.2\n")
    _, out = ask("some", "--plan")
    assert "3 seeds: 8 runs left on" in out and "5 seeds: 10 runs left on" in out
    assert not [*(repository / "runs").rglob("started")]
    _, out = ask("some")
    assert verdict(out, "some", 3).startswith("undecided") and verdict(out, "some", 5)
    _, out = ask("more", "--plan")
    assert (
        "5 seeds detect a difference of" in out and "5 seeds: 5 runs left, about 0 minutes" in out
    )


def test_stored_results_count_only_if_seed_0_has_equal_bits(repository, ask, monkeypatch):
    def run_again():
        """Return how many runs of the baseline and of `more` were necessary, and the output."""
        shutil.rmtree(repository / "runs", ignore_errors=True)
        out = ask("more")[1]
        folder = repository / "runs/experiments/mini"
        return started(folder / "baseline"), started(folder / "more"), out

    ask("baseline", "more", "--store")
    assert run_again()[:2] == (0, 0)
    edit(repository / "model/answer.py", "# the truth", "# a comment")
    commit()
    assert run_again()[:2] == (0, 0)
    edit(repository / "model/answer.py", "return 1", "return 3")  # not the headline
    commit()
    plan = ask("more", "--plan")[1]  # seeds 3 and 4 of `more` are not stored
    assert "3 seeds: 2 runs left" in plan and "s; 8 runs if seed 0 does not" in plan
    assert "5 seeds: 4 runs left" in plan and "s; 10 runs if seed 0 does not" in plan
    *count, out = run_again()
    assert count == [1, 1] and verdict(out, "more", 3) == "better +8.0"
    assert "baseline: stored results are of other model/answer.py; seed 0 reproduces them" in out
    assert (
        "more: stored results are of other code, packages or processor; seed 0 reproduces them"
        in out
    )
    edit(repository / "model/answer.py", "return 40", "return 41")
    commit()
    *count, out = run_again()
    assert count == [5, 3] and verdict(out, "more", 3).startswith("better +8")
    assert "baseline: stored results are of other model/answer.py; seed 0 does not" in out
    monkeypatch.setattr(runs, "processor", lambda: "a new one")
    assert "are of other processor" in run_again()[2]


def test_a_changed_patch_is_run_again_and_the_baseline_is_not(repository, ask):
    ask("more", "--store")
    shutil.rmtree(repository / "runs")
    edit(repository / "experiments/more.patch", "--bonus=8", "--bonus=9")
    assert verdict(ask("more")[1], "more", 3).startswith("better +9")
    folder = repository / "runs/experiments/mini"
    assert started(folder / "more") == 3 and started(folder / "baseline") == 0


def test_a_moved_change_is_run_again(repository, ask):
    """The lines that a diff adds and removes do not say where they are."""
    path = repository / "model/answer.py"
    twice = path.read_text() + "\n\ndef unused():\n    return 40\n"
    path.write_text(twice)
    commit()

    def save(text):
        path.write_text(text)
        diff = subprocess.run(["git", "diff", "model"], capture_output=True, text=True).stdout
        path.write_text(twice)
        (repository / "experiments/moved.patch").write_text(f"question: 1?\n\n{diff}")
        return patches.read("moved").change

    one = save(twice.replace("return 40", "return 50", 1))
    assert "better +10" in ask("moved", "--store")[1]
    assert save("return 50".join(twice.rsplit("return 40", 1))) == one
    assert "equal to the baseline in every digit" in ask("moved", "--store")[1]
    assert question.read_stored("mini")["rows"].keys() == {"baseline"}


def test_further_seeds_are_added_to_stored_ones(repository, ask, monkeypatch):
    """Stored results of later looks do not count at an earlier look; only missing seeds run."""
    (repository / "experiments/some.patch").write_text("question: 1?\nflags: --bonus=0.9\n")
    ask("some", "--store")
    assert len(question.read_stored("mini")["rows"]["some"]["runs"]) == 5
    shutil.rmtree(repository / "runs")
    monkeypatch.setitem(RECIPES, "mini", replace(SMALL, looks=(3, 5, 8)))
    path = repository / "experiments/results/mini.json"
    stored = json.loads(path.read_text())
    baseline = stored["rows"]["baseline"]["runs"]
    baseline += [baseline[seed - 5] | {"seed": seed} for seed in (5, 6, 7)]
    path.write_text(json.dumps(stored))
    _, out = ask("some")
    assert [verdict(out, "some", n)[:9] for n in (3, 5)] == ["undecided"] * 2
    assert verdict(out, "some", 8)
    assert started(repository / "runs/experiments/mini/some") == 3


def test_runs_of_an_edit_count_when_it_gets_a_name_or_a_comment(repository, ask):
    edit(repository / "model/answer.py", "return 40", "return 50")
    ask()
    (repository / "notes.txt").write_text("not code")
    assert "not code" not in patches.working_tree().diff
    edit(repository / "model/answer.py", "return 50", "return 50  # more")
    assert "3 seeds: 0 runs left" in ask("--plan")[1]
    diff = subprocess.run(["git", "diff", "model"], capture_output=True, text=True).stdout
    (repository / "experiments/named.patch").write_text(f"question: 1?\n\n{diff}")
    subprocess.run(["git", "checkout", "--quiet", "model"], check=True)
    assert "3 seeds: 0 runs left" in ask("named", "--plan")[1]


def test_a_new_baseline_drops_the_other_experiments_and_says_so(repository, ask):
    (repository / "experiments/same.patch").write_text("question: 1?\nflags: --bonus=1\n")
    ask("more", "same", "--store")
    edit(repository / "model/answer.py", "return 40", "return 41")
    commit()
    assert "because the baseline or the patch has changed: same\n" in ask("more", "--store")[1]


def test_failed_and_diverged_runs_are_named_and_the_others_judged(repository, ask):
    failed, out = ask("bad", "lost", "more")
    assert failed == 3 and "bad seed 0 FAILED: error: step 7" in out
    assert "lost: worse after 3 seeds (diverged)" in out and verdict(out, "more", 3)
    assert not re.search(r"^bad: ", out, re.MULTILINE)
    ask("bad", "lost", "more")
    folder = repository / "runs/experiments/mini"
    assert started(folder / "lost") == 3 and started(folder / "bad") == 6  # failed ones run again


def result_of(repository, name, seed):
    (path,) = repository.glob(f"runs/experiments/mini/{name}/seed-{seed}.????????????.json")
    return path


def test_an_interrupted_command_looks_at_the_same_seeds_again(repository, ask):
    """The scores at the first look decide, whatever later seeds have."""
    ask("more", "--seeds", "5")
    for seed in (3, 4):
        path = result_of(repository, "more", seed)
        values = json.loads(path.read_text())
        values["scores"]["exact_match"] = 0.0
        path.write_text(json.dumps(values))
    _, out = ask("more", "--store")
    assert verdict(out, "more", 3) == "better +8.0"


def test_the_final_score_is_of_runs_with_other_seeds(repository, ask):
    assert verdict(ask("more", "--final", "--seeds", "2")[1], "more", 2)[:6] == "better"
    for name, seed in (("baseline", 1), ("more", 0)):
        job = repository / f"runs/experiments/mini-final/{name}/seed-{seed}.job.json"
        assert f"--seed={100 + seed}" in json.loads(job.read_text())["flags"]


def test_a_diverged_baseline_is_an_error_that_names_the_seed(repository, ask):
    ask("baseline", "more", "--store")
    path = result_of(repository, "baseline", 2)
    values = json.loads(path.read_text())
    del values["scores"]
    path.write_text(json.dumps(values | {"diverged": "step 3"}))
    assert "better" in ask("more")[1]  # the stored one is used
    shutil.rmtree(repository / "experiments/results")
    with pytest.raises(ExperimentError, match="seed 2: step 3"):
        ask("more")


def test_only_the_results_of_the_recipe_itself_are_stored(repository, ask, monkeypatch):
    with pytest.raises(ExperimentError, match="--all"):
        ask("more", "--all")
    for flag in (["--final"], ["--seeds", "3"]):
        with pytest.raises(ExperimentError, match="--store"):
            ask("more", "--store", *flag)
    edit(repository / "model/answer.py", "return 40", "return 50")
    with pytest.raises(ExperimentError, match="--store needs names"):
        ask("--store")
    subprocess.run(["git", "checkout", "--quiet", "."], check=True)
    edit(repository / "experiments/worker.py", 'if "fail" in', 'if seed_fails(job) or "fail" in')
    edit(
        repository / "experiments/worker.py",
        "\nnumber =",
        '\nseed_fails = lambda job: job["about"]["name"] == "baseline" and flags["seed"] == "4"'
        "\nnumber =",
    )
    with pytest.raises(ExperimentError, match="only 4 results"):
        ask("more", "--store")
    assert question.read_stored("mini") is None


def test_stored_rows_are_dropped_with_their_patch_and_keep_their_code(repository, ask, capsys):
    rows = repository / "experiments"
    (rows / "same.patch").write_text("question: 1?\nflags: --bonus=1\n")
    ask("more", "same", "--store")
    shutil.copy(ROOT / "experiments/template.html", rows)
    edit(repository / "model/answer.py", "return 1", "return 3")  # not the headline
    commit()
    ask("same", "--store")
    report.write()
    text = (rows / "README.md").read_text("utf-8")
    assert "for seed 0 of the baseline: 1 of 2." in text and "better +8.0" in text
    edit(rows / "more.patch", "--bonus=8", "--bonus=9")
    report.write()
    text = (rows / "README.md").read_text("utf-8")
    assert "patches have changed: more." in text and "better +8.0" not in text
    ask("same", "--store")
    assert question.read_stored("mini")["rows"].keys() == {"baseline", "same"}


def test_stored_rows_other_than_the_chosen_ones_give_the_standard_deviation(repository, ask):
    ask("more", "lost", "--store")
    stored = question.read_stored("mini")
    values = SMALL.values(stored["rows"]["more"]["runs"])
    for name, expected in (("baseline", stats.pool(values)), ("more", stats.NO_ROWS)):
        setup = SimpleNamespace(recipe=SMALL, key=lambda patch: stored["rows"][patch.name]["key"])
        asked = question.Question(setup, [patches.read(name)], stored)
        assert asked.prior() == expected


def test_a_patch_that_does_not_apply_is_named_and_does_not_stop_the_others(repository, ask):
    diff = "--- a/model/answer.py\n+++ b/model/answer.py\n@@ -1 +1 @@\n-no such line\n+x\n"
    (repository / "experiments/old.patch").write_text(f"question: 1?\n\n{diff}")
    with pytest.raises(ExperimentError, match="old: git apply: "):
        ask("old", "more")
    _, out = ask("--all")
    assert "old FAILED: git apply: " in out and verdict(out, "more", 3)


def test_edits_and_recipes_that_do_not_fit_are_reported(repository, ask, monkeypatch):
    (repository / "experiments/odd.patch").write_text("question: 1?\nrecipe: foo\n")
    with pytest.raises(ExperimentError, match="foo: choose from"):
        ask("odd")
    (repository / "experiments/odd.patch").write_text("question: 1?\ntheme: foo\n")
    with pytest.raises(ExperimentError, match="foo: choose from"):
        ask("odd")
    (repository / "data").mkdir()
    (repository / "data/new.py").write_text("SIZE = 3\n")
    with pytest.raises(ExperimentError, match="data/"):
        ask("more", "--plan")
    shutil.rmtree(repository / "data")
    edit(repository / "model/answer.py", "return 40", "return 50")
    assert "uncommitted edits are left out" in ask("more", "--plan")[1]
    monkeypatch.setitem(RECIPES, "imdb", replace(SMALL, name="imdb"))
    assert verdict(ask("--recipe", "imdb")[1], r"edit-\w+", 3).startswith("better")


@pytest.mark.parametrize(
    "one, other",
    [("flags\t\t: fpu avx2", "flags\t\t: fpu avx2 avx512f"),
     ("Features\t: fp asimd\nCPU part\t: 0xd0c", "Features\t: fp asimd sve\nCPU part\t: 0xd0c"),
     ("Features\t: fp\nCPU part\t: 0xd0c", "Features\t: fp\nCPU part\t: 0xd40")],
)  # fmt: skip
def test_processors_with_other_instructions_differ(monkeypatch, one, other):
    names = []
    for text in (one, other):
        monkeypatch.setattr(Path, "read_text", lambda path, text=text: text)
        names.append(runs.processor())
    assert names[0] != names[1]


def test_invalid_patch_files_are_rejected(repository):
    for text in ("claim: x\n", "question: a\nquestion: b\n", "a b c\n"):
        (repository / "experiments/odd.patch").write_text(text)
        with pytest.raises(ExperimentError, match="odd.patch"):
            patches.read("odd")
    with pytest.raises(ExperimentError, match="choose from bad, lost"):
        patches.read("missing")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted_runs_are_stopped_and_resume(repository, number):
    (repository / "experiments/slow.patch").write_text("question: Slow?\nflags: --sleep=60\n")
    code = (
        f"import signal, sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)  # the tests may run under nohup\n"
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
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "repeat the command" in errors
    assert not [*file.parent.parent.glob("*.*.json.*")] and file.read_text() == "x"


def test_texts_for_the_final_score_are_not_among_those_that_decide():
    small = replace(RECIPES["mini"], sentences=300)
    first, final = (recipes.load_texts(small, final) for final in (False, True))
    assert not {*map(str.lower, first.sources)} & {*map(str.lower, final.sources)}
    assert len(first.sources) == 300 and len({*first.tags}) == 11


@pytest.mark.parametrize("name", ["ted", "imdb"])
def test_the_test_split_is_read_only_for_the_final_score(name, monkeypatch):
    monkeypatch.setattr(recipes.corpora, "open", lambda config: SimpleNamespace(load=str))
    splits = [recipes.load_texts(RECIPES[name], final) for final in (False, True)]
    assert splits == ["validation", "test"]


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
    assert cells[2].startswith("mini: better +8.0 [+")
    assert cells[3] == "mini: × 1.00, × 1.00" and text.index("### Positions") < text.index(row)
    assert "old" not in text and "lost (diverged)" in text
    assert (reported / "mini.png").stat().st_size > 5000


def test_forest_plot_shades_the_zone_and_explains_its_colours(repository, ask):
    ask("--all", "--store")
    results = report.Results(SMALL, question.read_stored("mini"))
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
    report.write()  # the results are of another patch
    assert "patches have changed: more." in (reported / "README.md").read_text("utf-8")
    subprocess.run(["git", "checkout", "--quiet", "model"], check=True)
    ask("--all", "--store")
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


def test_scoring_can_be_stopped_and_a_run_without_checkpoints_starts_again(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (tmp_path / "texts").write_text("[[], []]")
    job = {name: str(tmp_path / name) for name in ("run", "texts", "cache")}
    job |= {"flags": ["--epochs", "3"], "average": 1}

    def train(config):
        assert config.resume is None and config.epochs == 3
        machine.StopSignal()

    def load(*arguments, average):
        default = (signal.SIG_DFL, signal.SIG_DFL)
        assert tuple(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))) == default
        raise ExperimentError("scoring")

    monkeypatch.setattr(translator, "load", load)
    with training_in_process() as patch, pytest.raises(ExperimentError, match="scoring"):
        patch.setattr("train.train", train)
        worker.train_and_score(job)


def test_noisy_phenomena_are_scored_but_not_in_the_headline(monkeypatch):
    tokenizer = SimpleNamespace(lowercase=False)
    fake = SimpleNamespace(labelled=False, max_length=9)
    fake.source_tokenizer = fake.target_tokenizer = tokenizer
    fake.translate = lambda texts, progress: ["a", "b", "x"]
    fake.loss_and_accuracy = lambda pairs: (1.0, 0.5)
    monkeypatch.setattr("data.encoding.encode", lambda *_: (None, 0))
    scores = worker.score(
        fake, Split(["1", "2", "3"], ["a", "b", "c"], ["tense", "order", "sense"])
    )
    assert scores["exact_match"] == 50
    assert scores["by_tag"] == {"tense": 100, "order": 100, "sense": 0}
    tokenizer.lowercase = True
    scores = worker.score(
        fake, Split(["1", "2", "3"], ["A", "B", "C"], ["tense", "order", "sense"])
    )
    assert scores["exact_match"] == 50


# Whether everything runs, in seconds.
SMOKE = Recipe(
    "smoke",
    "--corpus mini:500 --num-layers 1 --d-model 32 --num-heads 2 --dff 64 --max-length 20 "
    "--epochs 2 --shards 1 --validation-sentences 10",
    headline="exact_match",
    delta=1.0,
    sentences=110,
)


@pytest.mark.slow
def test_trial_trains_and_scores_the_same_bits_again(tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps(recipes.load_texts(SMOKE)))
    results = []
    for name in ("one", "two"):
        files = {"run": "runs/" + name, "cache": "cache", "texts": "texts.json", "result": name}
        job = {key: str(tmp_path / value) for key, value in files.items()}
        job |= {"flags": [*SMOKE.flags.split(), "--seed=3"], "average": 2, "about": {"a": 1}}
        (tmp_path / "job").write_text(json.dumps(job))
        command = [sys.executable, "-m", "experiments.worker", str(tmp_path / "job")]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
        results.append(json.loads((tmp_path / name).read_text()))
    one, two = results
    assert one["a"] == 1 and len(one["weights"]) == 16 and len(one["curve"]) == 2
    for key in ("weights", "scores", "curve", "parameters"):
        assert one[key] == two[key]
    tags = json.loads((tmp_path / "texts.json").read_text())[2]
    assert one["scores"]["by_tag"].keys() == set(tags)
    assert not (tmp_path / "runs/one/checkpoints").exists()


@pytest.mark.slow
def test_tensorboard_reads_the_stored_curves(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.write_events(tmp_path, [{"seed": 4, "curve": [[10, 2.5], [20, 1.5]]}])
    events = EventAccumulator(str(tmp_path / "seed-4/validation"))
    events.Reload()
    shown = events.Tensors("metrics/loss")
    points = [(event.step, tf.make_ndarray(event.tensor_proto)) for event in shown]
    assert points == [(10, 2.5), (20, 1.5)]
