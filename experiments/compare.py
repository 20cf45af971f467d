"""What experiments have shown, against the baseline of the same seeds.

Prints tables; without names, of all that was run, and these go into experiments/README.md, too,
with a plot.
"""

import argparse
import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from config import fail
from experiments import patches
from experiments.jobs import RECIPES
from experiments.patches import BASELINE, ExperimentError
from training import records
from training.records import load_config

# Student's t for a 95 % interval, by degrees of freedom from 1; beyond 20 the last one is too wide.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


@dataclass
class Run:
    """A finished run, as its folder has it."""

    path: Path
    seed: int
    like: tuple  # what it must have in common with a baseline
    scores: dict  # by split, as evaluate.py wrote them
    tokens_per_second: float
    minutes: float
    commit: str

    @classmethod
    def of(cls, path, card):
        """From a run's folder. Raises ExperimentError where something is amiss."""
        try:
            return cls.read(path, card)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{path} cannot be compared: {error!r}") from None

    @classmethod
    def read(cls, path, card):
        lines = records.read_json_lines(path / "metrics.jsonl")
        speeds = [float(x["tokens_per_second"]) for x in lines if "tokens_per_second" in x]
        seconds = [float(line["seconds"]) for line in lines if "seconds" in line]
        scores = {s: records.read_json(path / f"scores-{s}.json") for s in card["splits"]}
        for found in scores.values():
            found |= {name: float(found[name]) for name in ("bleu", "exact_match")}
        return cls(
            path=path,
            seed=int(path.name.removeprefix("seed-")),
            like=(card["base"], *card["common"]),
            scores=scores,
            tokens_per_second=statistics.median(speeds),
            minutes=sum(seconds) / 60,
            commit=(records.read_json(path / "provenance.json")["commit"] or "unknown")[:7],
        )


def runs_of(folder, name):
    """The finished runs of an experiment by seed, and what is to be said about the others."""
    finished, notes = {}, []
    patch = patches.read(name)
    for card in sorted((folder / name).glob("seed-*.json")):
        known = records.read_json(card)
        run = card.with_suffix("")
        if (known.get("diff"), known.get("flags")) != (patch.digest, patch.flags):
            notes.append(f"{name} {run.name} was made with another patch than today's: left out")
        elif known.get("finished") and not run.exists():
            notes.append(f"{name} {run.name} is not there any more")
        elif known.get("finished"):
            found = Run.of(run, known)
            finished[found.seed] = found
        else:
            why = f"failed: {known['failed']}" if "failed" in known else "is not finished"
            notes.append(f"{name} {run.name} {why}")
    return finished, notes


@dataclass
class Difference:
    """Experiment minus baseline, seed by seed: its mean and its 95 % t interval, where n > 1."""

    values: list

    @property
    def mean(self):
        return statistics.fmean(self.values)

    @property
    def half(self):
        """Half the interval's width; None for one seed."""
        n = len(self.values)
        if n < 2:
            return None
        return STUDENT[min(n - 1, len(STUDENT)) - 1] * statistics.stdev(self.values) / math.sqrt(n)

    @property
    def verdict(self):
        if self.half is None:
            return "one seed"
        if abs(self.mean) <= self.half:
            return "inside the noise"
        return "better" if self.mean > 0 else "worse"

    def __str__(self):
        if self.half is None:
            return f"{self.mean:+.1f}"
        return f"{self.mean:+.1f} [{self.mean - self.half:+.1f}, {self.mean + self.half:+.1f}]"


def spread(values):
    """Mean ± standard deviation."""
    text = f"{statistics.fmean(values):.1f}"
    return text + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


@dataclass
class Row:
    """An experiment beside the baseline's runs of the same seeds."""

    patch: patches.Patch
    runs: list
    baseline: list  # as many, in the same order

    def column(self, split, score):
        """A score of each run."""
        return [run.scores[split][score] for run in self.runs]

    def difference(self, split, score):
        pairs = zip(self.runs, self.baseline, strict=True)
        return Difference([a.scores[split][score] - b.scores[split][score] for a, b in pairs])

    def bootstrap(self, split):
        """The chance that one seed's difference in BLEU is the choice of sentences: Koehn 2004."""
        from sacrebleu.metrics import BLEU
        from sacrebleu.significance import PairedTest

        from data import corpora

        settings = load_config(self.runs[0].path)
        texts = corpora.load(settings.corpus, split, settings.reverse)
        outputs = [
            (run.path / f"translations-{split}.txt").read_text("utf-8").split("\n")[:-1]
            for run in (self.baseline[0], self.runs[0])
        ]
        _, found = PairedTest(
            [("baseline", outputs[0]), (self.patch.name, outputs[1])],
            {"BLEU": BLEU(tokenize="13a", force=True)}, [texts.targets], "bs", 1000,
        )()  # fmt: skip
        base, own = found["BLEU"]
        return own.p_value if own.score != base.score else 1.0  # of no difference it is quite sure


def rows_of(folder, names):
    """The Rows, the baseline's first, and what is to be said. Raises ExperimentError."""
    baseline, notes = runs_of(folder, BASELINE.name)
    if not baseline:
        raise ExperimentError(f"{folder} has no finished baseline: python -m experiments.run first")
    # Of several codes, the one of most baselines: nothing is a mean over two.
    ((like, _),) = Counter(run.like for run in baseline.values()).most_common(1)
    for seed in [seed for seed, run in baseline.items() if run.like != like]:
        notes.append(f"baseline seed-{seed} has other code or flags than the others: left out")
        del baseline[seed]
    rows = [Row(BASELINE, list(baseline.values()), list(baseline.values()))]
    for name in names:
        patch = patches.read(name)
        finished, more = runs_of(folder, name)
        notes += more
        pairs = []
        for seed, run in finished.items():
            if seed in baseline and baseline[seed].like == run.like:
                pairs.append((run, baseline[seed]))
            else:
                notes.append(
                    f"{name} seed-{seed} has no baseline of the same seed, code and flags: left out"
                )
        if pairs:
            rows.append(Row(patch, *map(list, zip(*pairs, strict=True))))
    return rows, notes


def table(header, rows):
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def main_table(rows, splits):
    """All rows, the headline first: exact match on the last split, or BLEU on the only one."""
    header = ["experiment", "n"]
    kinds = [(splits[-1], "exact_match")] if len(splits) > 1 else []
    kinds += [("test", "bleu"), ("test", "exact_match")]
    for split, score in kinds:
        header += [f"{split} {score.replace('_', ' ')}", "difference"]
    header += ["verdict", "parameters", "tokens/s", "minutes", "commit"]
    made = []
    for row in rows:
        own = row.patch == BASELINE
        link = row.patch.name if own else f"[{row.patch.name}]({row.patch.path.name})"
        cells = [f"{link}: {row.patch.question}", len(row.runs)]
        for split, score in kinds:
            cells += [spread(row.column(split, score)), "" if own else row.difference(split, score)]
        verdict = "" if own else row.difference(*kinds[0]).verdict
        if verdict == "one seed":
            verdict += f"; BLEU by chance of sentences: p = {row.bootstrap('test'):.3f}"
        # A median: a run beside another job would weigh too much.
        cells += [
            verdict,
            f"{row.runs[0].scores['test']['parameters']:,}",
            f"{statistics.median(run.tokens_per_second for run in row.runs):,.0f}",
            f"{statistics.median(run.minutes for run in row.runs):.1f}",
            ", ".join(sorted({run.commit for run in row.runs})),
        ]
        made.append(cells)
    return table(header, made)


def tag_table(rows, split):
    """Exact match by phenomenon, means over the seeds; "" where the corpus has no tags."""
    first = rows[0].runs[0].scores[split].get("exact_match_by_tag")
    if not first:
        return ""
    made = []
    for row in rows:
        tags = [run.scores[split]["exact_match_by_tag"] for run in row.runs]
        means = [statistics.fmean(found[tag][1] for found in tags) for tag in first]
        made.append([row.patch.name, *(f"{mean:.1f}" for mean in means)])
    return table([split, *first], made)


def findings(rows):
    """What was written down after the numbers."""
    return "".join(f"- **{r.patch.name}**: {r.patch.finding}\n" for r in rows if r.patch.finding)


def report(rows, splits, notes):
    """All that is to be said, as Markdown."""
    parts = [main_table(rows, splits), tag_table(rows, splits[-1]), findings(rows),
             "".join(f"- {note}\n" for note in notes)]  # fmt: skip
    return "\n".join(part for part in parts if part)


def write(recipe, rows, splits, text):
    """Into experiments/README.md, between the markers of the recipe, with a plot."""
    from evaluation import plots

    readme = patches.HERE / "README.md"
    before = readme.read_text("utf-8")
    marks = [f"<!-- {recipe} -->", f"<!-- end of {recipe} -->"]
    if any(before.count(mark) != 1 for mark in marks):
        raise ExperimentError(f"{readme} has not one {marks[0]} and one {marks[1]}")
    split, score = (splits[-1], "exact_match") if len(splits) > 1 else ("test", "bleu")
    points = []
    for row in rows[1:]:
        found = row.difference(split, score)
        half = found.half
        ends = (None, None) if half is None else (found.mean - half, found.mean + half)
        points.append((row.patch.name, found.mean, *ends))
    name = "exact match, points" if score == "exact_match" else "BLEU"
    several = any(len(row.runs) > 1 for row in rows)
    said = "mean and 95 % interval over paired seeds" if several else "one seed, so no interval"
    plots.forest(patches.HERE / recipe, points, f"{recipe}: difference from the baseline, {split}",
                 f"{name}; {said}")  # fmt: skip
    (patches.HERE / f"{recipe}.svg").unlink()
    text = f"{marks[0]}\n![differences from the baseline]({recipe}.png)\n\n{text}{marks[1]}"
    after = re.sub(f"{marks[0]}.*{marks[1]}", lambda _: text, before, flags=re.DOTALL)
    readme.write_text(after, "utf-8")
    print(f"written: {readme}, {recipe}.png")


def compare(flags):
    """Print, and write where everything was asked for. Raises ExperimentError."""
    recipe = RECIPES[flags.recipe]
    folder = flags.folder or Path(recipe.folder)
    names = flags.names or [name for name in patches.names() if (folder / name).exists()]
    rows, notes = rows_of(folder, [name for name in names if name != BASELINE.name])
    splits = list(rows[0].runs[0].scores)
    text = report(rows, splits, notes)
    print(text)
    if flags.all:
        write(flags.recipe, rows, splits, text)


def from_flags():
    parser = argparse.ArgumentParser(
        "python -m experiments.compare", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.error = fail
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone [all that were run]")
    parser.add_argument("--all", action="store_true", help="all that were run, written into "
        "experiments/README.md in place of the table there, with the plot")  # fmt: skip
    parser.add_argument("--recipe", choices=RECIPES, default="mini", help="as for experiments.run")
    parser.add_argument("--folder", type=Path, help="as for experiments.run")
    flags = parser.parse_args()
    if flags.all and flags.names:
        fail("name experiments, or give --all")
    return flags


if __name__ == "__main__":
    try:
        compare(from_flags())
    except (ExperimentError, OSError, ValueError, KeyError) as error:
        fail(error)
