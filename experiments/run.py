"""Did a change help? Train the model with and without it: python -m experiments.run NAME …

Without NAME, the change is the uncommitted edit of the working tree. Finished runs are kept, so the
command can be stopped and repeated at any time. Results in experiments/results/RECIPE.json are used
if code and packages match, or if seed 0 comes out the same here. Pairs share a kind of processor.
"""

import argparse
import os
import signal
import tempfile
from dataclasses import replace

from experiments import patches, runs
from experiments.executor import interrupt
from experiments.patches import BASELINE, ExperimentError, Patch
from experiments.recipes import RECIPES, Recipe
from experiments.runs import Job, Runner
from utils import errors_in_one_line, fail, lock, make_parser, prepare_streams, quote


def choose(flags: argparse.Namespace) -> tuple[Recipe, list[Patch]]:
    """Return the recipe and the experiments of a command line. Raises ExperimentError."""
    names, edit = patches.names() if flags.all else flags.names, patches.edit(flags.against)
    if not names and (left := patches.left_out(flags.against)):
        text = ", ".join(left[:10]) + f" and {len(left) - 10} more" * (len(left) > 10)
        print(f"not part of the edit, because only .py and tables of packages count: {text}")
    if not (names or edit):
        raise ExperimentError(
            f"nothing to compare, because no code differs from {flags.against}: edit it, name an "
            "earlier commit (--against REV), or name experiments (of *.patch)"
        )
    if flags.store and not names:
        raise ExperimentError("--store needs names: save the edit as experiments/NAME.patch first")
    if names and edit:
        print("the uncommitted edits are left out: experiments change the last commit")
    named = [patches.read(name) for name in dict.fromkeys(names) if name != BASELINE.name]
    chosen = named if names else [edit]
    kinds = {patch.recipe for patch in chosen}
    if len(kinds) > 1 and not (flags.recipe or flags.all or "imdb" in kinds):
        known = ", ".join(sorted(kinds))
        raise ExperimentError(f"the experiments have different recipes: add --recipe with {known}")
    recipe = RECIPES[flags.recipe or (kinds.pop() if len(kinds) == 1 else "mini")]
    fitting = [p for p in chosen if p is edit or (p.recipe == "imdb") == (recipe.name == "imdb")]
    if flags.all:  # without those whose question is about another recipe
        fitting = [patch for patch in fitting if patch.recipe in ("mini", recipe.name)]
    elif fitting != chosen:
        raise ExperimentError("translation and classification: compare them in separate commands")
    if not fitting:
        raise ExperimentError("name an experiment: the baseline is only trained for comparison")
    if flags.seeds:
        recipe = replace(recipe, stages=(flags.seeds,))
    suited = [patch.for_recipe(recipe.name) for patch in fitting]
    for before, patch in zip(fitting, suited, strict=True):
        if patch.score != before.score and recipe.has_bleu:
            print(f"{patch.name}: the loss may mean something else, or miss it: BLEU is judged")
    return recipe, suited


def run(flags: argparse.Namespace) -> None:
    """Carry out a command line. Raises UserError and OSError."""
    recipe, chosen = choose(flags)
    shared = runs.ROOT / ".cache" if flags.cluster else None
    if shared:
        shared.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="experiments-", dir=shared) as scratch:
        runner = Runner(recipe, scratch, flags.against, flags.final)
        for patch in chosen:  # before anything runs
            runner.check(patch)
        # SciPy takes a second to import: mistakes are reported before.
        from experiments import plan
        from experiments.comparison import Comparison
        from experiments.store import Status, read_stored

        executor = None
        if flags.cluster:
            from experiments.cluster import ClusterExecutor

            executor = ClusterExecutor(flags.cluster, runner.source(BASELINE))
            runner.processor = executor.processor
        comparison = Comparison(runner, chosen, None if flags.final else read_stored(recipe))
        comparison.executor = executor or comparison.executor
        print(plan.describe(comparison), flush=True)
        if flags.store:
            comparison.results.check_store(chosen)
        if flags.plan:
            return
        folder = os.path.relpath(runner.folder)
        print(
            f"logs: {folder}/NAME/seed-N.log; curves: tensorboard --logdir {quote(folder)}",
            flush=True,
        )
        with lock(runner.folder / ".lock", wait=f"waiting for another command in {folder}"):
            if flags.store and comparison.results.status(BASELINE) is Status.UNVERIFIED:
                comparison.execute([Job(BASELINE, 0)])
                comparison.results.check_store(chosen)
            comparison.run()
            if flags.store:
                stored = comparison.results.store(chosen)
                print(f"wrote {stored}; now run python -m experiments.report")


def parse_flags() -> argparse.Namespace:
    """Parse the command line. Raises ExperimentError."""
    parser = make_parser(__doc__, prog="python -m experiments.run")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments/NAME.patch [the edit]")
    add("--all", action="store_true", help="all experiments of the recipe")
    add("--against", metavar="REV", default="HEAD", help="baseline of the edit: a commit [HEAD]")
    add("--recipe", choices=RECIPES, help="how to train and to score [that of the experiment]")
    add("--plan", action="store_true", help="only print the detectable effects and the time")
    add("--seeds", type=int, help="one stage, of this many seeds [the recipe's stages]")
    add("--final", action="store_true", help="score the held-out texts; once, for what you adopt")
    add("--store", action="store_true", help="write the results into experiments/results/")
    add("--cluster", metavar="ADDRESS", help="run on the workers of a Dask scheduler: HOST:PORT")
    flags = parser.parse_args()
    if flags.seeds is not None and flags.seeds < 2:
        raise ExperimentError("--seeds must be at least 2")
    if flags.all and flags.names:
        raise ExperimentError("--all and names exclude each other")
    if flags.store and (flags.final or flags.seeds):
        raise ExperimentError("--store cannot be combined with --final or --seeds")
    if flags.against != "HEAD" and (flags.all or flags.names):
        raise ExperimentError("--against is for the edit: leave out --all and names")
    return flags


def main() -> None:
    prepare_streams(best_effort=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, interrupt)
    try:
        with errors_in_one_line():
            run(parse_flags())
    except KeyboardInterrupt:
        fail("stopped: repeat the command to resume", status=130)


if __name__ == "__main__":
    main()
