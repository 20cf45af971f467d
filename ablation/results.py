"""Results of runs, one line of JSON each, and their pairs.

experiments/results/RECIPE.jsonl has the stored ones: the experiment, the seed, the key of its code
and of that of its baseline, the machine, and the scores. A stored result is used if it is of the
same code, or if seed 0 of its experiment gives the same scores here; otherwise it is run again.
"""

import json
import os
import sys
from pathlib import Path

from ablation.experiments import BASELINE, HERE, Experiment, Recipe, saved
from ablation.verdicts import Pairs, equal
from ablation.workspace import Workspace
from training.records import read_json, read_json_lines
from utils import lock, warn


def stored_file(recipe: Recipe) -> Path:
    """Return the file of the stored results of a recipe."""
    return HERE / "results" / f"{recipe.name}.jsonl"


def read_lines(recipe: Recipe) -> list[dict]:
    """Return the stored results of a recipe, without those of other flags. Raises UserError."""
    path = stored_file(recipe)
    lines = read_json_lines(path) if path.exists() else []
    usable = [line for line in lines if line["recipe"] == recipe.identity]
    if left_out := len(lines) - len(usable):
        warn(f"{path}: {left_out} results are of other flags of the recipe, and are not used")
    return usable


def present(lines: list[dict], recipe: Recipe) -> dict[str, list[dict]]:
    """Return the stored results of the baseline, and of experiments that have not changed since."""
    changes = {name: each.for_recipe(recipe).change for name, each in saved().items()}
    changes[BASELINE.name], rows = BASELINE.change, {}
    for line in lines:
        if line["change"] == changes.get(line["experiment"]):
            rows.setdefault(line["experiment"], []).append(line)
    return rows


def pair(own: list[dict], baseline: list[dict], machine: str = "") -> Pairs:
    """Pair runs with those of their baseline: equal seed, equal machine.

    If a seed has several pairs, that of `machine` is taken.
    """
    partners = {(run["seed"], run["machine"], run["key"]): run for run in baseline}
    pairs = {}
    for run in sorted(own, key=lambda run: (run["seed"], run["machine"] != machine)):
        if partner := partners.get((run["seed"], run["machine"], run["baseline"])):
            pairs.setdefault(run["seed"], (run, partner))
    return pairs


def stored_pairs(recipe: Recipe, final: bool = False) -> dict[str, Pairs]:
    """Return the pairs of the stored experiments. final: those of --final instead."""
    rows = present([line for line in read_lines(recipe) if line["final"] == final], recipe)
    baseline = rows.pop(BASELINE.name, [])
    return {name: pair(runs, baseline) for name, runs in rows.items()}


class Results:
    """The results of experiments that count.

    machine: the name of the processor, and a hash that identifies its arithmetic.
    """

    def __init__(self, workspace: Workspace, machine: dict[str, str]):
        self.workspace, self.recipe, self.machine = workspace, workspace.recipe, machine
        self.here = [read_json(path) for path in workspace.folder.glob("*/seed-*.*-*.json")]
        self.stored = [x for x in read_lines(self.recipe) if x["final"] == workspace.final]

    def of(self, experiment: Experiment) -> list[dict]:
        """Return the stored results of an experiment that has not changed since, of any code."""
        names = experiment.name, experiment.change
        return [line for line in self.stored if (line["experiment"], line["change"]) == names]

    def same(self, experiment: Experiment) -> list[dict]:
        """Return the results of the same code, which may have had another name."""
        key = self.workspace.key(experiment)
        return [line for line in (*self.here, *self.stored) if line["key"] == key]

    def others(self, experiment: Experiment) -> list[dict]:
        """Return the stored results of an experiment that are of other code."""
        key = self.workspace.key(experiment)
        return [line for line in self.of(experiment) if line["key"] != key]

    def verified(self, experiment: Experiment) -> list[dict]:
        """Return the stored results of other code that has the same scores with seed 0 here."""
        first = 0, self.machine["machine"]
        ours = [x for x in self.same(experiment) if (x["seed"], x["machine"]) == first]
        others = self.others(experiment)
        keys = {x["key"] for x in others if x["seed"] == 0 and ours and same_scores(x, ours[0])}
        return [line for line in others if line["key"] in keys]

    def must_verify(self, experiment: Experiment) -> bool:
        """Return whether seed 0 must run to know which stored results count."""
        seeds = {line["seed"] for line in self.others(experiment)}
        return not self.same(experiment) and 0 in seeds

    def runs(self, experiment: Experiment, seeds: int) -> list[dict]:
        """Return the results of the first seeds that count, under the present name and keys."""
        about = {"experiment": experiment.name, "change": experiment.change}
        about |= {"key": self.workspace.key(experiment), "baseline": self.workspace.key(BASELINE)}
        lines = (*self.same(experiment), *self.verified(experiment))
        found = {(line["seed"], line["machine"]): line | about for line in lines}
        return [found[place] for place in sorted(found) if place[0] < seeds]

    def pairs(self, experiment: Experiment, seeds: int) -> Pairs:
        """Return the pairs of the first seeds, on this machine where there are several."""
        own, baseline = self.runs(experiment, seeds), self.runs(BASELINE, seeds)
        return pair(own, baseline, self.machine["machine"])

    def missing(self, experiment: Experiment, seeds: int) -> set[int]:
        """Return the first seeds that have no result on this machine."""
        here = self.machine["machine"]
        found = {x["seed"] for x in self.runs(experiment, seeds) if x["machine"] == here}
        return {*range(seeds)} - found

    def describe(self, experiment: Experiment) -> str:
        """Return how many stored results of an experiment count."""
        same = [line for line in self.same(experiment) if line in self.stored]
        count, verified = len(self.of(experiment)), len(self.verified(experiment))
        text = f"{len(same) + verified} of {count} stored results are used"
        if self.must_verify(experiment):
            text += "; seed 0 decides whether the others are"
        return f"{experiment.name}: {text if count else 'no stored results'}"

    def record(self, experiment: Experiment, outcome: str) -> str:
        """Add a verdict to the file of all comparisons. Returns how many edits were judged since
        the last confirmed one, and how many of them chance would call better.
        """
        path = self.workspace.folder.parent / "comparisons.jsonl"
        about = {"experiment": experiment.name, "change": experiment.change, "outcome": outcome}
        about |= {"recipe": self.recipe.name, "final": self.workspace.final}
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(about)}\n")
        lines = read_json_lines(path)
        ends = [i for i, x in enumerate(lines, 1) if x["final"] and x["outcome"] == "better"]
        since = lines[ends[-1] if ends else 0 :]
        count = len({(line["change"], line["recipe"]) for line in since})
        return (
            f"comparisons since the last confirmed edit: {count}; of as many without any effect, "
            f"chance calls {0.025 * count:.1f} better: confirm with --final"
        )

    def store(self, chosen: list[Experiment]) -> None:
        """Store the results of experiments, and of the baseline. Raises UserError and OSError.

        Other results of these experiments are replaced. Results of another baseline stay as long as
        experiments were compared with it. Experiments without any effect are left out.
        """
        names, final, seeds = {x.name for x in chosen}, self.workspace.final, sys.maxsize
        stored = [x for x in chosen if not equal(self.pairs(x, seeds))]
        for each in chosen:
            if each not in stored:
                print(f"{each.name} is not stored: it is equal to the baseline")
        new = [line for each in (BASELINE, *stored) for line in self.runs(each, seeds)]
        renamed = {
            line["key"]: self.workspace.key(each)
            for each in (BASELINE, *chosen)
            for line in self.verified(each)
        }
        path = stored_file(self.recipe)
        path.parent.mkdir(exist_ok=True)
        with lock(self.workspace.folder.parent / f"{self.recipe.name}.lock", wait="waiting"):
            lines = read_json_lines(path) if path.exists() else []
            keys = ("key", "baseline")
            old = [x | {key: renamed.get(x[key], x[key]) for key in keys} for x in lines]
            kind = final, self.recipe.identity
            kept = [
                line
                for line in old
                if line["experiment"] not in names or (line["final"], line["recipe"]) != kind
            ]
            needed = {x["baseline"] for x in (*kept, *new) if x["experiment"] != BASELINE.name}
            lines = [x for x in kept if x["experiment"] != BASELINE.name or x["key"] in needed]
            lines += [x for x in new if x not in lines]
            print(f"older results that are replaced: {len([x for x in old if x not in lines])}")
            order = ("experiment", "final", "seed", "machine")
            lines.sort(key=lambda line: [line[name] for name in order])
            lines.sort(key=lambda line: line["experiment"] != BASELINE.name)
            unfinished = path.with_name(f"{path.name}.unfinished")
            unfinished.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
            os.replace(unfinished, path)
        print(f"wrote {path}; now run python -m ablation.tables")


def same_scores(one: dict, other: dict) -> bool:
    """Return whether two results are of equal scores, in every digit, or diverged alike."""
    names = ("scores", "diverged")
    return [one.get(name) for name in names] == [other.get(name) for name in names]
