"""Did a change help? Train the model with and without it: python -m experiments.run NAME …

Without NAME, the change is the uncommitted edit of the working tree. Finished runs are kept, so the
command can be stopped and repeated at any time. Results in experiments/results/RECIPE.json are used
if code, packages and processor match, or if seed 0 comes out the same here.
"""

import argparse
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from experiments import patches
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.question import Question, read_stored
from experiments.recipes import RECIPES, Recipe
from experiments.runs import Setup
from utils import errors_in_one_line, fail, lock, make_parser


def write_events(folder: Path, results: list[dict]) -> None:
    """Write learning curves for TensorBoard, unless the runs themselves are there."""
    from tensorboard.summary import Writer

    for result in results:
        run = folder / f"seed-{result['seed']}" / "validation"
        if not run.exists() and "curve" in result:
            writer = Writer(str(run))
            for step, loss in result["curve"]:
                writer.add_scalar("metrics/loss", loss, step)
            writer.close()


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Patch]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    names, edit = patches.names() if flags.all else flags.names, patches.working_tree()
    if not (names or edit):
        saved = ", ".join(patches.names())
        raise ExperimentError(f"nothing to compare: edit the source, or name experiments: {saved}")
    if flags.store and not names:
        raise ExperimentError("--store needs names: save the edit as experiments/NAME.patch first")
    if names and edit:
        if "\ndiff --git a/data/" in f"\n{edit.diff}":
            raise ExperimentError("data/ has uncommitted edits: commit them, or ask without names")
        print("the uncommitted edits are left out: experiments change the last commit")
    named = [patches.read(name) for name in dict.fromkeys(names) if name != BASELINE.name]
    chosen = named if names else [edit]
    kinds = {patch.recipe for patch in chosen}
    recipe = RECIPES[flags.recipe or (kinds.pop() if len(kinds) == 1 else "mini")]
    fitting = [p for p in chosen if p is edit or (p.recipe == "imdb") == (recipe.name == "imdb")]
    if fitting != chosen and not flags.all:
        raise ExperimentError("experiments on translation and classification: ask them separately")
    return replace(recipe, looks=(flags.seeds,)) if flags.seeds else recipe, fitting


def run(flags: argparse.Namespace) -> int:
    """Answer the question of a command line. Returns the number of failures."""
    recipe, chosen = choose(flags)
    with tempfile.TemporaryDirectory(prefix="experiments-") as scratch:
        setup, usable = Setup(recipe, scratch, flags.final), []
        for patch in chosen:  # before anything runs
            try:
                if setup.key(patch) == setup.key(BASELINE):
                    raise ExperimentError("changes nothing that can change a score")
                usable.append(patch)
            except ExperimentError as error:
                if not flags.all:
                    raise ExperimentError(f"{patch.name}: {error}") from None
                print(f"{patch.name} FAILED: {error}")
        question = Question(setup, usable, None if flags.final else read_stored(recipe.name))
        try:
            print(question.plan(), end="", flush=True)
            if not flags.plan:
                answer(question, flags.store)
        finally:
            for job, reason in question.failed.items():
                print(f"{job} FAILED: {reason}")
    return len(chosen) - len(usable) + len(question.failed)


def answer(question: Question, store: bool) -> None:
    """Run what is left of a question, and write its learning curves. Raises ExperimentError."""
    folder = question.setup.folder
    try:
        held = lock(folder / ".lock")
    except BlockingIOError:
        raise ExperimentError(f"another experiments.run is using {folder}: wait for it") from None
    with held:
        question.run()
        for patch in (BASELINE, *question.chosen):
            results = question.results(patch, question.recipe.looks[-1])
            for result in results:
                question.setup.delete_other(patch, result["seed"])
            write_events(folder / patch.name, results)
    if store:
        print(f"wrote {question.store()}; now run python -m experiments.report")
    print(f"learning curves: tensorboard --logdir {os.path.relpath(folder)}")


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    parser = make_parser(__doc__, prog="python -m experiments.run")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments/NAME.patch, or baseline [the edit]")
    add("--all", action="store_true", help="all experiments of the recipe")
    add("--recipe", choices=RECIPES, help="how to train and to score [that of the experiment]")
    add("--plan", action="store_true", help="only print the detectable effects and the time")
    add("--seeds", type=int, help="look once, after this many seeds [4, 6, 10 and 16]")
    add("--final", action="store_true", help="score the held-out texts; once, for what you adopt")
    add("--store", action="store_true", help="write the results into experiments/results/")
    flags = parser.parse_args()
    if flags.seeds is not None and flags.seeds < 2:
        raise ExperimentError("--seeds must be at least 2")
    if flags.all and flags.names:
        raise ExperimentError("--all and names exclude each other")
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
