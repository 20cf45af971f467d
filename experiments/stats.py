"""Judge whether an experiment differs from the baseline: see docs/judging.md.

Pure functions of scores: Student's or Dunnett's interval, and two one-sided tests against ±delta,
at the levels of Lan & DeMets for several stages.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

ERROR, POWER = 0.05, 0.8
OUTLIER = 0.001  # on each side: an outlier's variance has a smaller tail probability
OWN_VARIANCE = 10  # number of seeds from which on each experiment has its own variance
Scores = Sequence[float]  # of an experiment or of the baseline, one per seed
Stages = tuple[int, ...]  # numbers of seeds after which an experiment may be decided
f_quantile, t_quantile = cache(stats.f.ppf), cache(stats.t.isf)  # slow, and called often


class Sigma(NamedTuple):
    """Standard deviation of one run, and its degrees of freedom."""

    value: float
    df: int


NO_SCORES = Sigma(0.0, 0)


class Verdict(NamedTuple):
    """A decision about experiment minus baseline, with its interval.

    outcome: "better", "worse", "no difference" or "undecided". The interval is the 95 % one; of "no
    difference", which it decides, the 90 % one. note: why the experiment is an outlier, or "".
    """

    outcome: str
    difference: float
    low: float
    high: float
    seeds: int
    note: str = ""

    @property
    def numbers(self) -> str:
        """The difference and its interval."""
        decimals = 1
        while decimals < 3 and 0 in (round(self.low, decimals), round(self.high, decimals)):
            decimals += 1  # or a verdict would seem to contradict its interval
        difference, low, high = (f"{x:+.{decimals}f}" for x in self[1:4])
        return f"{difference} [{low}, {high}]"

    def __str__(self) -> str:
        text = f" {self.numbers}" if self.low < self.high else ""
        text += " at 90 %" if text and self.outcome == "no difference" else ""
        text += f" after {self.seeds} seed{'s' * (self.seeds != 1)}"
        return self.outcome + text + (f" ({self.note})" if self.note else "")


def pool(*groups: Scores, prior: Sigma = NO_SCORES) -> Sigma:
    """Return the standard deviation within groups of scores, with that of others. No scores: 0."""
    groups = [scores for scores in groups if len(scores) > 1]
    df = sum(len(scores) - 1 for scores in groups) + prior.df
    squares = sum(float(np.var(scores)) * len(scores) for scores in groups)
    return Sigma(math.sqrt((squares + prior.value**2 * prior.df) / df) if df else 0.0, df)


def outliers(
    experiments: dict[str, Scores], baseline: Scores, prior: Sigma = NO_SCORES
) -> dict[str, str]:
    """Return the experiments whose variance is not that of the others, and why.

    The others include the baseline and `prior`. The experiment that differs most from the baseline
    is tested first; if it is rejected, it is not among the others when these are tested.
    """
    diverged = {name: "diverged" for name, x in experiments.items() if np.isnan(x).any()}
    experiments = {name: x for name, x in experiments.items() if name not in diverged}
    reference = pool(baseline, prior=prior).value + 1e-9

    def distance(name):
        return abs(math.log((pool(experiments[name]).value + 1e-9) / reference))

    for name in sorted(experiments, key=distance, reverse=True):
        rest = {other: x for other, x in experiments.items() if other != name}
        sigma, (value, df) = pool(baseline, *rest.values(), prior=prior), pool(experiments[name])
        if df and sigma.df:
            low, high = (f_quantile(p, df, sigma.df) for p in (OUTLIER, 1 - OUTLIER))
            if not low * sigma.value**2 <= value**2 <= high * sigma.value**2:
                reason = "varies more than the others" if value > sigma.value else "nearly constant"
                return diverged | {name: reason} | outliers(rest, baseline, prior)
    return diverged


@cache
def levels(stages: Stages, error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each stage, so that all stages together have level `error`.

    At a share t of the information, 4 (1 - Φ(z / √t)) of the error is spent, with z the upper
    error / 4 quantile: the one-sided function of Lan & DeMets on each side, with half of the error.
    The baseline has the last number of seeds from the start, so the information at a stage is
    1 / (1 / n + 1 / last); the scores at two stages correlate as the root of its ratio.
    """
    information, limits = np.array([1 / (1 / n + 1 / stages[-1]) for n in stages]), []
    ratios = information / information[:, np.newaxis]
    for i, share in enumerate(information / information[-1], 1):
        alpha_spent = 4 * stats.norm.sf(stats.norm.isf(error / 4) / math.sqrt(share))
        normal = stats.multivariate_normal(cov=np.sqrt(np.minimum(ratios, 1 / ratios))[:i, :i])

        def excess(limit, normal=normal, alpha_spent=alpha_spent):
            bounds = np.array([*limits, limit])
            inside = normal.cdf(bounds, lower_limit=-bounds, rng=np.random.default_rng(0))
            return 1 - inside - alpha_spent

        limits.append(optimize.brentq(excess, 0, 9, xtol=1e-5))
    return tuple((2 * stats.norm.sf(limits)).tolist())


@cache
def dunnett_limit(level: float, sizes: tuple[int, ...], m: int, df: int) -> float:
    """Return the limit that the largest of |t| exceeds with probability `level` (Dunnett 1955).

    sizes: seeds of the experiments that share a baseline of m seeds. `scipy.stats.dunnett` finds
    the same limit, more slowly and from random numbers, and does not always converge.
    """
    z = np.linspace(-6, 6, 97)  # the baseline's mean, in standard errors
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    s = np.sqrt(stats.chi2.ppf((np.arange(100) + 0.5) / 100, df) / df)[:, np.newaxis]

    def excess(limit):
        inside = weights
        for n, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            shared, own = math.sqrt(n / (n + m)) * z, math.sqrt(m / (n + m))
            ends = stats.norm.cdf([(shared + limit * s) / own, (shared - limit * s) / own])
            inside = inside * (ends[0] - ends[1]) ** count  # (s, z)
        return 1 - inside.sum(axis=1).mean() - level

    return optimize.brentq(excess, 0, 1000)


def welch_df(error: float, df: float, other_error: float, other_df: float) -> float:
    """Return the degrees of freedom of a difference of means, from their standard errors."""
    return (error**2 + other_error**2) ** 2 / (error**4 / df + other_error**4 / other_df)


def limits(
    n: int, m: int, df: float, stages: Stages, sizes: tuple[int, ...]
) -> tuple[float, float]:
    """Return half the widths of the intervals of 95 and 90 % after n seeds, in standard errors.

    n, m: seeds of an experiment and of the baseline. sizes: those of all experiments. Several have
    Dunnett's interval of 95 %, one has Student's. The level is that of the first stage with at
    least n seeds, or of the last one.
    """
    index = sum(stage < n for stage in stages[:-1])
    level, level_90 = (levels(stages, error)[index] for error in (ERROR, 2 * ERROR))
    many = len(sizes) > 1
    limit = dunnett_limit(level, sizes, m, int(df)) if many else t_quantile(level / 2, df)
    return limit, t_quantile(level_90 / 2, df)


def judge(
    experiments: dict[str, Scores],
    baseline: Scores,
    delta: float,
    stages: Stages,
    prior: Sigma = NO_SCORES,
) -> dict[str, Verdict]:
    """Judge experiments that share a baseline. prior: the deviation within further experiments."""
    experiments = {name: scores for name, scores in experiments.items() if len(scores)}
    sizes = tuple(sorted(map(len, experiments.values())))
    notes, m, verdicts = outliers(experiments, baseline, prior), len(baseline), {}
    alike = [scores for name, scores in experiments.items() if name not in notes]
    sigma = pool(baseline, *alike, prior=prior)
    for name, scores in experiments.items():
        n, note = len(scores), notes.get(name, "")
        if note == "diverged":
            verdicts[name] = Verdict("worse", math.nan, math.nan, math.nan, n, note)
            continue
        own = pool(scores) if note or n >= OWN_VARIANCE else sigma  # the baseline's is `sigma`
        errors, df = (own.value / n**0.5, sigma.value / m**0.5), sigma.df
        if own is not sigma and any(errors):
            df = max(1, welch_df(errors[0], own.df, errors[1], sigma.df))
        difference, error = float(np.mean(scores) - np.mean(baseline)), math.hypot(*errors)
        half_width, half_width_90 = (x * error for x in limits(n, m, df, stages, sizes))
        outcome = "undecided"
        if abs(difference) > half_width:
            outcome = "better" if difference > 0 else "worse"
        elif abs(difference) + half_width_90 < delta:
            outcome, half_width = "no difference", half_width_90
        ends = difference - half_width, difference + half_width
        verdicts[name] = Verdict(outcome, difference, *ends, n, note)
    return verdicts


def detectable(sigma: Sigma, delta: float, stages: Stages, m: int, asked: int = 1) -> list[float]:
    """Return, for each stage, the smallest effect that 80 % of simulations call better by then.

    sigma: of all experiments and of the m seeds of the baseline. asked: number of experiments.
    """
    random, tries, sizes = np.random.default_rng(0), 2000, []
    scores = random.normal(0, sigma.value, (tries, stages[-1]))
    baselines = random.normal(0, sigma.value / m**0.5, tries)
    effects = sigma.value * np.linspace(0.4, 4, 37)
    better, undecided = np.zeros((37, tries), bool), np.ones((37, tries), bool)
    for n in stages:
        deviation, df = sigma
        if n >= OWN_VARIANCE:
            deviation = scores[:, :n].std(axis=1, ddof=1)
            df = welch_df(n**-0.5, n - 1, m**-0.5, sigma.df)
        error = np.sqrt(deviation**2 / n + sigma.value**2 / m)
        limit, limit_90 = limits(n, m, df, stages, (n,) * asked)
        difference = effects[:, np.newaxis] + scores[:, :n].mean(axis=1) - baselines
        better |= undecided & (difference > limit * error)
        undecided &= np.abs(difference) <= limit * error
        undecided &= np.abs(difference) + limit_90 * error >= delta
        rising = np.maximum.accumulate(better.mean(axis=1))
        sizes.append(float(np.interp(POWER, rising, effects, right=math.inf)))
    return sizes
