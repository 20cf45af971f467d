"""Judge whether an experiment differs from the baseline: see docs/judging.md.

Pure functions of scores: their standard deviation, Student's interval of differences between pairs
of runs, and two one-sided tests against ±delta, at levels for several stages.
"""

import math
from collections.abc import Collection, Hashable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

ERROR, POWER = 0.05, 0.8
DISAGREE = 0.01  # the table says that processors differ if their baselines' p-value is smaller
OUTLIER = 0.001  # an experiment is an outlier if its variance has a smaller tail probability
OWN_VARIANCE = 10  # number of pairs from which on each experiment has its own variance
SMALL = "too small to matter"  # a verdict: the difference is smaller than delta
NONE = "no effect"  # a verdict: all scores are equal
GAMMA = -4  # of the error that stages spend: see `levels`
Differences = Sequence[float]  # an experiment's scores minus the baseline's, one per seed
Scores = dict[Hashable, dict[Hashable, float]]  # of the runs of each row, by block
Stages = tuple[int, ...]  # numbers of pairs after which an experiment may be decided
t_quantile = cache(stats.t.isf)  # slow, and called often


class Sigma(NamedTuple):
    """Standard deviation of the difference between the runs of a pair; its degrees of freedom."""

    value: float
    df: int


class Verdict(NamedTuple):
    """A decision about experiment minus baseline, with its interval.

    outcome: "better", "worse", "too small to matter", "undecided" or, if all scores are equal, "no
    effect". The interval is the 95 % one; of "too small to matter", which it decides, the 90 % one.
    note: why the experiment is an outlier, or "".
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
        text += " at 90 %" if text and self.outcome == SMALL else ""
        text += f" after {self.seeds} seed{'s' * (self.seeds != 1)}"
        return self.outcome + text + (f" ({self.note})" if self.note else "")


def residuals(scores: Scores) -> tuple[np.ndarray, int]:
    """Fit a score as the sum of an effect of its row and one of its block.

    A row is the baseline or an experiment, and a block what its runs share: the seed and the
    processor. Returns the residuals, in the order of the runs, and their degrees of freedom.
    """
    cells = [(row, block) for row in scores for block in scores[row]]
    effects = [*scores, *dict.fromkeys(("block", block) for _, block in cells)]
    index = {effect: i for i, effect in enumerate(effects)}
    design = np.zeros((len(cells), len(effects)))
    for i, (row, block) in enumerate(cells):
        design[i, [index[row], index["block", block]]] = 1
    values = np.array([scores[row][block] for row, block in cells])
    fit, _, rank, _ = np.linalg.lstsq(design, values)
    return values - design @ fit, len(cells) - int(rank)


def deviation(scores: Scores) -> Sigma:
    """Return the standard deviation of the difference between two runs of a block: √2 of a run's.

    Each experiment is compared with the same runs of the baseline, so the variances of their
    differences are not independent, and their mean would have fewer degrees of freedom than it
    seems. The residuals of the additive model have those that are returned.
    """
    rest, df = residuals(scores)
    return Sigma(math.sqrt(2 * float(rest @ rest) / df) if df else 0.0, df)


def without_outliers(
    scores: Scores, baselines: Collection[Hashable]
) -> tuple[Scores, set[Hashable]]:
    """Return the rows that vary alike, and the names of those that vary more: outliers.

    Also leaves out rows that vary less than a tenth as much as the middle one, such as those that
    score 0 with every seed, and rows with a score that is NaN. An outlier's sum of squares, given
    all other rows, is too large by an F test. The most extreme one is removed first; then the
    others are tested again. The rows of baselines are never removed.
    """
    own = {row: np.std([*x.values()], ddof=1) for row, x in scores.items() if len(x) > 1}
    least = 0.1 * float(np.median([x for x in own.values() if not math.isnan(x)] or [0.0]))
    kept, outliers = {}, set()
    for row, x in scores.items():
        if row in baselines or not (np.isnan([*x.values()]).any() or own.get(row, least) < least):
            kept[row] = x
    while True:
        sigma, tails = deviation(kept), {}
        for row in (row for row in kept if row not in baselines):  # in order, for ties
            rest = deviation({other: x for other, x in kept.items() if other != row})
            if 0 < rest.df < sigma.df:
                df = sigma.df - rest.df
                excess = (sigma.value**2 * sigma.df - rest.value**2 * rest.df) / df
                tails[row] = stats.f.sf(excess / max(rest.value, 1e-9) ** 2, df, rest.df)
        row = min(tails, key=tails.get, default=None)
        if row is None or tails[row] >= OUTLIER:
            return kept, outliers
        outliers.add(row)
        del kept[row]


def spread(scores: Scores, baselines: Collection[Hashable]) -> tuple[Sigma, set[Hashable]]:
    """Return the standard deviation of a difference, without outliers, and the outliers."""
    kept, outliers = without_outliers(scores, baselines)
    return deviation(kept), outliers


def agree(groups: list[Differences]) -> str:
    """Say whether the baselines of processors seem to differ in mean or spread; "" for only one.

    By an analysis of variance and by Bartlett's test. Processors with one or two runs are left out.
    """
    groups = [group for group in groups if len(group) > 2]
    if len(groups) < 2:
        return ""
    mean, spread = stats.f_oneway(*groups).pvalue, stats.bartlett(*groups).pvalue
    if min(mean, spread) < DISAGREE:
        return f"The processors differ (p = {min(mean, spread):.1g})."
    p = f"{mean:.2f}, of the spread {spread:.2f}"
    return f"No difference between processors is found (p = {p})."


@cache
def levels(stages: Stages, error: float = ERROR) -> tuple[float, ...]:
    """Return the two-sided level at each stage, so that all stages together have level `error`.

    At a share t of the pairs, a part (1 - exp(-γt)) / (1 - exp(-γ)) of the error is spent, half of
    it on each side, with γ = -4 (Lan & DeMets 1983; Hwang, Shih & DeCani 1990). The means at two
    stages correlate as the root of the ratio of their pairs.
    """
    pairs, bounds = np.array(stages), []
    ratios = pairs / pairs[:, np.newaxis]
    for i, share in enumerate(pairs / pairs[-1], 1):
        alpha_spent = error * math.expm1(-GAMMA * share) / math.expm1(-GAMMA)
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
    sigma: Sigma,
    delta: float,
    stages: Stages,
    outliers: Collection[str] = (),
    lower_is_better: bool = False,
    asked: int = 0,
) -> dict[str, Verdict]:
    """Judge experiments by their differences.

    sigma, outliers: see `spread`. The standard deviation of outliers, and of all from
    `OWN_VARIANCE` pairs on or if sigma is unknown, is that of their own differences. asked: number
    of all experiments that share the error of 5 %, those that are judged by another score included.
    """
    experiments, verdicts = {name: x for name, x in experiments.items() if len(x)}, {}
    for name, differences in experiments.items():
        n, note = len(differences), "varies more than the others" if name in outliers else ""
        if np.isnan(differences).any():
            verdicts[name] = Verdict("worse", math.nan, math.nan, math.nan, n, "diverged")
            continue
        value, df = sigma
        if note or n >= OWN_VARIANCE or not df:
            value, df = float(np.std(differences, ddof=1)) if n > 1 else 0.0, n - 1
        shared = max(asked, len(experiments))
        difference, error = float(np.mean(differences)), value / n**0.5
        widths = limits(n, df, stages, shared) if df else (math.inf, math.inf)
        half_width, half_width_90 = (width * error if df else width for width in widths)
        outcome = "undecided"
        if abs(difference) > half_width:
            outcome = "better" if (difference < 0) == lower_is_better else "worse"
        elif abs(difference) + half_width_90 < delta:
            outcome, half_width = SMALL, half_width_90
        ends = difference - half_width, difference + half_width
        verdicts[name] = Verdict(outcome, difference, *ends, n, note)
    return verdicts


def detectable(sigma: Sigma, delta: float, stages: Stages, asked: int = 1) -> list[float]:
    """Return, for each stage, the smallest effect that 80 % of simulations detect by then.

    sigma: of all experiments. asked: number of experiments in one command.
    """
    random, tries, sizes = np.random.default_rng(0), 2000, []
    noise = random.normal(0, sigma.value, (tries, stages[-1]))
    # What the tool takes for sigma differs from it, the more the fewer its degrees of freedom.
    estimates = sigma.value * np.sqrt(random.chisquare(sigma.df, tries) / sigma.df)
    effects = sigma.value * np.linspace(0.4, 4, 37) * min(1, math.sqrt(12 / stages[-1]))
    detected, undecided = np.zeros((37, tries), bool), np.ones((37, tries), bool)
    for n in stages:
        value, df = estimates, sigma.df
        if n >= OWN_VARIANCE:
            value, df = noise[:, :n].std(axis=1, ddof=1), n - 1
        limit, limit_90 = limits(n, df, stages, asked)
        error = value / n**0.5
        difference = effects[:, np.newaxis] + noise[:, :n].mean(axis=1)
        detected |= undecided & (difference > limit * error)
        undecided &= np.abs(difference) <= limit * error
        undecided &= np.abs(difference) + limit_90 * error >= delta
        rising = np.maximum.accumulate(detected.mean(axis=1))
        sizes.append(float(np.interp(POWER, rising, effects, right=math.inf)))
    return sizes
