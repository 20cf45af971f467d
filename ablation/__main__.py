"""Did a change help? Train the model with and without it: python -m ablation [NAME …]

Without NAME, the change is the uncommitted edit of the working tree. Finished runs are kept, so the
command can be stopped and repeated at any time. Exit status: 0 better, or after --plan; 1 worse;
3 neither; 2 an error; 130 stopped. Of several experiments, 0 or 1 if it is true of all of them.
"""

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator

import utils
from ablation import experiments, verdicts
from ablation.executor import Pool
from ablation.experiments import BASELINE, UNITS, Experiment, ExperimentError, Recipe
from ablation.results import Results
from ablation.verdicts import BETTER, UNDECIDED, WORSE, Verdict, equal
from ablation.workspace import Workspace
from utils import amount, errors_in_one_line, fail, lock, make_parser, prepare_streams, quote

Run = tuple[Experiment, int]  # with the number of its seed
NEITHER = 3
TUNING_SEEDS = range(verdicts.STAGES[0])


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Experiment]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    recipes = experiments.recipes()
    chosen = [experiments.read(name) for name in dict.fromkeys(flags.names)]
    if not chosen and (edit := experiments.edit(flags.against)):
        chosen = [edit]
    if not chosen:
        hint = "edit the code, or name experiments or an earlier commit (--against REV)"
        raise ExperimentError(f"no code differs from {flags.against}: {hint}")
    names = {flags.recipe} if flags.recipe else {x.recipe for x in chosen}
    if len(names) > 1 or not names <= recipes.keys():
        what = " and ".join(sorted(names))
        raise ExperimentError(f"recipe {what}: choose one --recipe from {', '.join(recipes)}")
    recipe = recipes[names.pop()]
    chosen = [x.for_recipe(recipe) for x in chosen]
    if flags.tune and len({recipe.judged_by(x.score) for x in chosen}) > 1:
        text = "--tune chooses the rates of all sides by one score"
        raise ExperimentError(f"{text}: name the edits that are judged in BLEU separately")
    return recipe, chosen


class Comparison:
    """Experiments, the baseline that they are compared with, and the verdicts.

    sides: what is trained for each experiment and for the baseline: itself or, with --tune, itself
    at its rate in `rates`.
    """

    def __init__(self, flags: argparse.Namespace, workspace: Workspace, chosen: list[Experiment]):
        self.workspace, self.recipe, self.chosen = workspace, workspace.recipe, chosen
        seeds = flags.seeds or (verdicts.STAGES[-1] if flags.final else self.recipe.seeds)
        self.stages, self.tuned = (seeds,) if seeds else verdicts.STAGES, flags.tune
        self.sides, self.rates = {x: x for x in (BASELINE, *chosen)}, {}
        self.pool = Pool(flags.cluster)
        ((_, machine),) = self.pool.run([workspace.probe()])
        self.results = Results(workspace, machine)

    def plan(self) -> str:
        """Describe the changes, the effects that the stages detect, and the runs that are left."""
        lines = [f"baseline: commit {self.workspace.commit[:7]}", *map(self.describe, self.chosen)]
        for side in self.sides if self.tuned else ():
            rates = [side.rate(self.recipe) * factor for factor in verdicts.FACTORS]
            cost = self.cost(len(self.tuning_runs(side, rates)))
            lines.append(f"tuning of {side.name}: about {cost}")
        for stage in sorted({self.stages[0], self.stages[-1]}):
            runs = stage * len(self.sides) if self.tuned else len(self.runs(self.chosen, stage))
            lines.append(f"stage of {stage} seeds: at most {self.cost(runs)}")
        return "\n".join(lines)

    def cost(self, runs: int) -> str:
        """Describe a number of runs, with their time if the time of others is recorded."""
        times = [sum(x["seconds"].values()) / 60 for x in self.results.lines if "seconds" in x]
        text = f"{amount(runs, 'run')}, {self.pool.size} at a time"
        if times:
            minutes = math.ceil(runs / self.pool.size) * statistics.median(times)
            text += f", about {amount(minutes, 'minute')}"
        return text

    def describe(self, experiment: Experiment) -> str:
        """Describe a change, how it is judged, and the gains that are detected with 80 % power."""
        judged, paired = self.recipe.judged_by(experiment.score), experiment.keeps_pairs
        sigma = verdicts.frozen(judged, paired)
        baseline = 0 if self.tuned else len(self.results.runs(BASELINE))
        average = f"average: {experiment.average}" if experiment.average else ""
        changes = " ".join(filter(None, [*experiment.files, experiment.flags, average]))
        text = f"{experiment.name} changes {changes}; "
        text += f"judged in {UNITS[judged.score]}, {'' if paired else 'un'}paired"
        for n in self.stages if sigma.df else ():
            gain = verdicts.detectable(sigma, n, self.stages, 0 if paired else max(n, baseline))
            text += f"; {n} seeds detect {gain:.{judged.decimals + 1}f}"
        return text

    def runs(self, waiting: list[Experiment], stage: int) -> list[Run]:
        """Return the runs that are left of a stage, sorted by seed, the baseline's first.

        Both sides of a pair run on this machine.
        """
        runs, here = set(), self.results.machine["machine"]
        for each in waiting:
            own = self.sides[each]
            left = {*self.workspace.seeds(own, stage)} - self.results.pairs(own).keys()
            for side in (self.workspace.baseline, own):
                done = {x["seed"] for x in self.results.runs(side) if x["machine"] == here}
                runs |= {(side, seed) for seed in left - done}
        baseline = self.workspace.baseline
        return sorted(runs, key=lambda run: (run[1], run[0] != baseline, run[0].name))

    def execute(self, runs: list[Run], gains: bool = True) -> None:
        """Execute runs, and print scores. Raises ExperimentError if one fails.

        gains: whether to print the mean gains so far, too.
        """
        jobs = [self.workspace.prepare_job(*run, self.results.machine) for run in runs]
        run_of = {job["job"]: run for job, run in zip(jobs, runs, strict=True)}
        for job, result in self.pool.run(jobs):
            experiment, seed = run_of[job["job"]]
            self.results.lines.insert(0, result)
            recipe = self.recipe.judged_by(experiment.score)
            score = result.get("diverged") or recipe.format(recipe.value(result))
            utils.print_line(f"{experiment.name} seed {seed}: {score}", sys.stdout)
            for each in self.chosen if gains else ():
                sides = (self.workspace.baseline, self.sides[each])
                if experiment in sides and seed in self.results.pairs(sides[1]):
                    verdict = self.judge(each, self.stages[-1])
                    gain = verdict.recipe.format(verdict.gain, "+")
                    pairs = amount(verdict.seeds, "pair")
                    text = f"{each.name}: mean gain so far {gain} ({pairs})"
                    utils.print_line(text, sys.stdout)

    def judge(self, experiment: Experiment, count: int) -> Verdict:
        """Return the verdict on the first pairs of an experiment. Raises ExperimentError."""
        pairs = self.results.pairs(self.sides[experiment], count)
        runs = self.results.runs(self.workspace.baseline)
        runs = [x for x in runs if x["seed"] >= self.workspace.first_seed]
        verdict = verdicts.judge(self.recipe, experiment, pairs, runs, self.stages)
        if self.rates:
            note = f"rate {self.rates[experiment]}, baseline's {self.rates[BASELINE]}"
            verdict = verdict._replace(note="; ".join(filter(None, (note, verdict.note))))
        return verdict

    def tuning_runs(self, side: Experiment, rates: list[float]) -> list[Run]:
        """Return the runs that are left to compare learning rates of a side."""
        sides = [side.at_rate(self.recipe, rate) for rate in rates]
        done = {(x, run["seed"]) for x in sides for run in self.results.runs(x)}
        return [run for run in itertools.product(sides, TUNING_SEEDS) if run not in done]

    def tune(self, side: Experiment, judged: Recipe) -> None:
        """Find the best learning rate of a side, by the score that is judged, and print it."""

        def mean_scores(rates: list[float]) -> Iterator[float]:
            if len(rates) == 1:
                print(f"{side.name}: the best rate is at an end: trying × {rates[0]:.3g}")
            self.execute(self.tuning_runs(side, rates), gains=False)
            for rate in rates:
                runs = self.results.runs(side.at_rate(self.recipe, rate))
                mean = statistics.fmean(judged.value(x) for x in runs if x["seed"] in TUNING_SEEDS)
                mean = -mean if judged.lower_is_better else mean
                yield -math.inf if math.isnan(mean) else mean

        self.rates[side] = rate = verdicts.best_rate(side.rate(self.recipe), mean_scores)
        self.sides[side] = side.at_rate(self.recipe, rate.value)
        print(f"{side.name}: best rate {rate}", flush=True)

    def report(self, chosen: list[Experiment], stage: int) -> dict[Experiment, Verdict]:
        """Judge experiments at a stage, print the verdicts, and add them to all comparisons."""
        latest = {each: self.judge(each, stage) for each in chosen}
        for experiment, verdict in latest.items():
            print(f"{experiment.name}: {verdict}", flush=True)
            self.results.record(experiment, verdict.outcome)
        return latest

    def run(self) -> dict[Experiment, Verdict]:
        """Add seeds, stage by stage, until each experiment is decided. Raises ExperimentError.

        The first pair shows which stored results count, and whether a change has no effect.
        """
        runs = self.runs(self.chosen, self.stages[0])
        if len(runs) > self.pool.size or self.tuned:
            runs = self.runs(self.chosen, 1)
        self.execute(runs, gains=not self.tuned)
        decided = self.report([x for x in self.chosen if equal(self.results.pairs(x))], 1)
        self.chosen = waiting = [x for x in self.chosen if x not in decided]
        if self.tuned and waiting:
            for side in (BASELINE, *waiting):
                self.tune(side, self.recipe.judged_by(waiting[0].score))
            self.workspace.baseline = self.sides[BASELINE]
            self.workspace.first_seed = len(TUNING_SEEDS)
        for stage in self.stages:
            self.execute(self.runs(waiting, stage))
            decided |= self.report(waiting, stage)
            waiting = [x for x in waiting if decided[x].outcome == UNDECIDED]
        print(self.results.count(), flush=True)
        return decided


def as_json(name: str, verdict: Verdict) -> dict:
    """Return a verdict for programs. Infinite and unknown numbers are null."""
    values = {"experiment": name} | verdict._asdict()
    values |= {"recipe": verdict.recipe.name, "score": verdict.recipe.score}
    unknown = [x for x, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
    return values | dict.fromkeys(unknown)


def run(flags: argparse.Namespace) -> int:
    """Carry out a command line. Returns its exit status. Raises UserError and OSError."""
    if flags.store and not flags.names:
        raise ExperimentError("--store needs names: save the edit first, with --save")
    if flags.tune and (flags.store or flags.final):
        hint = "save the edit with its rate in the key `flags`"
        raise ExperimentError(f"--tune cannot be combined with --store or --final: {hint}")
    if flags.save:
        experiments.save(*flags.save, flags.against, flags.recipe or experiments.EDIT_RECIPE)
    for name in flags.refresh:
        experiments.refresh(name)
    if flags.save or flags.refresh:
        return 0
    recipe, chosen = choose(flags)
    cache = experiments.ROOT / ".cache"  # workers of Dask read the copies of the source, too
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ablation-", dir=cache) as scratch:
        workspace = Workspace(recipe, scratch, flags.against, flags.final)
        for each in chosen:  # before anything runs
            workspace.check(each)
        if flags.plan:
            print(Comparison(flags, workspace, chosen).plan())
            return 0
        folder = os.path.relpath(workspace.folder)
        path = workspace.folder.with_name(f".{recipe.name}.lock")  # --store and --final --store
        with lock(path, wait=f"waiting for another command with recipe {recipe.name}"):
            comparison = Comparison(flags, workspace, chosen)
            print(comparison.plan(), flush=True)
            print(f"logs: {folder}/NAME/seed-N.log; curves: tensorboard --logdir {quote(folder)}")
            decided = comparison.run()
            if flags.store:
                comparison.results.store(chosen)
    if flags.json:
        print(json.dumps([as_json(each.name, verdict) for each, verdict in decided.items()]))
    outcomes = {verdict.outcome for verdict in decided.values()}
    return 0 if outcomes == {BETTER} else 1 if outcomes == {WORSE} else NEITHER


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(__doc__, prog="python -m ablation")
    add, what = parser.add_argument, parser.add_mutually_exclusive_group()
    text = "an experiment of experiments/ [the edit]"
    what.add_argument("names", nargs="*", metavar="NAME", default=[], help=text)
    text = "baseline of the edit: a commit [HEAD]"
    what.add_argument("--against", metavar="REV", default="HEAD", help=text)
    text = "a table of experiments/recipes.toml [the experiment's; of an edit, shakespeare, "
    text += "3 minutes a run]; mini is a test for bugs, needs no download"
    add("--recipe", metavar="NAME", help=text)
    add("--plan", action="store_true", help="print what would run, its time, and detectable gains")
    add("--seeds", type=utils.positive, metavar="N", help="one stage, of N seeds [3, 5 and 8]")
    add("--final", action="store_true", help="confirm: eight new seeds, and the held-out texts")
    text = "judge each side at its best learning rate, which three other seeds choose"
    add("--tune", action="store_true", help=text)
    add("--store", action="store_true", help="write the results into experiments/results/")
    add("--json", action="store_true", help="end with a line of JSON, for programs")
    add("--cluster", metavar="ADDRESS", help="run on the workers of a Dask scheduler: HOST:PORT")
    text = "save the edit as experiments/THEME/NAME.patch"
    add("--save", nargs=2, metavar=("THEME/NAME", "QUESTION"), help=text)
    text = "rewrite patches that have moved"
    add("--refresh", nargs="+", metavar="NAME", default=[], help=text)
    return parser.parse_args()


def main() -> None:
    prepare_streams()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, signal.default_int_handler)
    try:
        with errors_in_one_line():
            sys.exit(run(parse_flags()))
    except KeyboardInterrupt:
        fail("stopped: repeat the command to resume", status=130)


if __name__ == "__main__":
    main()
