"""Simulate verdicts and loops: python -m tests.power

Not part of the suite; takes minutes. Prints how often an experiment without effect is called
different, and how often a planted gain is detected: for equal spreads, for spreads that vary, for a
share of outliers, for an edit that breaks the pairing (judged with and without pairs), for several
weights of the prior, and for the delta of the recipe spa-eng. Then, the same for edits that need
another learning rate, with and without --tune; and the share of loops of 100 edits without effect
that commit one.
"""

import numpy as np

from ablation import spread, verdicts
from ablation.experiments import Recipe
from ablation.verdicts import BETTER, STAGES, UNDECIDED, Sigma, Verdict, decide

ROWS, SEEDS = 55, 3  # of the stored experiments
NO_DELTA, SPA_ENG = 0.001, 1.95  # in σ: none is too small to matter; 0.0065 / 0.00333
# Loss of half or twice the best learning rate, in σ: 0.0207 nats per character on spa-eng, seeds 0
# and 8 at 1, 2 and 4 times the paper's rate; on shakespeare 0.038 at ¼, ½ and 1, which is 6.1 σ.
CURVATURE = 6.2
RUN = 1.11  # standard deviation of an unpaired run in σ, on spa-eng
OUTLIERS = {"tau": 0.19, "outliers": 0.09}


def draw_spreads(
    random: np.random.Generator, count: int, tau: float, outliers: float
) -> np.ndarray:
    """Return the standard deviations of the runs of experiments within their seed.

    tau: standard deviation of the logarithm of an experiment's spread. outliers: share of
    experiments whose runs vary three times as much.
    """
    factors = np.exp(random.normal(0, tau, count))
    return factors * np.where(random.random(count) < outliers, 3.0, 1.0) / 2**0.5


def first_decision(recipe: Recipe, gains: np.ndarray, sigma: Sigma, runs: int = 0) -> Verdict:
    """Return the verdict of the first stage that decides, or the last one."""
    for stage in STAGES:
        verdict = decide(recipe, gains[:stage].tolist(), sigma, STAGES, runs)
        if verdict.outcome != UNDECIDED:
            break
    return verdict


def simulate(
    gain: float,
    tries: int = 4000,
    tau: float = 0.0,
    outliers: float = 0.0,
    scale: float = 1.0,
    runs: int = 0,
    delta: float = NO_DELTA,
) -> dict[str, float]:
    """Return the share of each outcome of one experiment, in units of σ of a difference.

    The spread is estimated from ROWS experiments with SEEDS runs, which share the baseline's.
    scale: of the judged experiment's own spread. runs: if given, its runs are not paired, but
    compared with so many runs of the baseline.
    """
    random, shares = np.random.default_rng(0), {}
    recipe = Recipe("simulated", "", "exact_match", delta)
    for i in range(tries):
        if i % 20 == 0:  # other stored experiments
            deviations = np.append(draw_spreads(random, ROWS, tau, outliers), 0.5**0.5)
            stored = random.normal(size=(ROWS + 1, SEEDS)) * deviations[:, np.newaxis]
            sigma = spread.pooled({j: [*enumerate(row)] for j, row in enumerate(stored)})
        own = random.normal(0, draw_spreads(random, 1, tau, outliers)[0], STAGES[-1])
        base = random.normal(0, 0.5**0.5, STAGES[-1])
        gains, estimate = gain + scale * (own - base), sigma
        if runs:
            base = random.normal(0, RUN, runs).mean()
            gains, estimate = gain + random.normal(0, RUN, STAGES[-1]) - base, Sigma(RUN, ROWS)
        outcome = first_decision(recipe, gains, estimate, runs).outcome
        shares[outcome] = shares.get(outcome, 0) + 1 / tries
    return dict.fromkeys((verdicts.BETTER, verdicts.WORSE, verdicts.SMALL), 0.0) | shares


def simulate_rates(
    gain: float, octaves: float, tune: bool, tries: int = 4000, delta: float = NO_DELTA
) -> dict[str, float]:
    """Return the share of each outcome of an edit whose best learning rate is `octaves` above that
    of the baseline, which is the recipe's. gain: in σ, each side at its best rate.

    tune: whether three seeds choose the rate of each side, and others judge.
    """
    random, recipe = np.random.default_rng(0), Recipe("simulated", "", "exact_match", delta)
    shares = dict.fromkeys((verdicts.BETTER, verdicts.WORSE, verdicts.SMALL, UNDECIDED), 0.0)

    def loss(best: float) -> float:
        def measure(rates: list[float]) -> np.ndarray:
            return random.normal(-CURVATURE * (np.log2(rates) - best) ** 2, RUN / SEEDS**0.5)

        rate = verdicts.best_rate(1.0, measure).value if tune else 1.0
        return CURVATURE * (np.log2(rate) - best) ** 2

    for _ in range(tries):
        gains = random.normal(gain + loss(0.0) - loss(octaves), 1, STAGES[-1])
        shares[first_decision(recipe, gains, Sigma(1.0, ROWS)).outcome] += 1 / tries
    return shares


def loop(edits: int = 100, tries: int = 2000, tau: float = 0.0, outliers: float = 0.0) -> float:
    """Return the share of loops of edits without effect that commit at least one.

    The edits share the baseline's runs. A better one is committed if it is better again with eight
    new pairs.
    """
    random, committed, sigma = np.random.default_rng(0), 0, Sigma(1.0, ROWS)
    recipe = Recipe("simulated", "", "exact_match", SPA_ENG)
    for _ in range(tries):
        base, false = random.normal(0, 0.5**0.5, STAGES[-1]), False
        for deviation in draw_spreads(random, edits, tau, outliers):
            gains = random.normal(0, deviation, STAGES[-1]) - base
            if first_decision(recipe, gains, sigma).outcome == BETTER:
                again = random.normal(0, (deviation**2 + 0.5) ** 0.5, STAGES[-1]).tolist()
                false |= decide(recipe, again, sigma, STAGES[-1:]).outcome == BETTER
        committed += false
    return committed / tries


def main() -> None:
    cases = {
        "equal spreads": {},
        "log-normal spreads, τ = 0.19": {"tau": 0.19},
        "log-normal spreads, τ = 0.35": {"tau": 0.35},
        "τ = 0.19 and 9 % of outliers": OUTLIERS,
        "broken pairing, 1.76 σ": {"scale": 1.76},
        "broken pairing, judged unpaired": {"runs": 8},
    }
    gain = verdicts.detectable(Sigma(1.0, 60), STAGES[-1])
    print(f"per cent called different without effect; called better with a gain of {gain:.2f} σ")
    for prior, delta in ((4, NO_DELTA), (12, NO_DELTA), (60, NO_DELTA), (12, SPA_ENG)):
        verdicts.PRIOR_DF = prior
        for name, case in cases.items():
            none, some = (simulate(x, delta=delta, **case) for x in (0.0, gain))
            rates = f"{100 * (none['better'] + none['worse']):.1f}; {100 * some['better']:.0f}"
            print(f"prior {prior:2}, delta {delta}, {name}: {rates}", flush=True)
    print("the same for edits with another best learning rate: without, with --tune")
    for octaves in (0, 0.25, 0.5, 1, 2):
        rates = []
        for tune in (False, True):
            none, some = (simulate_rates(x, octaves, tune) for x in (0.0, gain))
            rates.append(
                f"{100 * (none['better'] + none['worse']):.1f}; {100 * some['better']:.0f}"
            )
        print(f"{octaves} octaves: {', '.join(rates)}", flush=True)
    print("per cent of loops of 100 edits without effect that commit one")
    for name, case in (("equal spreads", {}), ("τ = 0.19 and 9 % of outliers", OUTLIERS)):
        print(f"{name}: {100 * loop(**case):.1f}", flush=True)


if __name__ == "__main__":
    main()
