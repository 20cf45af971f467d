"""Judge whether an experiment differs from the baseline. Pure functions of scores.

A row is the list of an experiment's scores, one per seed.

- The standard deviation of one run is pooled over all healthy rows.
- An experiment is better or worse if an interval of 95 % excludes zero: the pooled interval for one
  question, Dunnett's (1955) for a table, in which many rows share one baseline.
- It makes no difference above delta if two one-sided tests at 5 % reject both -delta and +delta
  (Schuirmann 1987), that is, if the pooled interval of 90 % lies inside ±delta.
- Both may be decided early, at looks that are fixed beforehand. The looks have an error of 5 %
  together, which they spend as O'Brien & Fleming do (Lan & DeMets 1983).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

ERROR, POWER = 0.05, 0.8
UNHEALTHY = 0.001  # p-value below which the variance of a row is not that of the others
Row = Sequence[float]
f_quantile, t_quantile = cache(stats.f.ppf), cache(stats.t.isf)  # slow, and called often


class Rule(NamedTuple):
    """The smallest difference that matters, and the numbers of seeds after which to look."""

    delta: float
    looks: tuple[int, ...]


class Sigma(NamedTuple):
    """Standard deviation of one run, and its degrees of freedom."""

    value: float
    df: int


@dataclass(frozen=True)
class Verdict:
    """A decision about experiment minus baseline, with its 95 % interval.

    note: why the row is unhealthy, or "". more: about how many further seeds would decide, if the
    difference stays as it is; None if more than 1,000.
    """

    word: str
    difference: float
    low: float
    high: float
    seeds: int
    note: str = ""
    more: int | None = 0

    def __str__(self) -> str:
        decimals, more = 1 if self.high - self.low >= 0.2 else 3, self.more or "more than 1,000"
        numbers = (f"{x:+.{decimals}f}" for x in (self.difference, self.low, self.high))
        text = "{} {} [{}, {}]".format(self.word, *numbers) if self.low < self.high else self.word
        text += f": about {more} more seeds" if self.word == "undecided" else ""
        return text + (f" ({self.note})" if self.note else "")


def pool(*rows: Row, prior: Sigma = Sigma(0, 0)) -> Sigma:  # noqa: B008
    """Return the standard deviation within rows, with that of other rows. No rows: 0."""
    rows = [row for row in rows if len(row)]
    df = sum(len(row) - 1 for row in rows) + prior.df
    squares = sum(float(np.var(row)) * len(row) for row in rows) + prior.value**2 * prior.df
    return Sigma(math.sqrt(squares / df) if df else 0.0, df)


def health(row: Row, sigma: Sigma) -> str:
    """Return why a row may not share the pooled `sigma`, or "" if it may."""
    if not all(map(math.isfinite, row)):
        return "diverged"
    own = pool(row)
    if not own.df or not sigma.df:
        return ""
    low, high = (f_quantile(p, own.df, sigma.df) for p in (UNHEALTHY, 1 - UNHEALTHY))
    if own.value**2 <= high * sigma.value**2:
        return "hardly varies" if own.value**2 < low * sigma.value**2 else ""
    two_groups = np.diff(np.sort(row)).max() > np.ptp(row) / 2
    return "two-humped" if two_groups else "varies more than the others"


def unhealthy(rows: dict[str, Row]) -> dict[str, str]:
    """Return the reason for each row whose variance is not that of the others, the widest first."""
    rest = dict(sorted(rows.items(), key=lambda item: -np.nan_to_num(pool(item[1]).value, nan=1e9)))
    for name, row in rest.items():
        others = pool(*(row for other, row in rest.items() if other != name))
        if reason := health(row, others):
            del rest[name]
            return {name: reason} | unhealthy(rest)
    return {}


@cache
def levels(looks: tuple[int, ...], error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each look, so that all looks together have level `error`.

    The baseline has the last number of seeds from the start, so the information at a look is
    1 / (1 / n + 1 / last); the scores at two looks correlate as the root of its ratio.
    """
    information, limits = np.array([1 / (1 / n + 1 / looks[-1]) for n in looks]), []
    ratios = information / information[:, np.newaxis]
    for i, share in enumerate(information / information[-1], 1):
        # Twice the one-sided function of Lan & DeMets, each with half of the error.
        spent = 4 * stats.norm.sf(stats.norm.isf(error / 4) / math.sqrt(share))
        normal = stats.multivariate_normal(cov=np.sqrt(np.minimum(ratios, 1 / ratios))[:i, :i])

        def excess(limit, normal=normal, spent=spent):
            bounds = np.array([*limits, limit])
            inside = normal.cdf(bounds, lower_limit=-bounds, rng=np.random.default_rng(0))
            return 1 - inside - spent

        limits.append(optimize.brentq(excess, 0, 9, xtol=1e-5))
    return tuple((2 * stats.norm.sf(limits)).tolist())


def level_at(n: int, rule: Rule, error: float = ERROR) -> float:
    """Return the level for n seeds: that of the first look with as many, or of the last one."""
    pairs = zip(rule.looks, levels(rule.looks, error), strict=True)
    return dict(pairs).get(min([x for x in rule.looks if n <= x], default=0), error)


def standard_error(own: float, sigma: float, n: int, m: int) -> float:
    """Return the standard error of the mean of n runs minus the mean of m baseline runs."""
    return (own**2 / n + sigma**2 / m) ** 0.5


def judge(
    row: Row,
    baseline: Row,
    sigma: Sigma,
    rule: Rule,
    note: str = "",
    half: float = 0,
    rows: int = 1,
) -> Verdict:
    """Judge a row with the pooled interval, or with one of half width `half`.

    note: why the row is unhealthy; it then has its own variance (Welch 1947). rows: number of rows
    that share the error (Bonferroni), if `half` is not given.
    """
    n, m, difference = len(row), len(baseline), float(np.mean(row) - np.mean(baseline))
    if note == "diverged":
        return Verdict("worse", *[math.nan] * 3, n, note)
    if not sigma.df or (note and n < 2):
        return Verdict("undecided", difference, -math.inf, math.inf, n, note, None)
    own, df = pool(row).value if note else sigma.value, sigma.df
    error = standard_error(own, sigma.value, n, m)
    if note:
        df = error**4 / (own**4 / n**2 / (n - 1) + sigma.value**4 / m**2 / sigma.df)
    half = half or error * t_quantile(level_at(n, rule) / rows / 2, df)
    half_90 = error * t_quantile(level_at(n, rule, 2 * ERROR) / 2, df)
    numbers = difference, difference - half, difference + half, n, note
    if abs(difference) > half:
        return Verdict("better" if difference > 0 else "worse", *numbers)
    if abs(difference) + half_90 < rule.delta:
        return Verdict("no difference", *numbers)
    more = np.arange(1, 1001)  # the baseline gets more seeds, too, when the experiment has as many
    scale = standard_error(own, sigma.value, n + more, np.maximum(m, n + more)) / error
    decides = (abs(difference) > half * scale) | (abs(difference) + half_90 * scale < rule.delta)
    return Verdict("undecided", *numbers, int(more[decides][0]) if decides.any() else None)


def judge_question(row: Row, baseline: Row, sigma: Sigma, rule: Rule) -> Verdict:
    """Judge one experiment. Its own variance, if healthy, is added to `sigma`, that of others."""
    note = health(row, sigma)
    return judge(row, baseline, sigma if note else pool(row, prior=sigma), rule, note)


def dunnett_limit(level: float, sizes: Sequence[int], m: int, df: int) -> float:
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


def judge_table(rows: dict[str, Row], baseline: Row, rule: Rule) -> dict[str, Verdict]:
    """Judge many experiments that share a baseline, the healthy ones with Dunnett's interval."""
    rows = {name: row for name, row in rows.items() if len(row)}
    notes = unhealthy({"baseline": baseline, **rows})
    sizes = [len(row) for name, row in rows.items() if name not in notes]
    m, sigma = len(baseline), pool(*(row for n, row in rows.items() if n not in notes), baseline)
    halves = {}
    for n in {*sizes} if sigma.df else ():
        limit = dunnett_limit(level_at(n, rule), sizes, m, sigma.df)
        halves[n] = limit * standard_error(sigma.value, sigma.value, n, m)
    return {
        name: judge(row, baseline, sigma, rule, notes[name], rows=len(rows))
        if name in notes
        else judge(row, baseline, sigma, rule, half=halves.get(len(row), 0))
        for name, row in rows.items()
    }


def resample(
    scores: Row, sigma: Sigma, rule: Rule, effect: float = 0.0, tries: int = 10_000
) -> dict[str, np.ndarray]:
    """Return the share of each verdict by look, when both sides are drawn from the same scores.

    Both are drawn with replacement, always the same draws; `effect` is added to the experiment.
    """
    random = np.random.default_rng(0)
    shares = {word: np.zeros(len(rule.looks)) for word in ("better", "worse", "no difference")}
    for _ in range(tries):
        row = random.choice(scores, rule.looks[-1]) + effect
        baseline = random.choice(scores, rule.looks[-1])
        for i, n in enumerate(rule.looks):
            word = judge_question(row[:n], baseline, sigma, rule).word
            if word != "undecided":
                shares[word][i:] += 1 / tries
                break
    return shares


def detectable(sigma: Sigma, rule: Rule) -> list[float]:
    """Return the smallest effect that is called better in 80 % of the cases, by look: simulated."""
    scores = sigma.value * stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    effects = sigma.value * np.linspace(0.4, 3, 14)
    found = [resample(scores, sigma, rule, effect, 1000)["better"] for effect in effects]
    rising = np.maximum.accumulate(np.array(found))  # (effects, looks)
    return [float(np.interp(POWER, column, effects)) for column in rising.T]
