"""How far short runs predict long ones: signs, rank correlation and precision, worked by hand."""

import pytest

from experiments import patches, stats, store, validity
from experiments.patches import BASELINE
from experiments.recipes import RECIPES

NAMES = ("one", "two", "three", "four")
# Losses, in which an increase is worse, and points, in which it is better.
RESULTS = {
    "spa-eng-long": ([1.0, 1.1], ([0.005], [0.2], [-0.3], [0.4])),
    "spa-eng": ([2.0, 2.2], ([0.1, 0.3], [0.3, 0.5], [-0.2, 0.0], [-0.4, -0.2])),
    "mini": ([60.0], ([-1.0], [-2.0], [3.0], [-4.0])),
}


@pytest.fixture
def stored(monkeypatch, tmp_path):
    """Stores results of four experiments by recipe, in a temporary directory."""
    monkeypatch.setattr(patches, "HERE", tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.patch").write_text("question: 1?\nflags: --seed=1\n")
    written = {}
    for recipe, (baseline, differences) in RESULTS.items():
        rows, score = {}, RECIPES[recipe].score
        for name, values in zip((BASELINE.name, *NAMES), ([0.0] * 2, *differences), strict=True):
            rows[name] = {"change": patches.read(name).change, "runs": []}
            for seed, (base, value) in enumerate(zip(baseline, values, strict=False)):
                about = {
                    "seed": seed,
                    "key": "",
                    store.PROCESSOR: "one",
                    "seconds": {"train": 90, "score": 30},
                }
                rows[name]["runs"].append(about | {"scores": {score: base + value}})
        written[recipe] = {"identity": {}, "rows": rows, "recipe": recipe}
    monkeypatch.setattr(store, "read_stored", lambda recipe: written.get(recipe.name))
    return tmp_path


def test_gains_are_positive_where_a_change_helps(stored):
    for recipe, gains in (("spa-eng-long", [-0.005, -0.2, 0.3, -0.4]), ("mini", [-1, -2, 3, -4])):
        found = validity.Gains(RECIPES[recipe])
        assert [found.mean(name) for name in NAMES] == pytest.approx(gains)


def test_signs_ranks_and_precision_are_those_worked_by_hand(stored, capsys):
    """Gains -0.005, -0.2, 0.3, -0.4 of long runs, and -0.2, -0.4, 0.1, 0.3 of short ones.

    Ranks 3, 2, 4, 1 and 2, 1, 3, 4: Spearman's 1 - 6 (1 + 1 + 1 + 9) / (4 · 15) = -0.2. The
    baseline's runs deviate by 0.1 from their mean: 0.1 √2, and the difference of two unrelated
    ones by 0.2. From seed 0 to 1, the baseline gains 0.2 and four experiments 0.4, in the mean
    0.36. Half of the sum of squares 0.16² + 4 · 0.04² is 0.016, with 4 degrees of freedom, so the
    difference of a pair deviates by √(2 · 0.004).
    """
    validity.main(["spa-eng", "mini", "spa-eng-long"])
    _, short, other = capsys.readouterr().out.splitlines()
    assert short.startswith("spa-eng: the same sign in 3 of 4 [")
    assert "(of those that matter in long training, 2 of 3; " in short  # 0.005 does not
    assert "rank correlation -0.20 [" in short
    assert (
        "of the baseline's runs 0.1414, of the difference of a pair 0.08944 (of unrelated runs 0.2)"
        in short
    )
    assert short.endswith("2.0 minutes a run")
    assert other.startswith("mini: the same sign in 4 of 4 [")
    assert "rank correlation 1.00 [1.00, 1.00]; 4 experiments, 2.0 minutes" in other
    for name in ("spa-eng", "mini"):
        assert (stored / f"validity-{name}.png").stat().st_size > 5000


def test_only_verdicts_of_a_stage_are_counted_as_decided(stored):
    """The signs of all but `four` agree: see above."""
    short, long = (validity.Gains(RECIPES[name]) for name in ("spa-eng", "spa-eng-long"))
    assert "; of those that are better or worse, 0 of 0)" in validity.agreement(short, long)[1]
    outcomes = zip(NAMES, ("worse", "better", "better", stats.SMALL), (3, 2, 3, 3), strict=True)
    short.table.verdicts = {name: stats.Verdict(what, 0, 0, 0, n) for name, what, n in outcomes}
    assert "; of those that are better or worse, 2 of 2)" in validity.agreement(short, long)[1]
    short.table.verdicts["four"] = stats.Verdict("better", 0, 0, 0, 3)
    assert "; of those that are better or worse, 2 of 3)" in validity.agreement(short, long)[1]


def test_the_interval_of_an_outlier_is_its_own(stored):
    """Gains -0.1 and -0.3 deviate by 0.1 √2; Student's 97.5 % quantile of one degree is 12.706."""
    gains = validity.Gains(RECIPES["spa-eng"])
    common = gains.half_width("one")
    gains.outliers = {"one"}
    assert gains.half_width("one") == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert common == pytest.approx(2.776 * 0.08944 / 2**0.5, rel=1e-3)  # four degrees


def test_an_experiment_that_is_judged_by_bleu_has_no_gain_in_the_loss(stored):
    (stored / "two.patch").write_text("question: 1?\nscore: bleu\nflags: --seed=1\n")
    assert validity.Gains(RECIPES["spa-eng"]).by_name.keys() == {"one", "three", "four"}
    assert validity.Gains(RECIPES["mini"]).by_name.keys() == {*NAMES}


def test_recipes_with_few_experiments_in_common_are_not_correlated(stored):
    gains = [validity.Gains(RECIPES[name]) for name in ("mini", "spa-eng-long")]
    gains[0].by_name = {"one": [1.0], "two": [2.0]}
    assert validity.agreement(*gains) == (["one", "two"], "only 2 experiments in common")
