"""Did a change help? Train with and without it over several seeds: python -m experiments.run NAME …

Without NAME, the change is the uncommitted edit of the working tree. The runs are in
runs/experiments/RECIPE/NAME/seed-K. Finished runs are not repeated, so the command can be stopped
and repeated at any time. The baseline is the stored one, experiments/baselines/RECIPE.json, if it
would come out the same here.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from config import UserError, fail, make_parser
from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import RECIPES, Recipe
from experiments.runs import Runner, Setup, Trees
from training.machine import cores, lock
from training.records import read_json, write_json


def read_stored(recipe: str) -> dict | None:
    """Return the stored results of a recipe.

    identity, code: what the results depend on. sigma, df: standard deviation of a run, pooled over
    the healthy rows. baseline: results by seed. experiments: results by name.
    """
    path = patches.HERE / "baselines" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


class Question:
    """Experiments, the baseline that they are compared with, and the verdicts."""

    def __init__(self, setup: Setup, chosen: list[Patch], stored: dict | None):
        self.setup, self.recipe, self.chosen, self.stored = setup, setup.recipe, chosen, stored
        self.last, self.failed, self.verdicts = setup.recipe.looks[-1], {}, {}

    @cached_property
    def differences(self) -> str:
        """What distinguishes the stored baseline from one that would be run here and now."""
        stored, setup = self.stored, self.setup
        old, new = stored["identity"] | stored["code"], setup.identity | setup.code
        names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        return ", ".join(f"another {name}" for name in names[:3]) + " …" * (len(names) > 3)

    def baseline(self) -> tuple[list[dict], int]:
        """Return the results of the baseline, and how many of its seeds are to be run first.

        Where anything has changed since the baseline was stored, its seed 0 decides: if it has the
        same weights, bit for bit, the stored results stand.
        """
        if self.stored:
            if not self.differences:
                return self.stored["baseline"], 0
            seed_0 = self.setup.results(BASELINE, 1)
            if not seed_0:
                return [], 1
            if all(
                seed_0[0].get(x) == self.stored["baseline"][0][x] for x in ("weights", "scores")
            ):
                return self.stored["baseline"], 0
        results = self.setup.results(BASELINE, self.last)
        return results, self.last

    def sigma(self, baseline: list[dict]) -> stats.Sigma:
        """Return the standard deviation of a run: the stored one, or that of the baseline."""
        if self.stored and baseline is self.stored["baseline"]:
            return stats.Sigma(self.stored["sigma"], self.stored["df"])
        return stats.pool(self.recipe.values(baseline))

    def plan(self) -> str:
        """Describe what the seeds can see, and how long they take on this machine."""
        recipe, (baseline, seeds) = self.recipe, self.baseline()
        known = baseline or (self.stored or {}).get("baseline", [])
        sigma, text = self.sigma(known), ""
        if sigma.df:
            text = f"standard deviation of a run: {sigma.value:.2f} {recipe.unit}\n"
            sizes = stats.detectable(sigma, recipe.delta, recipe.looks)
            for n, size in zip(recipe.looks, sizes, strict=True):
                text += f"a difference of {size:.1f} is found by {n} seeds in 80 % of the cases\n"
        finished = [read_json(path) for path in self.setup.folder.glob("*/seed-*.*.json")]
        times = [sum(result["seconds"].values()) for result in finished if "seconds" in result]
        workers = len(cores())
        for look in (recipe.looks[0], self.last):
            wanted = [(BASELINE, seeds), *((patch, look) for patch in self.chosen)]
            jobs = [job for patch, n in wanted for job in self.setup.jobs(patch, n)]
            runs = sum(job.result() is None for job in jobs)
            minutes = "an unknown time: none has finished here"
            if times:
                minutes = f"about {runs * statistics.median(times) / 60 / workers:.0f} minutes"
            text += f"{look} seeds: {runs} runs to do on {workers} cores, {minutes}\n"
        return text

    def run(self, runner: Runner) -> None:
        """Add seeds, look by look, until each experiment is decided. Prints the verdicts."""
        waiting = list(self.chosen)
        for look in self.recipe.looks:
            wanted = [(BASELINE, self.baseline()[1]), *((patch, look) for patch in waiting)]
            jobs = [job for patch, seeds in wanted for job in self.setup.jobs(patch, seeds)]
            jobs.sort(key=lambda job: job.seed)  # one seed of everything first
            self.failed |= runner.run(jobs, self.describe)
            baseline, seeds = self.baseline()
            if self.stored and self.differences and look == self.recipe.looks[0]:
                outcome = f"{seeds} seeds are run here" if seeds else "it stands: equal bits"
                print(f"the stored baseline has {self.differences}; {outcome}", flush=True)
                jobs = self.setup.jobs(BASELINE, seeds)
                self.failed |= runner.run(jobs, self.describe)
                baseline, _ = self.baseline()
            self.judge(baseline, waiting)
            for patch in [patch for patch in waiting if patch.name in self.verdicts]:
                verdict = self.verdicts[patch.name]
                print(f"{patch.name}, {verdict.seeds} seeds: {verdict}", flush=True)
                if verdict.word != "undecided":
                    waiting.remove(patch)

    def judge(self, baseline: list[dict], waiting: list[Patch]) -> None:
        """Update the verdicts of the experiments that are not decided yet."""
        recipe, scores = self.recipe, self.recipe.values(baseline)
        if not scores:
            raise ExperimentError("the baseline has no finished run, so nothing can be compared")
        results = {patch.name: self.setup.results(patch, self.last) for patch in self.chosen}
        rows = {name: recipe.values(found) for name, found in results.items() if found}
        if len(self.chosen) > 1:
            _, verdicts = stats.judge_table(rows, scores, recipe.delta, recipe.looks)
        else:
            sigma = self.sigma(baseline)
            verdicts = {
                name: stats.judge(row, scores, sigma, recipe.delta, recipe.looks)
                for name, row in rows.items()
            }
        names = {patch.name for patch in waiting}
        self.verdicts |= {name: verdict for name, verdict in verdicts.items() if name in names}

    def describe(self, result: dict) -> str:
        """Return a summary of a run's result."""
        if "diverged" in result:
            return f"diverged: {result['diverged']}"
        (value,), seconds = self.recipe.values([result]), sum(result["seconds"].values())
        return f"{self.recipe.headline.replace('_', ' ')} {value:.2f}; {seconds:.0f} s"

    def store(self) -> Path:
        """Write the results next to those that are stored already. Returns the path."""
        recipe, setup, (baseline, _) = self.recipe, self.setup, self.baseline()
        values = {"identity": setup.identity, "code": setup.code, "experiments": {}}
        if self.stored and baseline is self.stored["baseline"]:
            values["experiments"] = self.stored["experiments"]
        for patch in self.chosen:
            values["experiments"][patch.name] = setup.results(patch, self.last)
        rows = {name: recipe.values(found) for name, found in values["experiments"].items()}
        rows["baseline"] = recipe.values(baseline)
        values["unhealthy"] = stats.unhealthy(rows)
        sigma = stats.pool(*(row for name, row in rows.items() if name not in values["unhealthy"]))
        values |= {"sigma": sigma.value, "df": sigma.df, "baseline": baseline}
        path = patches.HERE / "baselines" / f"{recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, values)
        return path


def write_events(folder: Path, results: list[dict]) -> None:
    """Write stored learning curves for TensorBoard, unless the runs themselves are there."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    for result in results:
        run = folder / f"seed-{result['seed']}" / "validation"
        if run.exists() or "curve" not in result:
            continue
        run.mkdir(parents=True)
        with open(run / "events.out.tfevents.0.stored", "wb") as file:
            for step, loss, quality in result["curve"]:
                tags = {"metrics/loss": loss, "metrics/bleu": quality}
                values = [Summary.Value(tag=tag, simple_value=x) for tag, x in tags.items()]
                event = Event(step=step, wall_time=time.time(), summary=Summary(value=values))
                RecordWriter(file).write(event.SerializeToString())


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Patch]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    if flags.names or flags.all:
        chosen = [patches.read(name) for name in dict.fromkeys(flags.names or patches.names())]
    elif edit := patches.working_tree():
        chosen = [edit]
    else:
        names = ", ".join(patches.names())
        raise ExperimentError(f"nothing to ask: edit the source, or name experiments: {names}")
    chosen = [patch for patch in chosen if patch != BASELINE]
    names = {patch.recipe or "mini" for patch in chosen}
    recipe = RECIPES[flags.recipe or (names.pop() if len(names) == 1 else "mini")]
    fitting = [patch for patch in chosen if (patch.recipe == "imdb") == recipe.labelled]
    if fitting != chosen and not flags.all:
        raise ExperimentError("experiments on translation and classification: ask them separately")
    return replace(recipe, looks=(flags.seeds,)) if flags.seeds else recipe, fitting


def run(flags: argparse.Namespace) -> int:
    """Answer the question of a command line. Returns the number of failed runs."""
    recipe, chosen = choose(flags)
    with tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        trees = Trees(scratch)
        for patch in chosen:  # report a patch that does not apply before anything runs
            trees.checkout(patch)
        setup = Setup(recipe, trees, final=flags.final)
        question = Question(setup, chosen, None if flags.final else read_stored(recipe.name))
        print(question.plan(), end="", flush=True)
        if flags.plan:
            return 0
        try:
            folder_lock = lock(setup.folder / ".lock")
        except BlockingIOError:
            message = f"another experiments.run is using {setup.folder}: wait for it"
            raise ExperimentError(message) from None
        with folder_lock, Runner(setup, flags.jobs or len(cores())) as runner:
            question.run(runner)
        write_events(setup.folder / "baseline", question.baseline()[0])
        if flags.store:
            print(f"wrote {question.store()}; now run python -m experiments.report")
    print(f"learning curves: tensorboard --logdir {os.path.relpath(setup.folder)}")
    for name, reason in question.failed.items():
        print(f"{name} FAILED: {reason}")
    return len(question.failed)


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = make_parser(__doc__, prog="python -m experiments.run", formatter_class=raw)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments/NAME.patch [the working tree's edit]")
    add("--all", action="store_true", help="all experiments of the recipe")
    add("--recipe", choices=RECIPES, help="how to train and to score [that of the experiment]")
    add("--plan", action="store_true", help="print what the seeds can see and how long they take")
    add("--seeds", type=int, help="look once, after this many seeds [6, 10 and 16]")
    add("--final", action="store_true", help="score the texts that are kept for what is adopted")
    add("--store", action="store_true", help="write the results into experiments/baselines/")
    add("--jobs", type=int, help="number of parallel runs [one per core]")
    flags = parser.parse_args()
    for name, high in {"seeds": 100, "jobs": len(cores())}.items():
        if not 1 <= (getattr(flags, name) or 1) <= high:
            raise ExperimentError(f"--{name} {getattr(flags, name)}: must be from 1 to {high}")
    if flags.all and flags.names:
        raise ExperimentError("name experiments, or use --all")
    return flags


def main() -> None:
    def terminate(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        raise SystemExit(1 if run(parse_flags()) else 0)
    except (UserError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        print("stopped; repeat the command to resume", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
