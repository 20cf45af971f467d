"""Simulate verdicts: python -m tests.power

Not part of the suite; takes minutes. Prints how often an experiment without effect is called
different, and how often a planted gain is detected: for equal spreads, for spreads that vary, for a
share of outliers, for an edit that breaks the pairing, for several weights of the prior, and for
the delta of the recipe spa-eng.
"""

import numpy as np

from ablation import verdicts
from ablation.experiments import Recipe
from ablation.verdicts import STAGES, Sigma, decide

ROWS, SEEDS = 55, 3  # of the stored experiments
NO_DELTA, SPA_ENG = 0.001, 1.93  # in σ: none is too small to matter; 0.0065 / 0.00337


def simulate(
    gain: float,
    tries: int = 4000,
    tau: float = 0.0,
    outliers: float = 0.0,
    scale: float = 1.0,
    delta: float = NO_DELTA,
) -> dict[str, float]:
    """Return the share of each outcome of one experiment, in units of σ of a difference.

    The spread is estimated from ROWS experiments with SEEDS runs, which share the baseline's. tau:
    standard deviation of the logarithm of an experiment's spread. outliers: share of experiments
    whose runs vary three times as much. scale: of the judged experiment's own spread.
    """
    random, shares = np.random.default_rng(0), {}
    recipe = Recipe("simulated", "", "exact_match", delta)

    def spreads(count: int) -> np.ndarray:
        factors = np.exp(random.normal(0, tau, count))
        return factors * np.where(random.random(count) < outliers, 3.0, 1.0) / 2**0.5

    for i in range(tries):
        if i % 20 == 0:  # other stored experiments
            deviations = np.append(spreads(ROWS), 0.5**0.5)
            stored = random.normal(size=(ROWS + 1, SEEDS)) * deviations[:, np.newaxis]
            sigma = verdicts.pooled({j: [*enumerate(row)] for j, row in enumerate(stored)})
        own = random.normal(0, spreads(1)[0], STAGES[-1])
        base = random.normal(0, 0.5**0.5, STAGES[-1])
        gains = (gain + scale * (own - base)).tolist()
        for stage in STAGES:
            outcome = decide(recipe, gains[:stage], sigma).outcome
            if outcome != verdicts.UNDECIDED:
                break
        shares[outcome] = shares.get(outcome, 0) + 1 / tries
    return dict.fromkeys((verdicts.BETTER, verdicts.WORSE, verdicts.SMALL), 0.0) | shares


def main() -> None:
    cases = {
        "equal spreads": {},
        "log-normal spreads, τ = 0.19": {"tau": 0.19},
        "log-normal spreads, τ = 0.35": {"tau": 0.35},
        "τ = 0.19 and 9 % of outliers": {"tau": 0.19, "outliers": 0.09},
        "broken pairing, 1.76 σ": {"scale": 1.76},
    }
    gain = verdicts.detectable(Sigma(1.0, 60), STAGES[-1])
    print(f"per cent called different without effect; called better with a gain of {gain:.2f} σ")
    for prior, delta in ((4, NO_DELTA), (12, NO_DELTA), (60, NO_DELTA), (12, SPA_ENG)):
        verdicts.PRIOR_DF = prior
        for name, case in cases.items():
            none, some = (simulate(x, delta=delta, **case) for x in (0.0, gain))
            rates = f"{100 * (none['better'] + none['worse']):.1f}; {100 * some['better']:.0f}"
            print(f"prior {prior:2}, delta {delta}, {name}: {rates}", flush=True)


if __name__ == "__main__":
    main()
