"""What is to be done for an experiment: a run with one seed, by a recipe common to all."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from experiments import patches
from experiments.patches import ExperimentError
from training import records


@dataclass(frozen=True)
class Recipe:
    """What all experiments have in common: flags of train.py, and the splits that are scored."""

    flags: list
    splits: list
    folder: str


# Small enough for many runs. --shards 1: a run has a core for itself.
RECIPES = {
    "mini": Recipe(
        "--num-layers 2 --num-heads 4 --epochs 8 --shards 1".split(),
        ["test", "compositional"],
        "runs/experiments",
    ),
    "ted": Recipe(
        "--corpus ted_hrlr_translate/pt_to_en --batch-tokens 1536 --warmup-steps 2000 "
        "--num-heads 4 --epochs 5 --shards 1".split(),
        ["test"],
        "runs/experiments-ted",
    ),
}


@dataclass
class Job:
    """One run: an experiment with one seed."""

    patch: patches.Patch
    seed: int
    common: list  # flags of train.py that the baseline has, too
    splits: list
    folder: Path  # of all experiments
    base: str  # what the code without the patch does
    tree: Path = None  # the copy of the source with the patch
    environment: dict = field(default_factory=dict)

    @property
    def run(self):
        return self.folder / self.patch.name / f"seed-{self.seed}"

    @property
    def identity(self):
        """What a finished run must agree in to be this one."""
        return {"common": self.common, "flags": self.patch.flags, "diff": self.patch.digest,
                "base": self.base, "splits": self.splits}  # fmt: skip

    @property
    def card(self):
        """What is written about the run, beside it."""
        return self.run.with_suffix(".json")

    def known(self):
        """What the card says, or None."""
        try:
            return records.read_json(self.card)
        except (FileNotFoundError, ValueError):
            return None

    def finished(self):
        """Whether the run is there, whole. Raises ExperimentError where it is another one."""
        known = self.known()
        if known is None:
            if self.run.exists():
                raise ExperimentError(f"{self.run} is not of experiments.run: move it away")
            return False
        names = {"common": "other flags", "flags": "other flags", "diff": "another patch",
                 "base": "other code", "splits": "other splits"}  # fmt: skip
        differs = {text: 0 for key, text in names.items() if known.get(key) != self.identity[key]}
        if differs:
            raise ExperimentError(
                f"{self.run} was made with {' and '.join(differs)}: --again makes it anew and "
                "keeps the old one beside it, --folder puts new ones elsewhere, --commit goes on "
                "with an older commit"
            )
        there = all((self.run / f"scores-{split}.json").exists() for split in self.splits)
        return there and known.get("finished") is True

    def move_aside(self):
        """Keep what is there under another name."""
        ending = time.strftime(".until-%Y%m%d-%H%M%S")
        for path in (self.run, self.card, self.run.with_suffix(".log")):
            if path.exists():
                path.rename(path.with_name(path.name + ending))

    def write(self, **more):
        self.card.parent.mkdir(parents=True, exist_ok=True)
        records.write_json(self.card, {"question": self.patch.question, **self.identity, **more})

    def result(self):
        """A few words on a finished run."""
        found = []
        for split in self.splits:
            scores = records.read_json(self.run / f"scores-{split}.json")
            found.append(f"{split} BLEU {scores['bleu']:.1f}, exact {scores['exact_match']:.1f}")
        return "; ".join(found)
