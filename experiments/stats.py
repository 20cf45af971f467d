"""Judge whether an experiment differs from the baseline. Pure functions of scores.

A row is the list of an experiment's scores, one per seed.

- The standard deviation of one run is pooled over all healthy rows. A row that is not healthy, or
  has at least ten seeds, has its own (Welch 1947).
- An experiment is better or worse if its 95 % interval excludes zero: Student's for a single
  experiment, Dunnett's (1955) for several, which share one baseline.
- It makes no difference above delta if two one-sided tests at 5 % reject both -delta and +delta
  (Schuirmann 1987), that is, if Student's 90 % interval lies inside ±delta.
- Both may be decided early, at looks that are fixed beforehand. The looks have an error of 5 %
  together, which they spend as O'Brien & Fleming do (Lan & DeMets 1983).
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

ERROR, POWER = 0.05, 0.8
UNHEALTHY = 0.001  # on each side: smaller tail probabilities of a row's variance are unhealthy
OWN_VARIANCE = 10  # number of seeds from which on each row has its own variance
Row = Sequence[float]
Looks = tuple[int, ...]
Limits = tuple[float, float]
f_quantile, t_quantile = cache(stats.f.ppf), cache(stats.t.isf)  # slow, and called often


class Sigma(NamedTuple):
    """Standard deviation of one run, and its degrees of freedom."""

    value: float
    df: int


NO_ROWS = Sigma(0.0, 0)


class Verdict(NamedTuple):
    """A decision about experiment minus baseline, with its interval.

    The interval is the 95 % one; of "no difference", which it decides, the 90 % one. note: why the
    row is unhealthy, or "". more: about how many further seeds would decide at the last look, if
    the difference stays as it is; None if more than 1,000.
    """

    word: str
    difference: float
    low: float
    high: float
    seeds: int
    note: str = ""
    more: int | None = 0

    def __str__(self) -> str:
        text, decimals = self.word, 1
        if self.low < self.high:
            while decimals < 3 and 0 in (round(self.low, decimals), round(self.high, decimals)):
                decimals += 1  # or a verdict would seem to contradict its interval
            numbers = (f"{x:+.{decimals}f}" for x in (self.difference, self.low, self.high))
            text += " {} [{}, {}]".format(*numbers)
        text += " at 90 %" if self.word == "no difference" else ""
        text += f" after {self.seeds} seed{'s' * (self.seeds != 1)}"
        if self.word == "undecided":
            text += f", about {self.more} more needed" if self.more else ", more than 1,000 needed"
        return text + (f" ({self.note})" if self.note else "")


def pool(*rows: Row, prior: Sigma = NO_ROWS) -> Sigma:
    """Return the standard deviation within rows, with that of other rows. No rows: 0."""
    rows = [row for row in rows if len(row) > 1]
    df = sum(len(row) - 1 for row in rows) + prior.df
    squares = sum(float(np.var(row)) * len(row) for row in rows) + prior.value**2 * prior.df
    return Sigma(math.sqrt(squares / df) if df else 0.0, df)


def unhealthy(rows: dict[str, Row], baseline: Row, prior: Sigma = NO_ROWS) -> dict[str, str]:
    """Return the rows whose variance is not that of the other rows, and why.

    The other rows include the baseline and `prior`. The row that differs most from the baseline is
    tested first; if it is rejected, it is not among the others when these are tested.
    """
    diverged = {name: "diverged" for name, row in rows.items() if np.isnan(row).any()}
    rows = {name: row for name, row in rows.items() if name not in diverged}
    reference = pool(baseline, prior=prior).value + 1e-9

    def distance(name):
        return abs(math.log((pool(rows[name]).value + 1e-9) / reference))

    for name in sorted(rows, key=distance, reverse=True):
        rest = {other: row for other, row in rows.items() if other != name}
        sigma, (value, df) = pool(baseline, *rest.values(), prior=prior), pool(rows[name])
        if df and sigma.df:
            low, high = (f_quantile(p, df, sigma.df) for p in (UNHEALTHY, 1 - UNHEALTHY))
            if not low * sigma.value**2 <= value**2 <= high * sigma.value**2:
                reason = "varies more than the others" if value > sigma.value else "nearly constant"
                return diverged | {name: reason} | unhealthy(rest, baseline, prior)
    return diverged


@cache
def levels(looks: Looks, error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each look, so that all looks together have level `error`.

    At a share t of the information, 4 (1 - Φ(z / √t)) of the error is spent, with z the upper
    error / 4 quantile: the one-sided function of Lan & DeMets on each side, with half of the error.
    The baseline has the last number of seeds from the start, so the information at a look is
    1 / (1 / n + 1 / last); the scores at two looks correlate as the root of its ratio.
    """
    information, limits = np.array([1 / (1 / n + 1 / looks[-1]) for n in looks]), []
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


class Comparison(NamedTuple):
    """Experiment minus baseline, and the standard errors of the two means."""

    difference: float
    error: float
    baseline_error: float


def welch_df(error: float, df: float, other_error: float, other_df: float) -> float:
    """Return the degrees of freedom of a difference of means, from their standard errors."""
    return (error**2 + other_error**2) ** 2 / (error**4 / df + other_error**4 / other_df)


def decide(
    compared: Comparison, n: int, now: Limits, last: Limits, delta: float, note: str = ""
) -> Verdict:
    """Decide about n seeds. now, last: the `limits` at this look and at the last one."""
    size, error = abs(compared.difference), math.hypot(compared.error, compared.baseline_error)
    (limit, limit_90), (last_limit, last_limit_90) = now, last
    word, half_width, more = "undecided", limit * error, 0
    if size > half_width:
        word = "better" if compared.difference > 0 else "worse"
    elif size + limit_90 * error < delta:
        word, half_width = "no difference", limit_90 * error
    else:  # the baseline gets no more seeds
        largest = max(size / last_limit, (delta - size) / last_limit_90)  # error that decides
        variance = largest**2 - compared.baseline_error**2
        seeds = compared.error**2 * n / variance if variance > 0 else math.inf
        more = max(1, int(seeds) + 1 - n) if seeds < n + 1000 else None
    low, high = compared.difference - half_width, compared.difference + half_width
    return Verdict(word, compared.difference, low, high, n, note, more)


def limits(n: int, m: int, df: float, looks: Looks, sizes: tuple[int, ...]) -> Limits:
    """Return half the widths of the intervals of 95 and 90 % after n seeds, in standard errors.

    n, m: seeds of an experiment and of the baseline. sizes: those of all experiments. Several have
    Dunnett's interval of 95 %, one has Student's. The level is that of the first look with at least
    n seeds, or of the last one.
    """
    index = sum(look < n for look in looks[:-1])
    level, level_90 = (levels(looks, error)[index] for error in (ERROR, 2 * ERROR))
    many = len(sizes) > 1
    limit = dunnett_limit(level, sizes, m, int(df)) if many else t_quantile(level / 2, df)
    return limit, t_quantile(level_90 / 2, df)


def judge(
    rows: dict[str, Row], baseline: Row, delta: float, looks: Looks, prior: Sigma = NO_ROWS
) -> dict[str, Verdict]:
    """Judge experiments that share a baseline. prior: the deviation within further rows."""
    rows = {name: row for name, row in rows.items() if len(row)}
    sizes = tuple(sorted(map(len, rows.values())))
    notes, m, verdicts = unhealthy(rows, baseline, prior), len(baseline), {}
    sigma = pool(baseline, *(row for n, row in rows.items() if n not in notes), prior=prior)
    for name, row in rows.items():
        n, note = len(row), notes.get(name, "")
        if note == "diverged" or not sigma.df:
            word = "worse" if note == "diverged" else "undecided"
            verdicts[name] = Verdict(word, math.nan, math.nan, math.nan, n, note, None)
            continue
        own = pool(row) if note or n >= OWN_VARIANCE else sigma  # the baseline's is `sigma`
        error, baseline_error, df = own.value / n**0.5, sigma.value / m**0.5, sigma.df
        if own is not sigma and (error or baseline_error):
            df = max(1, welch_df(error, own.df, baseline_error, sigma.df))
        compared = Comparison(float(np.mean(row) - np.mean(baseline)), error, baseline_error)
        now, last = (limits(seeds, m, df, looks, sizes) for seeds in (n, looks[-1]))
        verdicts[name] = decide(compared, n, now, last, delta, note)
    return verdicts


def detectable(sigma: Sigma, delta: float, looks: Looks, m: int, asked: int = 1) -> list[float]:
    """Return, for each look, the smallest effect that 80 % of simulations call better by then.

    sigma: of all rows, with the m seeds of the baseline. asked: number of experiments.
    """
    random, tries, sizes = np.random.default_rng(0), 2000, []
    scores = random.normal(0, sigma.value, (tries, looks[-1]))
    baselines = random.normal(0, sigma.value / m**0.5, tries)
    effects = sigma.value * np.linspace(0.4, 4, 37)
    better, undecided = np.zeros((37, tries), bool), np.ones((37, tries), bool)
    for n in looks:
        deviation, df = sigma
        if n >= OWN_VARIANCE:
            deviation = scores[:, :n].std(axis=1, ddof=1)
            df = welch_df(n**-0.5, n - 1, m**-0.5, sigma.df)
        error = np.sqrt(deviation**2 / n + sigma.value**2 / m)
        limit, limit_90 = limits(n, m, df, looks, (n,) * asked)
        difference = effects[:, np.newaxis] + scores[:, :n].mean(axis=1) - baselines
        better |= undecided & (difference > limit * error)
        undecided &= np.abs(difference) <= limit * error
        undecided &= np.abs(difference) + limit_90 * error >= delta
        rising = np.maximum.accumulate(better.mean(axis=1))
        sizes.append(float(np.interp(POWER, rising, effects, right=math.inf)))
    return sizes
