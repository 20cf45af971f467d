"""Verdicts: intervals, stages, the pooled and shrunk spread, marks, simulations."""

from dataclasses import replace

import numpy as np
import power
import pytest
import scipy.stats

from ablation import spread, tables, verdicts
from ablation.experiments import Experiment, ExperimentError, Recipe
from ablation.results import pair
from ablation.verdicts import BETTER, SMALL, STAGES, UNDECIDED, WORSE, Sigma, Verdict, decide

RANDOM = np.random.default_rng(0)
KNOWN = {"pair": [1.4, 60], "run": [1.0, 60]}
POINTS = Recipe("points", "", "exact_match", 1.0, spread={"exact_match": KNOWN})
SOME = Experiment("some", "1?")
UNPAIRED = replace(SOME, paired=False)
LOSS = Recipe("loss", "", "nats_per_character", 0.01)
LOSS = replace(LOSS, spread={"nats_per_character": {"pair": [0.1, 60]}, "bleu": KNOWN})


def result(seed, score, machine="a", baseline="base", **others):
    scores = {"exact_match": score, "nats_per_character": score, "bleu": score}
    about = {"seed": seed, "machine": machine, "key": baseline, "baseline": baseline}
    return about | {"scores": scores} | others


def make_pairs(own, base=(0.0,) * 8, **others):
    runs = [result(i, x, **others) for i, x in enumerate(own)]
    return pair(runs, [result(i, x) for i, x in enumerate(base)])


def test_stages_spend_five_per_cent_and_less_at_first():
    """The means at two stages correlate as the root of the ratio of their pairs."""
    pairs = np.array(STAGES)
    ratios = pairs / pairs[:, np.newaxis]
    for error, levels in zip((0.05, 0.1), zip(*verdicts.LEVELS, strict=True), strict=True):
        limits = scipy.stats.norm.isf(np.array(levels) / 2)
        for i, share in enumerate(pairs / pairs[-1], 1):
            cov = np.sqrt(np.minimum(ratios, 1 / ratios))[:i, :i]
            normal = scipy.stats.multivariate_normal(cov=cov, maxpts=100_000 * i)
            inside = normal.cdf(limits[:i], lower_limit=-limits[:i])
            expected = error * np.expm1(4 * share) / np.expm1(4)
            assert 1 - inside == pytest.approx(expected, rel=1e-3), (error, i)
    levels = [verdicts.levels(n, STAGES) for n in (2, 3, 4, 8, 9)]
    assert levels == [verdicts.LEVELS[stage] for stage in (0, 0, 1, 2, 2)]
    assert verdicts.levels(7, (7,)) == (0.05, 0.1)


def test_the_variance_is_shrunk_towards_the_pooled_one_by_hand():
    gains = [1.0, 2.0, 6.0]  # variance 7
    sigma = verdicts.shrunk(gains, Sigma(2.0, 50))
    assert sigma == pytest.approx((((12 * 4 + 2 * 7) / 14) ** 0.5, 14))
    assert verdicts.shrunk(gains, Sigma(2.0, 3)) == pytest.approx((((3 * 4 + 14) / 5) ** 0.5, 5))
    assert verdicts.shrunk([5.0], Sigma(2.0, 50)) == (2.0, 12)
    verdict = decide(POINTS, gains, Sigma(2.0, 50), (3,))
    half = scipy.stats.t.isf(0.025, 14) * sigma.value / 3**0.5
    assert (verdict.low, verdict.high) == pytest.approx((3 - half, 3 + half))
    assert decide(POINTS, [5.0], Sigma(0.0, 0)).outcome == UNDECIDED


def test_too_small_to_matter_means_that_two_one_sided_tests_reject_and_shows_their_interval():
    outcomes, noise = [], RANDOM.normal(size=6)
    for shift in np.linspace(-2, 2, 81):
        gains = 0.5 * (noise - noise.mean()) + shift
        verdict = decide(POINTS, gains.tolist(), Sigma(0.0, 0), (6,))
        sides = ((-1, "greater"), (1, "less"))
        tests = [scipy.stats.ttest_1samp(gains, x, alternative=side).pvalue for x, side in sides]
        test = scipy.stats.ttest_1samp(gains, 0)
        expected = (BETTER if shift > 0 else WORSE) if test.pvalue < 0.05 else UNDECIDED
        outcomes.append(SMALL if max(tests) < 0.05 and test.pvalue > 0.05 else expected)
        assert verdict.outcome == outcomes[-1], shift
        assert verdict.p == pytest.approx(test.pvalue)
        level = 0.9 if verdict.outcome == SMALL else 0.95
        assert (verdict.low, verdict.high) == pytest.approx(tuple(test.confidence_interval(level)))
        assert ("at 90 %" in str(verdict)) == (level == 0.9)
    assert {*outcomes} >= {BETTER, WORSE, SMALL}


def test_the_pooled_spread_is_that_of_the_runs_whatever_single_rows_do():
    """Rows and seeds have effects. Three rows vary thirty times as much; a run is an outlier."""
    random = np.random.default_rng(1)
    y = random.normal(0, 1, (200, 4)) + random.normal(0, 5, 4) + random.normal(0, 5, (200, 1))
    y[:3] += random.normal(0, 30, (3, 4))
    y[5, 2] += 1000
    sigma = spread.pooled({i: list(enumerate(row)) for i, row in enumerate(y.tolist())})
    assert sigma == (pytest.approx(2**0.5, rel=0.12), pytest.approx(300, rel=0.01))
    assert spread.pooled({"base": [(0, 1.0), (1, 2.0)]}) == (0, 0) == spread.pooled({})
    two = [(i, x) for i, x in enumerate((1.0, 4.0, 2.5, 7.0))]
    rows = {"base": two, "other": [(i, x + 3) for i, x in two]}
    assert spread.pooled(rows).value == pytest.approx(0)
    of_a_run = np.std([x for _, x in two], ddof=1)  # of few rows, the mean
    assert spread.pooled(rows, paired=False) == pytest.approx((of_a_run, 6))


def test_the_spread_leaves_out_what_says_nothing_about_seeds(monkeypatch):
    diverged = make_pairs([1.0, 2.0, 0.0])
    diverged[2][0].update(scores={}, diverged="1")
    equal, base = make_pairs([0.0, 0.0]), [0.5, 0.1, 0.9, 0.2]
    some = {f"row {i}": make_pairs(RANDOM.normal(size=4), base) for i in range(3)}
    rows = spread.scores_by_row(POINTS, some)
    assert len(rows) == 4 and all(len(runs) == 4 for runs in rows.values())
    assert spread.scores_by_row(POINTS, some | {"lost": diverged, "same": equal}) == rows
    experiments = {name: Experiment(name, "1?") for name in some}
    pairs = {"order": make_pairs([9, -9, 30])}
    monkeypatch.setattr(spread, "stored_pairs", lambda recipe: (some | pairs, []))
    for broken in ({"paired": False}, {"flags": "--vocab-size 300"}):
        experiments["order"] = Experiment("order", "1?", **broken)
        monkeypatch.setattr(spread, "saved", lambda: experiments)
        pooled = spread.pooled(rows)
        assert f"pair = [{pooled.value:.3g}, {pooled.df:.0f}]" in spread.table(POINTS)
        assert [experiments[x].keeps_pairs for x in ("order", "row 1")] == [False, True]
    assert not experiments["row 1"].for_recipe(replace(POINTS, paired=False)).keeps_pairs


def test_the_first_stage_that_decides_ends_the_comparison():
    verdict = verdicts.judge(POINTS, SOME, make_pairs([9, 9, 9, -99, -99]))
    assert (verdict.outcome, verdict.seeds, verdict.gain) == (BETTER, 3, 9)
    verdict = verdicts.judge(POINTS, SOME, make_pairs([1, -1, 0, 9, 9, 9, 9, 9]))
    assert verdict.seeds > 3
    verdict = verdicts.judge(POINTS, SOME, make_pairs([1, -1, 0, 0.4]))
    assert (verdict.outcome, verdict.seeds) == (UNDECIDED, 4)
    late = {seed: pair for seed, pair in make_pairs([0] * 6 + [9, 9]).items() if seed > 5}
    assert verdicts.judge(POINTS, SOME, late).seeds == 2  # none is of the first stage


def test_unpaired_runs_are_compared_with_all_runs_of_the_baseline_by_hand():
    own, base = [5.0, 6.0, 9.0], [1.0, 2.0, 3.0, 4.0, 2.5, 2.5]
    baseline = [result(i, x) for i, x in enumerate(base)]
    verdict = verdicts.judge(POINTS, UNPAIRED, make_pairs(own, base), baseline, (3,))
    deviation = ((12 * 1.0 + 2 * np.var(own, ddof=1)) / 14) ** 0.5
    half = scipy.stats.t.isf(0.025, 14) * deviation * (1 / 3 + 1 / 6) ** 0.5
    gain = np.mean(own) - np.mean(base)
    assert verdict[2:5] == pytest.approx((gain, gain - half, gain + half))
    assert str(verdict).endswith("after 3 seeds, unpaired")


def test_gains_are_positive_where_a_loss_falls_and_the_gain_in_bleu_is_shown():
    verdict = verdicts.judge(LOSS, SOME, make_pairs([-2.0, -2.1, -1.9]))
    assert str(verdict).startswith("better +2.0000 [+1.") and verdict.bleu == pytest.approx(-2)
    assert str(verdict).endswith(" after 3 seeds; BLEU -2.0")
    judged = verdicts.judge(LOSS, replace(SOME, score="bleu"), make_pairs([-4.0, -4.1, -3.9]))
    assert judged.outcome == WORSE and judged.bleu is None and judged.recipe.delta == 0.5


def test_runs_that_diverge_or_are_equal():
    pairs = make_pairs([1.0, 2.0, 3.0])
    pairs[1][0]["diverged"] = "step 3"
    assert str(verdicts.judge(POINTS, SOME, pairs)) == "worse after 3 seeds (diverged)"
    baseline = [result(9, 0.0), result(1, 0.0, diverged="step 3")]
    pairs = make_pairs([1.0, 2.0])
    with pytest.raises(ExperimentError, match=r"seed 1 \(step 3\)"):
        verdicts.judge(POINTS, UNPAIRED, pairs, baseline)
    pairs[1][1]["diverged"] = "step 3"
    with pytest.raises(ExperimentError, match=r"seed 1 \(step 3\)"):
        verdicts.judge(POINTS, SOME, pairs)
    verdict = verdicts.judge(POINTS, SOME, make_pairs([0.0, 0.0, 0.0]))
    assert str(verdict) == "no effect after 3 seeds (equal to the baseline in every digit)"


def test_the_best_rate_is_the_vertex_of_a_parabola_by_hand():
    """Of -(log2(rate) - vertex)², with rates that start at 0.5."""
    cases = {-1.2: [], -0.6: [], 0.5: [2], 1.4: [2, 4], 9: [2, 4, 8]}
    for vertex, further in cases.items():
        asked = []

        def scores(rates, vertex=vertex, asked=asked):
            asked += rates
            return [-((np.log2(rate) - vertex) ** 2) for rate in rates]

        best = verdicts.best_rate(0.5, scores)
        assert {*asked[:3]} == {0.25, 0.5, 1} and asked[3:] == further
        assert np.log2(best.value) == pytest.approx(min(vertex, 3))  # the last one that is tried
        assert best.at_end == (vertex == 9) == ("at an end" in str(best))
    without_effect = verdicts.best_rate(0.5, lambda rates: [0.0] * len(rates))
    assert without_effect == (0.5, False)


def test_rates_that_diverge_are_not_chosen():
    diverged = {0.25: 1.0, 0.5: 2.0, 1.0: -np.inf}
    assert verdicts.best_rate(0.5, lambda rates: [diverged[x] for x in rates]) == (0.5, False)
    scores = {1 / 8: 1.0, 1 / 16: 2.0, 1 / 32: 1.0}  # lower ones are tried if all of three diverge
    best = verdicts.best_rate(0.5, lambda rates: [scores.get(x, -np.inf) for x in rates])
    assert best == (1 / 16, False)


def test_no_end_of_an_interval_is_shown_as_zero():
    for low, text in ((0.02, "+3.02 [+0.02, +6.00]"), (1.0, "+3.0 [+1.0, +6.0]")):
        assert Verdict(BETTER, POINTS, 3.02, low, 6.0, 4).numbers == text
    assert Verdict(BETTER, POINTS, 3.02, 0.0, 6.0, 4).numbers.startswith("+3.02000 [+0.00000")


def test_marks_are_those_of_benjamini_and_hochberg_by_hand():
    ps = {"a": 0.001, "b": 0.024, "c": 0.03, "d": 0.9}  # thresholds 0.0125, 0.025, 0.0375, 0.05
    found = {name: Verdict(BETTER, POINTS, 1, 0, 2, 3, p) for name, p in ps.items()}
    assert verdicts.significant(found) == {"a", "b", "c"}
    assert verdicts.significant(found | {"c": found["c"]._replace(p=0.06)}) == {"a", "b"}
    assert verdicts.significant({"a": found["a"]._replace(seeds=1)}) == set()


def test_runs_are_paired_by_seed_machine_and_baseline():
    own = [result(0, 5, "a"), result(0, 6, "b"), result(1, 7, "b"), result(2, 8, "a")]
    own += [result(3, 9, "a", baseline="older")]
    base = [result(0, 1, "a"), result(0, 3, "b"), result(1, 2, "b"), result(2, 4, "b")]
    base += [result(3, 4, "a")]
    for here, first in (("a", 4), ("b", 3), ("", 4)):
        pairs = pair(own, base, here)
        assert [POINTS.gain(*pairs[i]) for i in sorted(pairs)] == [first, 5]


# ---- Simulations ---------------------------------------------------------------------------------


def test_equal_models_are_rarely_called_different_and_the_stated_gain_is_detected():
    alarms = power.simulate(0.0, tries=1500)
    assert 0.01 < alarms["better"] + alarms["worse"] < 0.06
    gain = verdicts.detectable(Sigma(1.0, 60), STAGES[-1])
    assert power.simulate(gain, tries=500)["better"] > 0.74  # 0.8, less the error of 500 tries


def test_outliers_raise_false_alarms_and_broken_pairs_do_not_as_documented():
    """docs/judging.md states 5.2, and 15.8 if broken pairs were judged as such."""
    for rate, case in ((0.052, power.OUTLIERS), (0.158, {"scale": 1.76}), (0.04, {"runs": 8})):
        shares = power.simulate(0.0, tries=1000, **case)
        error = 4 * (rate * (1 - rate) / 1000) ** 0.5
        assert shares["better"] + shares["worse"] == pytest.approx(rate, abs=error), case


def test_an_edit_that_needs_another_rate_is_worse_unless_each_side_is_tuned():
    for tune, least, most in ((False, 0.9, 1), (True, 0, 0.08)):
        shares = power.simulate_rates(0.0, 0.5, tune, tries=300)
        assert least <= shares["better"] + shares["worse"] <= most


# ---- Tables --------------------------------------------------------------------------------------


@pytest.fixture
def table(monkeypatch):
    """Gains of 3, -3 and 0.6 points, with a fifth more parameters."""
    baseline = [result(i, 60.0, parameters=10, final=False) for i in range(3)]
    gains = enumerate((3, -3, 0.6))
    own = [result(i, 60 + gain, parameters=12, final=False) for i, gain in gains]
    pairs = {"some": pair(own, baseline), "once": pair(own[:1], baseline)}
    experiments = {name: Experiment(name, "1?") for name in pairs}
    monkeypatch.setattr(tables, "stored_pairs", lambda recipe, final: (pairs, baseline))
    monkeypatch.setattr(tables, "saved", lambda: experiments)
    return tables.Table(POINTS)


def test_cells_say_how_many_seeds_are_left(table):
    assert "undecided +0.2 [" in table.cell("some") and "after 3 of 8 seeds" in table.cell("some")
    assert table.cell("once") == "+3.0 (1 seed)" and table.cell("other") == ""
    assert table.size("some") == "× 1.20" and "60.0 points (3 runs)" in table.summary()
    bleu = replace(POINTS, score="bleu")
    table.verdicts["once"] = Verdict(BETTER, bleu, 1, 0, 2, 1)
    assert table.cell("once") == "BLEU: +1.0 (1 seed)"
    table.verdicts["some"] = Verdict("no effect", POINTS, 0, 0, 0, 3, 1.0, "equal")
    assert table.cell("some") == "no effect after 3 seeds (equal)" and not table.shown()


def test_forest_plot_shows_every_interval_best_last_and_the_zone(table):
    table.verdicts = {
        "equal": Verdict(SMALL, POINTS, 0.1, -0.3, 0.5, 3),
        "far": Verdict(WORSE, POINTS, -90, -95, -85, 3),
        "wide": Verdict(UNDECIDED, POINTS, 1.0, -9, 11, 3),
        "more": Verdict(BETTER, POINTS, 8.0, 7.0, 9.0, 3),
    }
    (axes,) = tables.forest(table).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["far", "equal", "wide", "more"]
    (zone,) = axes.patches
    assert (zone.get_x(), zone.get_width()) == (-1, 2)
    lines = [line for line in axes.lines[1:] if len(line.get_xdata()) == 2]
    drawn = {names[line.get_ydata()[0]]: tuple(line.get_xdata()) for line in lines}
    assert drawn["far"] == (-95, -85) and drawn["wide"] == (-9, 11)
    low, high = axes.get_xlim()
    assert all(low < x < high for ends in drawn.values() for x in ends)
    assert len(axes.texts) == 4 and axes.texts[0].get_text() == "-90.0 [-95.0, -85.0]"
