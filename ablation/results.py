"""Results of runs, one line of JSON each, and their pairs.

experiments/results/RECIPE.jsonl has the stored ones: the experiment, the seed, the key of its code
and of that of its baseline, the machine, and the scores. A result is used if it is of the same
code, or if seed 0 of its experiment gives the same scores here; otherwise it is run again.
"""

import json
from pathlib import Path

from ablation.experiments import BASELINE, HERE, Experiment, Recipe, saved
from ablation.verdicts import ERROR, PairedRuns, equal
from ablation.workspace import Workspace
from training.records import read_json, read_json_lines
from utils import amount, lock, warn, write_text


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
    rows = {}
    for each in (BASELINE, *saved().values()):
        about = each.name, each.for_recipe(recipe).change
        rows[each.name] = [x for x in lines if (x["experiment"], x["change"]) == about]
    return rows


def pair(own: list[dict], baseline: list[dict], machine: str = "") -> PairedRuns:
    """Pair runs with those of their baseline: equal seed, equal machine.

    If a seed has several pairs, that of `machine` is taken.
    """
    partners = {(run["seed"], run["machine"], run["key"]): run for run in baseline}
    pairs = {}
    for run in sorted(own, key=lambda run: (run["seed"], run["machine"] != machine)):
        if partner := partners.get((run["seed"], run["machine"], run["baseline"])):
            pairs.setdefault(run["seed"], (run, partner))
    return pairs


def stored_pairs(recipe: Recipe, final: bool = False) -> dict[str, PairedRuns]:
    """Return the pairs of the stored experiments. final: those of --final instead."""
    rows = present([line for line in read_lines(recipe) if line["final"] == final], recipe)
    baseline = rows.pop(BASELINE.name)
    return {name: pair(runs, baseline) for name, runs in rows.items() if runs}


def identity(line: dict) -> tuple:
    """Return what identifies a stored result, in the order of the file."""
    return tuple(line[name] for name in ("experiment", "final", "seed", "machine", "key", "recipe"))


def scores(result: dict) -> tuple:
    """Return the scores of a result, which are compared in every digit, or why it has none."""
    return result.get("scores"), result.get("diverged")


class Results:
    """The results of experiments that count, from experiments/results/ and comparisons/.

    machine: the name of the processor, and a hash that identifies its arithmetic.
    """

    def __init__(self, workspace: Workspace, machine: dict[str, str]):
        self.workspace, self.recipe, self.machine = workspace, workspace.recipe, machine
        lines = [read_json(path) for path in workspace.folder.glob("*/seed-*.*-*.json")]
        lines = [line for line in lines if line["recipe"] == self.recipe.identity]
        stored = [x for x in read_lines(self.recipe) if x["final"] == workspace.final]
        self.lines = lines + [x for x in stored if x not in lines]

    def by_key(self, experiment: Experiment) -> dict[str, list[dict]]:
        """Return the known results of an experiment by the key of their code, its own key first.

        Those of the same code may have another name; those of other code have the same change. A
        confirmation has none of other code.
        """
        groups = {(own := self.workspace.key(experiment)): []}
        about = experiment.name, experiment.change, False
        for line in self.lines:
            if line["key"] == own or (line["experiment"], line["change"], line["final"]) == about:
                groups.setdefault(line["key"], []).append(line)
        return groups

    def must_verify(self, experiment: Experiment) -> bool:
        """Return whether seed 0 must run to know which results of other code count."""
        same, *others = self.by_key(experiment).values()
        return not same and any(line["seed"] == 0 for lines in others for line in lines)

    def usable(self, experiment: Experiment) -> list[dict]:
        """Return the results of other code with this code's scores of seed 0 on this machine, and
        then those of this code, which take precedence.
        """
        same, *others = self.by_key(experiment).values()
        here = (0, self.machine["machine"])
        ours = [scores(line) for line in same if (line["seed"], line["machine"]) == here]
        used = []
        for lines in others:
            if any(line["seed"] == 0 and scores(line) in ours for line in lines):
                used += lines
        return used + same

    def runs(self, experiment: Experiment) -> list[dict]:
        """Return the results that count, by seed and machine, under the present name and keys."""
        about = {"experiment": experiment.name, "change": experiment.change}
        about |= {"key": self.workspace.key(experiment), "baseline": self.workspace.key(BASELINE)}
        lines = self.usable(experiment)
        runs = {(line["seed"], line["machine"]): line | about for line in lines}
        return [runs[seed_and_machine] for seed_and_machine in sorted(runs)]

    def pairs(self, experiment: Experiment, count: int = 1000) -> PairedRuns:
        """Return the pairs of the first seeds, on this machine where there are several."""
        pairs = pair(self.runs(experiment), self.runs(BASELINE), self.machine["machine"])
        return {
            seed: pairs[seed] for seed in self.workspace.seeds(experiment, count) if seed in pairs
        }

    def baseline(self, experiment: Experiment) -> list[dict]:
        """Return all runs of the baseline if those of a seed are not paired; otherwise none."""
        if experiment.is_paired(self.recipe):
            return []
        return [run for run in self.runs(BASELINE) if "diverged" not in run]

    def seeds_here(self, experiment: Experiment) -> set[int]:
        """Return the seeds that have a result on this machine."""
        here = self.machine["machine"]
        return {line["seed"] for line in self.runs(experiment) if line["machine"] == here}

    def describe(self, experiment: Experiment) -> str:
        """Return how many known results of an experiment count."""
        same, *others = map(len, self.by_key(experiment).values())
        usable = self.usable(experiment)
        text = f"{experiment.name}: {amount(same, 'result')} of this code"
        if self.must_verify(experiment):
            text += f". {amount(sum(others), 'result')} of other code will count if seed 0, which "
            return text + "runs first, has the same scores as there"
        text += f", and {len(usable) - same} of {sum(others)} of other code" if others else ""
        elsewhere = sum(line["machine"] != self.machine["machine"] for line in usable)
        return text + (f"; {elsewhere} only in pairs of another machine" if elsewhere else "")

    def record(self, experiment: Experiment, outcome: str) -> str:
        """Add a verdict to the file of all comparisons. Returns how many edits were judged, and how
        many of them chance would call better.
        """
        path = self.workspace.folder.parent / "comparisons.jsonl"
        about = {"experiment": experiment.name, "change": experiment.change, "outcome": outcome}
        about |= {"recipe": self.recipe.name, "final": self.workspace.final}
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(about)}\n")
        judged = {(line["change"], line["recipe"]) for line in read_json_lines(path)}
        chance = f"expected false positives: {ERROR / 2 * len(judged):.2g}"
        return f"comparisons: {len(judged)}; {chance}"

    def store(self, chosen: list[Experiment]) -> None:
        """Store the results of experiments, and of the baseline. Raises UserError and OSError.

        Other results of these experiments are replaced. Results of another baseline stay as long as
        experiments were compared with it. Experiments without any effect are left out.
        """
        new, present_key = [], {}
        for each in (BASELINE, *chosen):
            if each != BASELINE and equal(self.pairs(each)):
                print(f"{each.name} is not stored: it is equal to the baseline")
                continue
            new += self.runs(each)
            key = self.workspace.key(each)
            present_key |= {line["key"]: key for line in self.usable(each)}
        replaced = {(x.name, self.workspace.final, self.recipe.identity) for x in chosen}
        path = stored_file(self.recipe)
        path.parent.mkdir(exist_ok=True)
        with lock(self.workspace.folder.parent / f"{self.recipe.name}.lock", wait="waiting"):
            old = read_json_lines(path) if path.exists() else []
            for line in old:
                line |= {x: present_key.get(line[x], line[x]) for x in ("key", "baseline")}
            lines = [x for x in old if (x["experiment"], x["final"], x["recipe"]) not in replaced]
            stored = [identity(line) for line in lines]
            lines += [line for line in new if identity(line) not in stored]
            compared = {x["baseline"] for x in lines if x["experiment"] != BASELINE.name}
            lines = [x for x in lines if x["key"] in compared or x["experiment"] != BASELINE.name]
            print(f"older results that are replaced: {sum(x not in lines for x in old)}")
            lines.sort(key=lambda line: (line["experiment"] != BASELINE.name, identity(line)))
            write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines))
        print(f"wrote {path}; now run python -m ablation.tables")
