"""Did a change help? Train the model with and without it: python -m experiments.run NAME …

Without NAME, the change is the uncommitted edit of the working tree. Finished runs are kept, so the
command can be stopped and repeated at any time. The baseline is the stored one,
experiments/results/RECIPE.json, if it would come out the same here.
"""

import argparse
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from config import errors_in_one_line, fail, make_parser, write_json
from experiments import patches, stats
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import RECIPES, Recipe
from experiments.runs import Job, Setup, short_hash
from training.machine import cores, lock
from training.records import read_json


def read_stored(recipe: str) -> dict | None:
    """Return what `Question.store` has written for a recipe, or None."""
    path = patches.HERE / "results" / f"{recipe}.json"
    return read_json(path) if path.exists() else None


def changed(stored: dict) -> set[str]:
    """Return the stored experiments whose patches are other ones now, or are gone."""
    current = {name: patches.read(name).change for name in patches.names()}
    return {n for n, row in stored["experiments"].items() if row["change"] != current.get(n)}


def baseline_scores(recipe: Recipe, results: list[dict]) -> list[float]:
    """Return the scores of the baseline. Raises ExperimentError if there are none, or a NaN."""
    if not results:
        raise ExperimentError("the baseline has no finished run, so nothing can be compared")
    scores = recipe.values(results)
    for score, result in zip(scores, results, strict=True):
        if not math.isfinite(score):
            reason = result.get("diverged", f"its score is {score}")
            raise ExperimentError(f"the baseline diverged with seed {result['seed']}: {reason}")
    return scores


def stored_rows(recipe: Recipe, stored: dict, chosen: Iterable[str] = ()) -> list[list[float]]:
    """Return the healthy rows of the stored experiments other than the chosen ones."""
    rows = {n: recipe.values(row["runs"]) for n, row in stored["experiments"].items()}
    rows = {name: row for name, row in rows.items() if name not in chosen}
    unhealthy = stats.unhealthy(rows, baseline_scores(recipe, stored["baseline"]))
    return [row for name, row in rows.items() if name not in unhealthy]


def judge_by_look(
    recipe: Recipe, experiments: dict[str, list[dict]], baseline: list[dict], prior: stats.Sigma
) -> dict[str, stats.Verdict]:
    """Judge results look by look, with as many seeds each: what a look has decided stays."""
    verdicts, scores, runs = {}, baseline_scores(recipe, baseline), {}
    for look in recipe.looks:
        decided = {name for name, verdict in verdicts.items() if verdict.word != "undecided"}
        undecided = [name for name in experiments if name not in decided]
        runs |= {n: [run for run in experiments[n] if run["seed"] < look] for n in undecided}
        rows = {name: recipe.values(results) for name, results in runs.items()}
        latest = stats.judge(rows, scores, recipe.rule, prior)
        verdicts |= {name: latest[name] for name in undecided if name in latest}
    return verdicts


class Question:
    """Experiments, the baseline that they are compared with, and the verdicts."""

    def __init__(self, setup: Setup, chosen: list[Patch], stored: dict | None):
        self.setup, self.recipe, self.chosen, self.stored = setup, setup.recipe, chosen, stored
        self.failed, self.differences = {}, ""
        if stored:
            old, new = stored["identity"] | stored["code"], setup.identity | setup.code
            names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
            self.differences = ", ".join(names[:3])

    def baseline(self) -> tuple[list[dict], int]:
        """Return the results of the baseline, and how many of its seeds must have run.

        If anything differs from the stored baseline, equal bits of its seed 0 show that it stands.
        """
        stored, last = (self.stored or {}).get("baseline"), self.recipe.looks[-1]
        if stored and self.differences:
            first = self.setup.result((BASELINE, 0))
            if not first:
                return [], 1
            if any(first.get(key) != stored[0].get(key) for key in ("weights", "scores")):
                stored = None
        return (stored, 0) if stored else (self.setup.results(BASELINE, last), last)

    def prior(self) -> stats.Sigma:
        """Return the standard deviation within the stored experiments that are not asked about."""
        if not self.stored or self.baseline()[1] > 1:
            return stats.NO_ROWS
        chosen = {patch.name for patch in self.chosen}
        return stats.pool(*stored_rows(self.recipe, self.stored, chosen))

    def jobs(self, waiting: list[Patch], seeds: int) -> list[Job]:
        """Return the runs of a look, one seed of everything first."""
        wanted = [(BASELINE, self.baseline()[1]), *((patch, seeds) for patch in waiting)]
        jobs = [(patch, seed) for patch, count in wanted for seed in range(count)]
        jobs = [(p, seed) for p, seed in jobs if f"{p.name} seed {seed}" not in self.failed]
        return sorted(jobs, key=lambda job: job[1])

    def plan(self) -> str:
        """Describe the smallest detectable effect, and the time it takes on this machine."""
        recipe, (baseline, seeds), text = self.recipe, self.baseline(), ""
        baseline = self.stored["baseline"] if seeds == 1 else baseline
        scores = baseline_scores(recipe, baseline) if baseline else []
        sigma = stats.pool(scores, prior=self.prior())
        if sigma.df:
            text = f"standard deviation of a run: {sigma.value:.2f} {recipe.unit}\n"
            m = max(len(scores), seeds)
            sizes = stats.detectable(sigma, recipe.rule, m, len(self.chosen))
            for n, size in zip(recipe.looks, sizes, strict=True):
                if size < math.inf:
                    text += f"{n} seeds detect a difference of {size:.2f} with 80 % power\n"
        finished = [read_json(path) for path in self.setup.folder.glob("*/seed-*.*.json")]
        seconds, workers = recipe.seconds(finished) or recipe.seconds(baseline), len(cores())
        for look in sorted({recipe.looks[0], recipe.looks[-1]}):
            runs = sum(not self.setup.result(job) for job in self.jobs(self.chosen, look))
            time = f", about {runs * seconds / 60 / workers:.0f} minutes" if seconds else ""
            text += f"{look} seeds: {runs} runs left{time} on {workers} cores\n"
        return text

    def run(self) -> None:
        """Add seeds, look by look, until each experiment is decided."""
        waiting, finished = list(self.chosen), {}
        for look in self.recipe.looks:
            self.failed |= self.setup.run(self.jobs(waiting, look))
            if self.stored and self.differences and look == self.recipe.looks[0]:
                seeds = self.baseline()[1]
                kept = "seed 0 reproduces it bit for bit, so it is kept"
                outcome = f"{seeds} seeds are run here" if seeds else kept
                print(f"the stored baseline differs in {self.differences}: {outcome}", flush=True)
                self.failed |= self.setup.run(self.jobs(waiting, look))
            verdicts = self.verdicts(look)
            for patch in list(waiting):
                count = len(self.setup.results(patch, look))
                if count == finished.get(patch.name, 0):  # every run of this look has failed
                    waiting.remove(patch)
                    continue
                finished[patch.name], verdict = count, verdicts[patch.name]
                print(f"{patch.name}, {verdict.seeds} seeds: {verdict}", flush=True)
                if verdict.word != "undecided":
                    waiting.remove(patch)

    def verdicts(self, look: int) -> dict[str, stats.Verdict]:
        """Judge the experiments. Raises ExperimentError if there is nothing to compare with."""
        results = {patch.name: self.setup.results(patch, look) for patch in self.chosen}
        return judge_by_look(self.recipe, results, self.baseline()[0], self.prior())

    def store(self) -> Path:
        """Write the results next to those that are stored already. Returns the path."""
        recipe, setup, (baseline, seeds) = self.recipe, self.setup, self.baseline()
        if len(baseline_scores(recipe, baseline)) < recipe.looks[-1]:
            raise ExperimentError(f"the baseline has only {len(baseline)} results: none are stored")
        old, verdicts = {} if seeds else self.stored["experiments"], self.verdicts(recipe.looks[-1])
        rows = {n: row for n, row in old.items() if n not in changed(self.stored)}
        code = short_hash([setup.identity, setup.code])
        for patch in (patch for patch in self.chosen if patch.name in verdicts):
            results = setup.results(patch, recipe.looks[-1])[: verdicts[patch.name].seeds]
            rows[patch.name] = {"change": patch.change, "code": code, "runs": results}
        values = {"identity": setup.identity, "code": setup.code, "baseline": baseline}
        path = patches.HERE / "results" / f"{recipe.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, values | {"experiments": rows})
        return path


def write_events(folder: Path, results: list[dict]) -> None:
    """Write stored learning curves for TensorBoard, unless the runs themselves are there."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    for result in results:
        run = folder / f"seed-{result['seed']}" / "validation"
        path = run / "events.out.tfevents.0.stored"
        if (run.exists() and not path.exists()) or "curve" not in result:
            continue
        run.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for step, loss in result["curve"]:
                summary = Summary(value=[Summary.Value(tag="metrics/loss", simple_value=loss)])
                event = Event(step=step, wall_time=time.time(), summary=summary)
                RecordWriter(file).write(event.SerializeToString())


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Patch]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    names = patches.names() if flags.all else [n for n in flags.names if n != BASELINE.name]
    edit = patches.working_tree()
    if edit and (flags.names or flags.all):
        print("the uncommitted edits are left out: experiments change the last commit")
        edit = None
    chosen = [edit] if edit else [patches.read(name) for name in dict.fromkeys(names)]
    if not chosen and BASELINE.name not in flags.names:
        names = ", ".join(patches.names())
        raise ExperimentError(f"nothing to compare: edit the source, or name experiments: {names}")
    kinds = {patch.recipe or "mini" for patch in chosen}
    if unknown := kinds - RECIPES.keys():
        raise ExperimentError(f"recipe: {unknown.pop()}: choose from {', '.join(RECIPES)}")
    recipe = RECIPES[flags.recipe or (kinds.pop() if len(kinds) == 1 else "mini")]
    fitting = [p for p in chosen if p is edit or (p.recipe == "imdb") == (recipe.name == "imdb")]
    if fitting != chosen and not flags.all:
        raise ExperimentError("experiments on translation and classification: ask them separately")
    return replace(recipe, looks=(flags.seeds,)) if flags.seeds else recipe, fitting


def run(flags: argparse.Namespace) -> int:
    """Answer the question of a command line. Returns the number of failures."""
    recipe, chosen = choose(flags)
    with tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        setup, invalid = Setup(recipe, scratch, flags.final), {}
        for patch in list(chosen):  # before anything runs
            try:
                if setup.key(patch) == setup.key(BASELINE):
                    raise ExperimentError(f"{patch.name} changes nothing that can change a score")
            except ExperimentError as error:
                if not flags.all:
                    raise
                invalid[patch.name] = str(error)
                chosen.remove(patch)
        question = Question(setup, chosen, None if flags.final else read_stored(recipe.name))
        print(question.plan(), end="", flush=True)
        if not flags.plan:
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
    failed = invalid | question.failed
    for name, reason in failed.items():
        print(f"{name} FAILED: {reason}")
    return len(failed)


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    parser = make_parser(__doc__, prog="python -m experiments.run")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments/NAME.patch [the working tree's edit]")
    add("--all", action="store_true", help="all experiments of the recipe")
    add("--recipe", choices=RECIPES, help="how to train and to score [that of the experiment]")
    add("--plan", action="store_true", help="print the smallest detectable effect and the time")
    add("--seeds", type=int, help="look once, after this many seeds [6, 10 and 16]")
    add("--final", action="store_true", help="score the held-out texts; once, for what you adopt")
    add("--store", action="store_true", help="write the results into experiments/results/")
    flags = parser.parse_args()
    if flags.seeds is not None and flags.seeds < 2:
        raise ExperimentError("--seeds must be at least 2")
    if flags.store and (flags.final or flags.seeds):
        raise ExperimentError("--store cannot be combined with --final or --seeds")
    return flags


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with errors_in_one_line():
            raise SystemExit(1 if run(parse_flags()) else 0)
    except KeyboardInterrupt:
        fail("stopped: repeat the command to resume", status=130)


if __name__ == "__main__":
    main()
