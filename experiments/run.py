"""Did a change help? Train with and without it over several seeds: python -m experiments.run NAME …

Without NAME, the change is the uncommitted edit of the working tree. Finished runs are kept, so the
command can be stopped and repeated at any time. The baseline is the stored one,
experiments/baselines/RECIPE.json, if it would come out the same here.
"""

import argparse
import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from config import UserError, fail, make_parser
from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import RECIPES, Recipe
from experiments.runs import Job, Setup
from training.machine import cores, lock
from training.records import read_json, write_json


def read_stored(recipe: str) -> dict | None:
    """Return what `Question.store` has written for a recipe, or None."""
    path = patches.HERE / "baselines" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


class Question:
    """Experiments, the baseline that they are compared with, and the verdicts."""

    def __init__(self, setup: Setup, chosen: list[Patch], stored: dict | None):
        self.setup, self.recipe, self.chosen, self.stored = setup, setup.recipe, chosen, stored
        self.failed, self.differences = {}, ""
        if stored:
            old, new = stored["identity"] | stored["code"], setup.identity | setup.code
            names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
            self.differences = ", ".join(f"another {name}" for name in names[:3])

    def baseline(self) -> tuple[list[dict], int]:
        """Return the results of the baseline, and how many of its seeds must have run.

        If anything differs from the stored baseline, equal bits of its seed 0 show that it stands.
        """
        stored, last = (self.stored or {}).get("baseline"), self.recipe.looks[-1]
        if stored and self.differences:
            found = self.setup.results(BASELINE, 1)
            if not found:
                return [], 1
            if any(found[0].get(key) != stored[0][key] for key in ("weights", "scores")):
                stored = None
        return (stored, 0) if stored else (self.setup.results(BASELINE, last), last)

    def sigma(self) -> stats.Sigma:
        """Return the standard deviation of a run: the stored one, or that of a new baseline."""
        baseline, seeds = self.baseline()
        if self.stored and seeds < 2:
            return stats.Sigma(self.stored["sigma"], self.stored["df"])
        return stats.pool(self.recipe.values(baseline))

    def jobs(self, waiting: list[Patch], seeds: int) -> list[Job]:
        """Return the runs of a look, one seed of everything first."""
        wanted = [(BASELINE, self.baseline()[1]), *((patch, seeds) for patch in waiting)]
        jobs = [(patch, seed) for patch, count in wanted for seed in range(count)]
        jobs = [(p, seed) for p, seed in jobs if f"{p.name} seed {seed}" not in self.failed]
        return sorted(jobs, key=lambda job: job[1])

    def plan(self) -> str:
        """Describe what the seeds can see, and how long they take on this machine."""
        recipe, sigma, text = self.recipe, self.sigma(), ""
        if sigma.df:
            text = f"standard deviation of a run: {sigma.value:.2f} {recipe.unit}\n"
            sizes = stats.detectable(sigma, recipe.rule)
            for n, size in zip(recipe.looks, sizes, strict=True):
                text += f"by {n} seeds, a difference of {size:.2f} is found in 80 % of the cases\n"
        finished = [read_json(path) for path in self.setup.folder.glob("*/seed-*.*.json")]
        seconds, workers = recipe.seconds(finished), len(cores())
        for look in sorted({recipe.looks[0], recipe.looks[-1]}):
            runs = sum(not self.setup.result(job) for job in self.jobs(self.chosen, look))
            minutes = "unknown" if seconds is None else round(runs * seconds / 60 / workers)
            text += f"{look} seeds: {runs} runs to do on {workers} cores; minutes: {minutes}\n"
        return text

    def run(self) -> None:
        """Add seeds, look by look, until each experiment is decided."""
        waiting = list(self.chosen)
        for look in self.recipe.looks:
            self.failed |= self.setup.run(self.jobs(waiting, look))
            if self.stored and self.differences and look == self.recipe.looks[0]:
                seeds = self.baseline()[1]
                outcome = f"{seeds} seeds are run here" if seeds else "it stands: equal bits"
                print(f"the stored baseline has {self.differences}; {outcome}", flush=True)
                self.failed |= self.setup.run(self.jobs(waiting, look))
            verdicts = self.verdicts()
            for patch in [patch for patch in waiting if patch.name in verdicts]:
                verdict = verdicts[patch.name]
                print(f"{patch.name}, {verdict.seeds} seeds: {verdict}", flush=True)
                if verdict.word != "undecided":
                    waiting.remove(patch)

    def verdicts(self) -> dict[str, stats.Verdict]:
        """Judge the experiments. Raises ExperimentError if there is nothing to compare with."""
        recipe, baseline = self.recipe, self.recipe.values(self.baseline()[0])
        if not baseline:
            raise ExperimentError("the baseline has no finished run, so nothing can be compared")
        found = {p.name: self.setup.results(p, recipe.looks[-1]) for p in self.chosen}
        rows = {name: recipe.values(results) for name, results in found.items() if results}
        if len(self.chosen) > 1:
            return stats.judge_table(rows, baseline, recipe.rule)
        sigma, rule = self.sigma(), recipe.rule
        return {n: stats.judge_question(row, baseline, sigma, rule) for n, row in rows.items()}

    def store(self) -> Path:
        """Write the results next to those that are stored already. Returns the path."""
        recipe, setup, (baseline, seeds) = self.recipe, self.setup, self.baseline()
        experiments = {} if seeds else dict(self.stored["experiments"])
        experiments |= {p.name: setup.results(p, recipe.looks[-1]) for p in self.chosen}
        rows = {name: recipe.values(results) for name, results in experiments.items()}
        without = stats.unhealthy(rows | {"baseline": recipe.values(baseline)})
        rows["baseline"] = recipe.values(baseline)
        sigma = stats.pool(*(row for name, row in rows.items() if name not in without))
        values = {"identity": setup.identity, "code": setup.code, "sigma": sigma.value}
        values |= {"df": sigma.df, "unhealthy": without, "baseline": baseline}
        path = patches.HERE / "baselines" / f"{recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, values | {"experiments": experiments})
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
            for step, loss in result["curve"]:
                summary = Summary(value=[Summary.Value(tag="metrics/loss", simple_value=loss)])
                event = Event(step=step, wall_time=time.time(), summary=summary)
                RecordWriter(file).write(event.SerializeToString())


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Patch]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    names = patches.names() if flags.all else [n for n in flags.names if n != BASELINE.name]
    edit = None if flags.names or flags.all else patches.working_tree()
    chosen = [edit] if edit else [patches.read(name) for name in dict.fromkeys(names)]
    if not chosen and BASELINE.name not in flags.names:
        names = ", ".join(patches.names())
        raise ExperimentError(f"nothing to ask: edit the source, or name experiments: {names}")
    kinds = {patch.recipe or "mini" for patch in chosen}
    recipe = RECIPES[flags.recipe or (kinds.pop() if len(kinds) == 1 else "mini")]
    fitting = [p for p in chosen if (p.recipe == "imdb") == (recipe.name == "imdb")]
    if fitting != chosen and not flags.all:
        raise ExperimentError("experiments on translation and classification: ask them separately")
    return replace(recipe, looks=(flags.seeds,)) if flags.seeds else recipe, fitting


def run(flags: argparse.Namespace) -> int:
    """Answer the question of a command line. Returns the number of failed runs."""
    recipe, chosen = choose(flags)
    with tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        setup = Setup(recipe, scratch, flags.final)
        for patch in chosen:  # also reports a patch that does not apply before anything runs
            if setup.key(patch) == setup.key(BASELINE):
                raise ExperimentError(f"{patch.name} changes nothing that can change a score")
        question = Question(setup, chosen, None if flags.final else read_stored(recipe.name))
        print(question.plan(), end="", flush=True)
        if flags.plan:
            return 0
        try:
            with lock(setup.folder / ".lock"):
                question.run()
        except BlockingIOError:
            message = f"another experiments.run is using {setup.folder}: wait for it"
            raise ExperimentError(message) from None
        write_events(setup.folder / "baseline", question.baseline()[0])
        if flags.store:
            print(f"wrote {question.store()}; now run python -m experiments.report")
    print(f"learning curves: tensorboard --logdir {os.path.relpath(setup.folder)}")
    for name, reason in question.failed.items():
        print(f"{name} FAILED: {reason}")
    return len(question.failed)


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    parser = make_parser(__doc__, prog="python -m experiments.run")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments/NAME.patch [the working tree's edit]")
    add("--all", action="store_true", help="all experiments of the recipe")
    add("--recipe", choices=RECIPES, help="how to train and to score [that of the experiment]")
    add("--plan", action="store_true", help="print what the seeds can see and how long they take")
    add("--seeds", type=int, help="look once, after this many seeds [6, 10 and 16]")
    add("--final", action="store_true", help="score the texts that are kept for what is adopted")
    add("--store", action="store_true", help="write the results into experiments/baselines/")
    flags = parser.parse_args()
    if (flags.seeds or 2) < 2:
        raise ExperimentError("--seeds must be at least 2")
    return flags


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        raise SystemExit(1 if run(parse_flags()) else 0)
    except (UserError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        fail("stopped: repeat the command to resume", status=130)


if __name__ == "__main__":
    main()
