"""Judge whether an experiment differs from the baseline: see docs/judging.md.

Pure functions of differences between pairs of runs: Student's interval, and two one-sided tests
against ±delta, at the levels of Lan & DeMets for several stages.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

ERROR, POWER = 0.05, 0.8
DISAGREE = 0.01  # the table says that processors differ if their baselines' p-value is smaller
OUTLIER = 0.001  # on each side: an outlier's variance has a smaller tail probability
OWN_VARIANCE = 10  # number of pairs from which on each experiment has its own variance
Differences = Sequence[float]  # an experiment's scores minus the baseline's, one per seed
Stages = tuple[int, ...]  # numbers of pairs after which an experiment may be decided
f_quantile, t_quantile = cache(stats.f.ppf), cache(stats.t.isf)  # slow, and called often


class Sigma(NamedTuple):
    """Standard deviation of the difference between two runs of a pair; its degrees of freedom."""

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
    decimals: int = 1

    @property
    def numbers(self) -> str:
        """The difference and its interval."""
        decimals = self.decimals
        while decimals < 5 and 0 in (round(self.low, decimals), round(self.high, decimals)):
            decimals += 1  # or a verdict would seem to contradict its interval
        difference, low, high = (f"{x:+.{decimals}f}" for x in self[1:4])
        return f"{difference} [{low}, {high}]"

    def __str__(self) -> str:
        text = f" {self.numbers}" if self.low < self.high else ""
        text += " at 90 %" if text and self.outcome == "no difference" else ""
        text += f" after {self.seeds} seed{'s' * (self.seeds != 1)}"
        return self.outcome + text + (f" ({self.note})" if self.note else "")


def pool(*groups: Differences, prior: Sigma = NO_SCORES) -> Sigma:
    """Return the standard deviation within groups, pooled with that of others. No groups: 0."""
    groups = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in groups) + prior.df
    squares = sum(float(np.var(group)) * len(group) for group in groups)
    return Sigma(math.sqrt((squares + prior.value**2 * prior.df) / df) if df else 0.0, df)


def agree(groups: list[Differences]) -> str:
    """Say whether the baselines of several processors agree in mean and spread; "" for only one.

    By an analysis of variance and by Bartlett's test. Processors with one or two runs are left out.
    """
    groups = [group for group in groups if len(group) > 2]
    if len(groups) < 2:
        return ""
    mean, spread = stats.f_oneway(*groups).pvalue, stats.bartlett(*groups).pvalue
    if min(mean, spread) < DISAGREE:
        return f"The processors differ (p = {min(mean, spread):.1g})."
    return f"The processors agree in mean and spread (p = {mean:.2f}, {spread:.2f})."


def outliers(experiments: dict[str, Differences], prior: Sigma = NO_SCORES) -> dict[str, str]:
    """Return the experiments whose variance is not that of the others, and why.

    The others include `prior`. The experiment whose variance is most extreme is tested first; if it
    is rejected, it is not among the others when these are tested.
    """
    diverged = {name: "diverged" for name, x in experiments.items() if np.isnan(x).any()}
    experiments = {name: x for name, x in experiments.items() if name not in diverged}
    deviations = {name: pool(x).value + 1e-9 for name, x in experiments.items() if len(x) > 1}
    middle = (prior.value or np.median([*deviations.values()] or [0.0])) + 1e-9

    def distance(name):
        return abs(math.log(deviations[name] / middle))

    for name in sorted(deviations, key=distance, reverse=True):
        rest = {other: x for other, x in experiments.items() if other != name}
        sigma, (value, df) = pool(*rest.values(), prior=prior), pool(experiments[name])
        if sigma.df:
            low, high = (f_quantile(p, df, sigma.df) for p in (OUTLIER, 1 - OUTLIER))
            if not low * sigma.value**2 <= value**2 <= high * sigma.value**2:
                reason = "varies more than the others" if value > sigma.value else "nearly constant"
                return diverged | {name: reason} | outliers(rest, prior)
    return diverged


@cache
def levels(stages: Stages, error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each stage, so that all stages together have level `error`.

    At a share t of the pairs, 4 (1 - Φ(z / √t)) of the error is spent, with z the upper error / 4
    quantile: the one-sided function of Lan & DeMets on each side, with half of the error. The mean
    differences at two stages correlate as the root of the ratio of their pairs.
    """
    pairs, bounds = np.array(stages), []
    ratios = pairs / pairs[:, np.newaxis]
    for i, share in enumerate(pairs / pairs[-1], 1):
        alpha_spent = 4 * stats.norm.sf(stats.norm.isf(error / 4) / math.sqrt(share))
        normal = stats.multivariate_normal(cov=np.sqrt(np.minimum(ratios, 1 / ratios))[:i, :i])

        def excess(limit, normal=normal, alpha_spent=alpha_spent):
            upper = np.array([*bounds, limit])
            inside = normal.cdf(upper, lower_limit=-upper, rng=np.random.default_rng(0))
            return 1 - inside - alpha_spent

        bounds.append(optimize.brentq(excess, 0, 9, xtol=1e-5))
    return tuple((2 * stats.norm.sf(bounds)).tolist())


def limits(n: int, df: float, stages: Stages, asked: int = 1) -> tuple[float, float]:
    """Return half the widths of the intervals of 95 and 90 % after n pairs, in standard errors.

    asked: number of experiments. The 95 % hold for all of them together: Bonferroni's correction.
    The level is that of the first stage with at least n pairs, or of the last one.
    """
    index = sum(stage < n for stage in stages[:-1])
    level, level_90 = (levels(stages, error)[index] for error in (ERROR, 2 * ERROR))
    return t_quantile(level / 2 / asked, df), t_quantile(level_90 / 2, df)


def judge(
    experiments: dict[str, Differences],
    delta: float,
    stages: Stages,
    prior: Sigma = NO_SCORES,
    lower_is_better: bool = False,
    asked: int = 0,
) -> dict[str, Verdict]:
    """Judge experiments by their differences.

    prior: the deviation within further experiments. asked: number of all experiments that share
    the error of 5 %, those that are judged by another score included.
    """
    experiments = {name: x for name, x in experiments.items() if len(x)}
    notes, verdicts = outliers(experiments, prior), {}
    sigma = pool(*(x for name, x in experiments.items() if name not in notes), prior=prior)
    for name, differences in experiments.items():
        n, note = len(differences), notes.get(name, "")
        if note == "diverged":
            verdicts[name] = Verdict("worse", math.nan, math.nan, math.nan, n, note)
            continue
        own = pool(differences) if note or n >= OWN_VARIANCE or not sigma.df else sigma
        difference, error = float(np.mean(differences)), own.value / n**0.5
        shared = max(asked, len(experiments))
        widths = limits(n, own.df, stages, shared) if own.df else (math.inf, math.inf)
        half_width, half_width_90 = (width * error if own.df else width for width in widths)
        outcome = "undecided"
        if abs(difference) > half_width:
            outcome = "better" if (difference < 0) == lower_is_better else "worse"
        elif abs(difference) + half_width_90 < delta:
            outcome, half_width = "no difference", half_width_90
        ends = difference - half_width, difference + half_width
        verdicts[name] = Verdict(outcome, difference, *ends, n, note)
    return verdicts


def detectable(sigma: Sigma, delta: float, stages: Stages, asked: int = 1) -> list[float]:
    """Return, for each stage, the smallest effect that 80 % of simulations detect by then.

    sigma: of all experiments. asked: number of experiments in one command.
    """
    random, tries, sizes = np.random.default_rng(0), 2000, []
    noise = random.normal(0, sigma.value, (tries, stages[-1]))
    effects = sigma.value * np.linspace(0.4, 4, 37) * min(1, math.sqrt(12 / stages[-1]))
    detected, undecided = np.zeros((37, tries), bool), np.ones((37, tries), bool)
    for n in stages:
        deviation, df = sigma
        if n >= OWN_VARIANCE:
            deviation, df = noise[:, :n].std(axis=1, ddof=1), n - 1
        limit, limit_90 = limits(n, df, stages, asked)
        error = deviation / n**0.5
        difference = effects[:, np.newaxis] + noise[:, :n].mean(axis=1)
        detected |= undecided & (difference > limit * error)
        undecided &= np.abs(difference) <= limit * error
        undecided &= np.abs(difference) + limit_90 * error >= delta
        rising = np.maximum.accumulate(detected.mean(axis=1))
        sizes.append(float(np.interp(POWER, rising, effects, right=math.inf)))
    return sizes
