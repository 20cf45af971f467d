"""Results of runs, one line of JSON each, and their pairs.

experiments/results/RECIPE.jsonl has the stored ones: the experiment, the seed, the key of its code
and of that of its baseline, the machine, and the scores. A result is used if it is of the same
code, or if seed 0 of its experiment gives the same scores here; otherwise it is run again.
"""

import json
from operator import itemgetter
from pathlib import Path

from ablation.experiments import BASELINE, HERE, Experiment, Recipe, saved
from ablation.verdicts import ERROR, PairedRuns, equal
from ablation.workspace import Workspace
from training.records import read_json, read_json_lines
from utils import UserError, write_text


def stored_file(recipe: Recipe) -> Path:
    """Return the file of the stored results of a recipe."""
    return HERE / "results" / f"{recipe.name}.jsonl"


def read_lines(recipe: Recipe, final: bool = False) -> list[dict]:
    """Return the stored results of a recipe, without those of other flags. Raises UserError.

    final: those of --final instead.
    """
    path = stored_file(recipe)
    lines = read_json_lines(path) if path.exists() else []
    return [x for x in lines if (x["recipe"], x["final"]) == (recipe.identity, final)]


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


def stored_pairs(recipe: Recipe, final: bool = False) -> tuple[dict[str, PairedRuns], list[dict]]:
    """Return the pairs of each unchanged experiment, and all runs of the baseline.

    final: those of --final instead.
    """
    lines = read_lines(recipe, final)
    baseline, pairs = [x for x in lines if x["experiment"] == BASELINE.name], {}
    for each in saved().values():
        about = each.name, each.for_recipe(recipe).change
        own = [x for x in lines if (x["experiment"], x["change"]) == about]
        pairs[each.name] = pair(own, baseline)
    return {name: each for name, each in pairs.items() if each}, baseline


def scores(result: dict) -> dict | str:
    """Return the scores of a run, which are compared in every digit, or why it diverged."""
    return result.get("diverged") or result["scores"]


class Results:
    """The results of experiments that count, from experiments/results/ and comparisons/.

    machine: the name of the processor, and a hash that identifies its arithmetic.
    """

    def __init__(self, workspace: Workspace, machine: dict[str, str]):
        self.workspace, self.recipe, self.machine = workspace, workspace.recipe, machine
        lines = [read_json(path) for path in workspace.folder.glob("*/seed-*.*-*.json")]
        lines = [line for line in lines if line["recipe"] == self.recipe.identity]
        stored = read_lines(self.recipe, workspace.final)
        self.lines = lines + [x for x in stored if x not in lines]
        self.ledger = workspace.folder.parent / "comparisons.jsonl"  # of this machine

    def usable(self, experiment: Experiment) -> list[dict]:
        """Return the results of other code with this code's scores of seed 0 on this machine, and
        then those of this code, which take precedence.

        Those of this code may have another name. A confirmation has none of other code.
        """
        key, about = self.workspace.key(experiment), (experiment.name, experiment.change, False)
        own, here = [x for x in self.lines if x["key"] == key], self.machine["machine"]
        first = [scores(x) for x in own if (x["seed"], x["machine"]) == (0, here)]
        others = [x for x in self.lines if (x["experiment"], x["change"], x["final"]) == about]
        same = {x["key"] for x in others if x["seed"] == 0 and scores(x) in first}
        return [x for x in others if x["key"] in same - {key}] + own

    def runs(self, experiment: Experiment) -> list[dict]:
        """Return the results that count, by seed and machine, under the present name and keys."""
        about = {"experiment": experiment.name, "change": experiment.change}
        about["key"] = self.workspace.key(experiment)
        about["baseline"] = self.workspace.key(self.workspace.baseline)
        runs = {(x["seed"], x["machine"]): x | about for x in self.usable(experiment)}
        return [runs[seed_and_machine] for seed_and_machine in sorted(runs)]

    def pairs(self, experiment: Experiment, count: int = 1000) -> PairedRuns:
        """Return the pairs of the first seeds, on this machine where there are several."""
        baseline = self.runs(self.workspace.baseline)
        pairs = pair(self.runs(experiment), baseline, self.machine["machine"])
        return {x: pairs[x] for x in self.workspace.seeds(experiment, count) if x in pairs}

    def record(self, experiment: Experiment, outcome: str) -> None:
        """Add a verdict to the file of all comparisons."""
        about = {"experiment": experiment.name, "change": experiment.change, "outcome": outcome}
        about |= {"recipe": self.recipe.name, "final": self.workspace.final}
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(about)}\n")

    def count(self) -> str:
        """Describe how many edits were judged, and how many of them chance would call better."""
        try:
            lines = read_json_lines(self.ledger)
        except UserError as error:  # a full disk may have cut a line short
            return f"comparisons: not counted: {error}: delete that line"
        count = len({(line["change"], line["recipe"]) for line in lines})
        return f"comparisons: {count}; expected false positives: {ERROR / 2 * count:.2g}"

    def store(self, chosen: list[Experiment]) -> None:
        """Store the results of experiments, and of the baseline. Raises UserError and OSError.

        Other results of these experiments are replaced. Results of another baseline stay as long as
        experiments were compared with it. Experiments without any effect are not stored, nor are
        runs of a baseline that diverged.
        """
        own = [BASELINE, *(x for x in chosen if not equal(self.pairs(x)))]
        keys = {line["key"]: self.workspace.key(x) for x in own for line in self.usable(x)}
        replaced = {(x.name, self.workspace.final, self.recipe.identity) for x in chosen}
        path, lines = stored_file(self.recipe), [line for x in own for line in self.runs(x)]
        for line in read_json_lines(path) if path.exists() else []:
            if (line["experiment"], line["final"], line["recipe"]) not in replaced:
                lines.append(line | {x: keys.get(line[x], line[x]) for x in ("key", "baseline")})
        identity = itemgetter("experiment", "final", "seed", "machine", "key", "recipe")
        lines = sorted({identity(line): line for line in lines}.values(), key=identity)
        others = [x for x in lines if x["experiment"] != BASELINE.name]
        compared = {x["baseline"] for x in others}
        baseline = [x for x in lines if x["experiment"] == BASELINE.name and x["key"] in compared]
        rows = [x for x in baseline if "diverged" not in x] + others
        path.parent.mkdir(exist_ok=True)
        write_text(path, "".join(f"{json.dumps(line)}\n" for line in rows))
        print(f"wrote {path}; now run python -m ablation.tables")
