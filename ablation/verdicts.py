"""Judge whether an experiment differs from the baseline.

docs/judging.md explains the protocol: three stages, a spread that is frozen in recipes.toml and
shrunk towards the experiment's own, and runs that are compared in pairs where they are correlated.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from ablation.experiments import Experiment, ExperimentError, Recipe
from utils import amount

STAGES = (3, 5, 8)  # numbers of pairs after which an experiment may be decided
ERROR, POWER = 0.05, 0.8
# The levels of each stage, for an error of all stages together of ERROR and of twice that. Stages
# after a share t of the pairs spend (1 - exp(4t)) / (1 - exp(4)) of it (Lan & DeMets 1983; Hwang,
# Shih & DeCani 1990).
LEVELS = ((0.003248, 0.006496), (0.008551, 0.017464), (0.046041, 0.093689))
PRIOR_DF = 12  # degrees of freedom that the pooled spread counts for: see docs/judging.md
FACTORS, MOST_RATES = (1, 0.5, 2), 6  # the learning rates that are tried first, and at most
NOISY = 2.5  # a spread, in pooled ones, that 2 of 1,000 experiments of three pairs have by chance
BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
SMALL = "too small to matter"  # the difference is smaller than delta
NO_EFFECT = "no effect"  # all scores are equal
NO_VERDICT = "no verdict"  # one pair shows that everything runs
Stages = tuple[int, ...]
PairedRuns = dict[int, tuple[dict, dict]]  # by seed: results of an experiment and of the baseline
t_quantile = cache(stats.t.isf)  # slow, and called often


class Sigma(NamedTuple):
    """Standard deviation of the difference of a pair, or of a run; its degrees of freedom."""

    value: float
    df: float


class Verdict(NamedTuple):
    """A decision about an experiment, with the interval of its gain over the baseline.

    The interval is the 95 % one; of "too small to matter", which it decides, the 90 % one. p: about
    the smallest error of all stages at which zero would be excluded, as levels are nearly
    proportional to it. bleu: the gain in BLEU, if it is not what is judged. paired: whether the
    runs of a seed were compared with each other.
    """

    outcome: str
    recipe: Recipe  # with the score that is judged
    gain: float
    low: float
    high: float
    seeds: int
    p: float = 1.0
    note: str = ""
    bleu: float | None = None
    paired: bool = True

    @property
    def numbers(self) -> str:
        """The gain and its interval."""
        decimals = self.recipe.decimals
        while decimals < 5 and 0 in (round(self.low, decimals), round(self.high, decimals)):
            decimals += 1  # or a verdict would seem to contradict its interval
        gain, low, high = (f"{x:+.{decimals}f}" for x in (self.gain, self.low, self.high))
        return f"{gain} [{low}, {high}]"

    def __str__(self) -> str:
        text = f" {self.numbers}" if self.low < self.high else ""
        text += " at 90 %" if text and self.outcome == SMALL else ""
        text += f" after {amount(self.seeds, 'seed')}{'' if self.paired else ', unpaired'}"
        text += f" ({self.note})" if self.note else ""
        return self.outcome + text + self.other_score

    @property
    def other_score(self) -> str:
        """The gain in BLEU, if it is known and not what is judged."""
        return "" if self.bleu is None else f"; BLEU {self.bleu:+z.1f}"


# ---- The spread ----


def frozen(recipe: Recipe, paired: bool) -> Sigma:
    """Return the spread of a recipe's score: of the difference of a pair, or of a run."""
    kind = "pair" if paired else "run"
    return Sigma(*recipe.spread.get(recipe.score, {}).get(kind, (0.0, 0)))


def shrunk(gains: list[float], sigma: Sigma) -> Sigma:
    """Return the mean of the pooled variance and the experiment's own, weighted by their degrees of
    freedom, of which the pooled one counts at most `PRIOR_DF` (Smyth 2004).
    """
    own, prior = len(gains) - 1, min(PRIOR_DF, sigma.df)
    variance = float(np.var(gains, ddof=1)) if own else 0.0
    if not own + prior:
        return Sigma(0.0, 0)
    return Sigma(math.sqrt((prior * sigma.value**2 + own * variance) / (own + prior)), own + prior)


# ---- The stages ----


def levels(n: int, stages: Stages) -> tuple[float, float]:
    """Return the two-sided levels of the intervals of 95 and 90 % after n pairs.

    They are those of the first stage with at least n pairs, or of the last one. stages: `STAGES`,
    or one stage.
    """
    if stages != STAGES:
        return ERROR, 2 * ERROR
    return LEVELS[sum(stage < n for stage in STAGES[:-1])]


def standard_error(n: int, runs: int = 0) -> float:
    """Return that of a mean gain in standard deviations: of n pairs, or of n and `runs` runs."""
    return (1 / n + (1 / runs if runs else 0)) ** 0.5


def decide(
    recipe: Recipe, gains: list[float], sigma: Sigma, stages: Stages = STAGES, runs: int = 0
) -> Verdict:
    """Judge the gains of an experiment at one stage.

    gains: of its pairs, or of its runs over the mean of `runs` runs of the baseline. sigma: see
    `frozen`.
    """
    n = len(gains)
    if np.isnan(gains).any():
        return Verdict(WORSE, recipe, math.nan, math.nan, math.nan, n, 0.0, "diverged")
    value, df = shrunk(gains, sigma)
    gain, error = float(np.mean(gains)), value * standard_error(n, runs)
    if not df:
        return Verdict(UNDECIDED, recipe, gain, -math.inf, math.inf, n)
    half, half_90 = (error * t_quantile(level / 2, df) for level in levels(n, stages))
    tail = 2 * stats.t.sf(abs(gain) / error, df) if error else float(gain == 0)
    outcome = UNDECIDED
    if abs(gain) > half:
        outcome = BETTER if gain > 0 else WORSE
    elif abs(gain) + half_90 < recipe.delta:
        outcome, half = SMALL, half_90
    p = min(1.0, tail * ERROR / levels(n, stages)[0])
    ratio = float(np.std(gains, ddof=1)) / sigma.value if n > 2 and sigma.value else 0.0
    note = f"varies {ratio:.1f} times as much as others" if ratio > NOISY else ""
    return Verdict(outcome, recipe, gain, gain - half, gain + half, n, p, note)


def judge(
    recipe: Recipe,
    experiment: Experiment,
    pairs: PairedRuns,
    baseline: Sequence[dict] = (),
    stages: Stages = STAGES,
) -> Verdict:
    """Judge an experiment at each stage, with the pairs that belong to it. A decision is final.

    baseline: all runs of the baseline, for an experiment whose runs are not paired. Those of its
    code count, on other machines, too: seeds vary alike there. Raises ExperimentError if a baseline
    has diverged.
    """
    keys = set() if experiment.keeps_pairs else {base["key"] for _, base in pairs.values()}
    baseline = [run for run in baseline if run["key"] in keys]
    for run in [*baseline, *(base for _, base in pairs.values())]:
        if why := run.get("diverged"):
            text = f"the baseline diverged with seed {run['seed']} ({why})"
            raise ExperimentError(f"{text}: use a commit that trains")
    seeds = sorted(pairs)[: stages[-1]]
    if equal(pairs):
        note = "equal to the baseline in every digit"
        return Verdict(NO_EFFECT, recipe, 0.0, 0.0, 0.0, len(seeds), 1.0, note)

    def gains(recipe: Recipe, count: int) -> list[float]:
        sides = [(own, baseline or [base]) for own, base in (pairs[x] for x in seeds[:count])]
        return [statistics.mean(recipe.gain(own, x) for x in others) for own, others in sides]

    judged, bleu = recipe.judged_by(experiment.score), None
    for stage in stages:
        own = gains(judged, stage)
        verdict = decide(judged, own, frozen(judged, not baseline), stages, len(baseline))
        if verdict.outcome != UNDECIDED or len(own) == len(seeds):
            break
    if judged == recipe and recipe.has_bleu and verdict.note != "diverged":
        bleu = statistics.mean(gains(recipe.judged_by("bleu"), verdict.seeds))
    if stages[-1] == 1 and verdict.note != "diverged":
        verdict = verdict._replace(outcome=NO_VERDICT)
    return verdict._replace(bleu=bleu, paired=not baseline)


def equal(pairs: PairedRuns) -> bool:
    """Return whether there are pairs, and all scores are the baseline's, in every digit."""
    same = [own.get("scores", {}) == base.get("scores") for own, base in pairs.values()]
    return bool(same) and all(same)


def significant(verdicts: dict[str, Verdict]) -> set[str]:
    """Return the decided experiments of a family that survive the procedure of Benjamini and
    Hochberg (1995): of the differences that are left, 5 % are expected to be chance.
    """
    ps = {name: verdict.p for name, verdict in verdicts.items() if verdict.seeds >= STAGES[0]}
    adjusted = stats.false_discovery_control([*ps.values()]) if ps else []
    return {name for name, p in zip(ps, adjusted, strict=True) if p <= ERROR}


def detectable(sigma: Sigma, n: int, stages: Stages = STAGES, runs: int = 0) -> float:
    """Return about the gain that is detected with 80 % power after n pairs, or after n runs that
    are compared with `runs` runs of the baseline.
    """
    df = min(PRIOR_DF, sigma.df) + n - 1
    errors = t_quantile(levels(n, stages)[0] / 2, df) + t_quantile(1 - POWER, df)
    return errors * sigma.value * standard_error(n, runs)


class Rate(NamedTuple):
    """A learning rate. at_end: whether the next one, which was not tried, may be better."""

    value: float
    at_end: bool

    def __str__(self) -> str:
        return f"× {self.value:.3g}{' (at an end)' if self.at_end else ''}"


def best_rate(start: float, mean_scores: Callable[[list[float]], Iterable[float]]) -> Rate:
    """Return the learning rate with the best score, by a parabola over log(rate).

    Tries `start`, its half and its double, and one rate further as long as the best of them is at
    an end, at most `MOST_RATES`; a lower one if all of them diverge. The result is the vertex of
    the parabola through the best rate and its two neighbours; the best rate itself, if it is still
    at an end or a neighbour diverged.

    mean_scores: returns the scores of rates; higher is better, -inf if a run diverged.
    """
    scores: dict[float, float] = {}
    rates = [start * factor for factor in FACTORS]
    while rates and len(scores) < MOST_RATES:
        scores |= zip(rates, mean_scores(rates), strict=True)
        best = max(scores, key=scores.get)
        best = min(scores) if scores[best] == -math.inf else best
        rates = [x for x in (best / 2, 2 * best) if x not in scores]
    low, middle, high = (scores.get(x, -math.inf) for x in (best / 2, best, 2 * best))
    bend = 2 * middle - low - high
    if 0 < bend < math.inf:
        best *= 2 ** ((high - low) / (2 * bend))
    return Rate(best, at_end=bool(rates))
