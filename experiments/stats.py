"""Judge whether an experiment differs from the baseline. Pure functions of scores.

A row is the list of an experiment's scores, one per seed. Seeds are the unit: the sentences of a
run are not independent of each other.

- The standard deviation of one run is pooled over all healthy rows (`pool`, `unhealthy`).
- An experiment is better or worse if an interval of 95 % excludes zero: the pooled interval for one
  question, Dunnett's (1955) for a table, in which many rows share one baseline.
- It makes no difference above delta if two one-sided tests at 5 % reject both -delta and +delta
  (Schuirmann 1987), that is, if the pooled interval of 90 % lies inside ±delta.
- Both may be decided early, after numbers of seeds that are fixed beforehand. The levels of these
  looks spend the error as O'Brien & Fleming do (Lan & DeMets 1983), so that all looks together call
  a difference where there is none in at most 5 % of the questions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

ERROR = 0.05
POWER = 0.8
UNHEALTHY = 0.001  # p-value below which the variance of a row is not that of the others


@dataclass(frozen=True)
class Sigma:
    """Standard deviation of one run, and its degrees of freedom."""

    value: float
    df: int


@dataclass(frozen=True)
class Verdict:
    """A decision about experiment minus baseline, and the interval behind it.

    word: "better", "worse", "no difference" or "undecided". low, high: 95 % interval. seeds: those
    of the experiment. note: why the row is unhealthy, or "". more: about how many further seeds
    would decide, if the difference stays as it is; 0 if decided, None if more than 1,000.
    """

    word: str
    difference: float
    low: float
    high: float
    seeds: int
    note: str = ""
    more: int | None = 0

    def __str__(self) -> str:
        if math.isnan(self.difference):
            return f"{self.word} ({self.note})"
        text = f"{self.word} {self.difference:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"
        if self.word == "undecided":
            more = "more than 1,000" if self.more is None else f"about {self.more}"
            text += f": {more} more seeds"
        return text + (f" ({self.note})" if self.note else "")


def pool(*rows: Sequence[float]) -> Sigma:
    """Return the standard deviation within rows; NaN if each has one score."""
    df = sum(len(row) - 1 for row in rows)
    squares = sum(float(np.var(row)) * len(row) for row in rows)
    return Sigma(math.sqrt(squares / df) if df else math.nan, df)


def merge(one: Sigma, other: Sigma) -> Sigma:
    """Return the standard deviation pooled from two estimates."""
    if not one.df or not other.df:
        return one if one.df else other
    df = one.df + other.df
    return Sigma(math.sqrt((one.value**2 * one.df + other.value**2 * other.df) / df), df)


@cache
def t_quantile(level: float, df: float) -> float:
    """Return the two-sided quantile of Student's t: |t| exceeds it with probability `level`."""
    return float(stats.t.isf(level / 2, df))


@cache
def f_limits(df: int, other: int) -> tuple[float, float]:
    """Return the ratios of variances between which a row is healthy."""
    return tuple(stats.f.ppf([UNHEALTHY, 1 - UNHEALTHY], df, other).tolist())


def health(row: Sequence[float], sigma: Sigma) -> str:
    """Return why a row may not share the pooled `sigma`, or "" if it may."""
    if not all(map(math.isfinite, row)):
        return "diverged"
    own = pool(row)
    if not own.df or not sigma.df:
        return ""
    low, high = f_limits(own.df, sigma.df)
    if own.value**2 < low * sigma.value**2:
        return "hardly varies"
    if own.value**2 <= high * sigma.value**2:
        return ""
    ordered = np.sort(row)
    two_groups = np.diff(ordered).max() > np.ptp(ordered) / 2
    return "two-humped" if two_groups else "varies more than the others"


def unhealthy(rows: dict[str, Sequence[float]]) -> dict[str, str]:
    """Return the reason for each row that may not share the pooled standard deviation.

    Each row is compared with all others that are healthy, the widest first.
    """
    found = {name: "diverged" for name, row in rows.items() if health(row, Sigma(math.nan, 0))}
    while True:
        rest = {name: row for name, row in rows.items() if name not in found}
        sigmas = {
            name: pool(*(row for other, row in rest.items() if other != name)) for name in rest
        }
        reasons = {name: reason for name in rest if (reason := health(rest[name], sigmas[name]))}
        if not reasons:
            return found
        name = max(reasons, key=lambda name: pool(rest[name]).value)
        found[name] = reasons[name]


@cache
def levels(looks: tuple[int, ...], error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each look, so that all looks together have level `error`.

    looks: numbers of seeds of the experiment; the baseline has the last of them from the start.
    The information at a look is 1 / (1 / n + 1 / last). The probability to stop first at a look is
    computed by numerical integration (Armitage, McPherson & Rowe 1969).
    """
    information = [1 / (1 / n + 1 / looks[-1]) for n in looks]
    points, mass, spent, result = np.zeros(1), np.ones(1), 0.0, []
    for before, now in pairwise([0.0, *information]):
        # Twice the one-sided function of Lan & DeMets, each with half of the error.
        total = 4 * stats.norm.sf(stats.norm.isf(error / 4) * math.sqrt(information[-1] / now))
        step = math.sqrt(now - before)

        def excess(z, now=now, step=step, spend=total - spent, points=points, mass=mass):
            bound = z * math.sqrt(now)
            outside = stats.norm.sf((bound - points) / step) + stats.norm.cdf(
                (-bound - points) / step
            )
            return float(mass @ outside) - spend

        z = optimize.brentq(excess, 0, 20)
        result.append(2 * float(stats.norm.sf(z)))
        grid = np.linspace(-z, z, 801) * math.sqrt(now)
        weights = np.full(len(grid), grid[1] - grid[0])
        weights[[0, -1]] /= 2
        density = stats.norm.pdf((grid[:, np.newaxis] - points) / step) / step
        points, mass, spent = grid, weights * (density @ mass), total
    return tuple(result)


def level_at(n: int, looks: tuple[int, ...], error: float = ERROR) -> float:
    """Return the level for n seeds: that of the first look with as many, or of the last one."""
    pairs = zip(levels(looks, error), looks, strict=True)
    return next((level for level, look in pairs if n <= look), error)


def standard_error(own: float, sigma: float, n: int, m: int) -> float:
    """Return the standard error of the mean of n runs minus the mean of m baseline runs."""
    return (own**2 / n + sigma**2 / m) ** 0.5


def decide(
    row: Sequence[float],
    baseline: Sequence[float],
    sigmas: tuple[float, float],
    half: float,
    half_90: float,
    delta: float,
    note: str = "",
) -> Verdict:
    """Return the verdict for the half widths of the intervals of 95 % and of 90 %.

    sigmas: standard deviations of the experiment and of the baseline.
    """
    n, m, difference = len(row), len(baseline), float(np.mean(row) - np.mean(baseline))
    interval = (difference, difference - half, difference + half, n, note)
    if abs(difference) > half:
        return Verdict("better" if difference > 0 else "worse", *interval)
    if abs(difference) + half_90 < delta:
        return Verdict("no difference", *interval)
    more = np.arange(1, 1001)  # the baseline gets more seeds, too, when the experiment has as many
    errors = standard_error(*sigmas, n + more, np.maximum(m, n + more))
    scale = errors / standard_error(*sigmas, n, m)
    decides = (abs(difference) > half * scale) | (abs(difference) + half_90 * scale < delta)
    return Verdict("undecided", *interval, int(more[decides][0]) if decides.any() else None)


def judge(
    row: Sequence[float],
    baseline: Sequence[float],
    sigma: Sigma,
    delta: float,
    looks: tuple[int, ...],
    note: str = "",
    rows: int = 1,
) -> Verdict:
    """Judge one question with the pooled interval.

    sigma: pooled over other rows; a healthy row's own variance is added. note: from `unhealthy`, if
    that is known. rows: number of questions that share the error (Bonferroni).
    """
    note = note or health(row, sigma)
    difference = float(np.mean(row) - np.mean(baseline))
    if note == "diverged":
        return Verdict("worse", math.nan, math.nan, math.nan, len(row), note)
    if rows == 1 and not note:
        sigma = merge(sigma, pool(row))
    if not sigma.df or (note and len(row) < 2):
        return Verdict("undecided", difference, -math.inf, math.inf, len(row), note, None)
    n, m, own = len(row), len(baseline), pool(row).value if note else sigma.value
    error, df = standard_error(own, sigma.value, n, m), sigma.df
    if note:  # its own variance (Welch 1947)
        df = error**4 / (own**4 / n**2 / (n - 1) + sigma.value**4 / m**2 / sigma.df)
    half = error * t_quantile(level_at(n, looks) / rows, df)
    half_90 = error * t_quantile(level_at(n, looks, 2 * ERROR), df)
    return decide(row, baseline, (own, sigma.value), half, half_90, delta, note)


def judge_table(
    rows: dict[str, Sequence[float]],
    baseline: Sequence[float],
    delta: float,
    looks: tuple[int, ...],
) -> tuple[Sigma, dict[str, Verdict]]:
    """Judge many experiments that share a baseline, healthy ones with Dunnett's interval.

    `scipy.stats.dunnett` pools the variance of the groups that it is given. It is given all healthy
    rows, so that its variance is the pooled one. Unhealthy rows share the error by Bonferroni.
    """
    notes = unhealthy({"baseline": baseline, **rows})
    notes.pop("baseline", None)
    healthy = {name: row for name, row in rows.items() if name not in notes and len(row)}
    sigma = pool(baseline, *healthy.values())
    verdicts = {
        name: judge(row, baseline, sigma, delta, looks, notes.get(name, ""), len(rows))
        for name, row in rows.items()
        if len(row)
    }
    if not healthy or min(map(len, [baseline, *healthy.values()])) < 2:
        return sigma, verdicts
    # Integrates with random numbers.
    result = stats.dunnett(*healthy.values(), control=baseline, rng=np.random.default_rng(0))
    for level in {level_at(len(row), looks) for row in healthy.values()}:
        interval = result.confidence_interval(1 - level)
        halves = (interval.high - interval.low) / 2
        for (name, row), half in zip(healthy.items(), halves.tolist(), strict=True):
            n, sigmas = len(row), (sigma.value, sigma.value)
            if level_at(n, looks) == level:
                error = standard_error(*sigmas, n, len(baseline))
                half_90 = error * t_quantile(level_at(n, looks, 2 * ERROR), sigma.df)
                verdicts[name] = decide(row, baseline, sigmas, half, half_90, delta)
    return sigma, verdicts


def resample(
    scores: Sequence[float],
    sigma: Sigma,
    delta: float,
    looks: tuple[int, ...],
    effect: float = 0.0,
    tries: int = 10_000,
) -> dict[str, np.ndarray]:
    """Return the share of each verdict by look, when both sides are drawn from the same scores.

    Both are drawn with replacement, always the same draws, and `effect` is added to the experiment.
    As in a real question, the first look that decides is the last one.
    """
    random = np.random.default_rng(0)
    shares = {word: np.zeros(len(looks)) for word in ("better", "worse", "no difference")}
    for _ in range(tries):
        row = random.choice(scores, looks[-1]) + effect
        baseline = random.choice(scores, looks[-1])
        for i, n in enumerate(looks):
            word = judge(row[:n], baseline, sigma, delta, looks).word
            if word != "undecided":
                shares[word][i:] += 1 / tries
                break
    return shares


def detectable(sigma: Sigma, delta: float, looks: tuple[int, ...]) -> list[float]:
    """Return the smallest effect that is called better in 80 % of the cases, by look.

    Interpolated between 14 effects, with 1,000 simulated questions on normal scores for each.
    """
    scores = sigma.value * stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    effects = sigma.value * np.linspace(0.4, 3, 14)
    found = [resample(scores, sigma, delta, looks, e, 1000)["better"] for e in effects]
    rising = np.maximum.accumulate(np.array(found))  # (effects, looks)
    return [float(np.interp(POWER, column, effects)) for column in rising.T]
