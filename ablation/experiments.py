"""Recipes and experiments, as experiments/ describes them, and the user's edit.

An experiment is a table of experiments/flags.toml, or a file experiments/THEME/NAME.patch: the keys
of a table, an empty line and a diff in the format of `git diff`. Keys are the attributes of Recipe
and Experiment, with hyphens.
"""

import functools
import hashlib
import json
import math
import re
import shlex
import tempfile
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablation.worker import parse
from config import Config
from same_code import DIFF, NOT_CODE, ROOT, can_change, git, source_files, working_tree_diff
from utils import UserError, did_you_mean, names_in_group, quote, write_text

HERE = ROOT / "experiments"
UNITS = {"exact_match": "points", "accuracy": "points", "bleu": "BLEU"}
UNITS["nats_per_character"] = "nats per character"
BLEU_DELTA = 0.5
EDIT_RECIPE = "shakespeare"  # of the edit, and of --save


class ExperimentError(UserError):
    """An experiment that cannot be read, applied, saved or run."""


def short_hash(text: str) -> str:
    """Return the first characters of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def diffs_of_files(diff: str) -> list[str]:
    """Divide the output of `git diff` into the parts of its files, of which it is the sum."""
    return re.split("^(?=diff --git )", diff, flags=re.MULTILINE)


@functools.cache
def settings(flags: str) -> dict[str, Any]:
    """Return the settings that flags of train.py give. Exits if a value is invalid.

    Flags that only a patch adds are left out.
    """
    return parse(shlex.split(flags), unknown=True)


@dataclass(frozen=True)
class Recipe:
    """The settings that train and score the runs of an experiment and of its baseline.

    score: what is judged: "nats_per_character", the loss on the texts to score, "bleu", "accuracy",
        or "exact_match", the mean over the tags of `mini` or `cogs`. All but the loss in per cent.
    delta: differences smaller than this do not matter.
    average: number of last epochs whose final weights are averaged.
    sentences: number of sentences with new combinations of words to score, of `mini` or `cogs`; 0
        for the validation split.
    ladder: a name that recipes share, for a plot of the gains from one to the next.
    seeds: number of seeds of the only stage; 0: three stages.
    paired: whether the scores of two runs of a seed are correlated.
    spread: written by `python -m ablation.spread`. By score, the standard deviations of the
        difference of a pair and of a run, each with its degrees of freedom, and the correlation.
    """

    name: str
    flags: str
    score: str
    delta: float
    average: int = 3
    sentences: int = 0
    ladder: str = ""
    seeds: int = 0
    paired: bool = True
    spread: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def lower_is_better(self) -> bool:
        """True if the score is a loss."""
        return self.score == "nats_per_character"

    @property
    def has_bleu(self) -> bool:
        """True if BLEU can be judged instead of the loss. A language model has none."""
        return self.lower_is_better and settings(self.flags).get("model") != "language_model"

    @property
    def identity(self) -> str:
        """A hash of what its runs share besides code, texts and packages."""
        return short_hash(json.dumps([self.flags, self.average]))

    @property
    def decimals(self) -> int:
        """Decimals of scores in messages."""
        return 4 if self.lower_is_better else 1

    def format(self, value: float, sign: str = "") -> str:
        """Return a score, or with the sign "+" a gain, with its unit."""
        return f"{value:{sign}.{self.decimals}f} {UNITS[self.score]}"

    def judged_by(self, score: str) -> "Recipe":
        """Return this recipe with BLEU instead of a loss, if `score` is "bleu"."""
        instead = score == "bleu" and self.has_bleu
        return replace(self, score="bleu", delta=BLEU_DELTA) if instead else self

    def value(self, result: dict) -> float:
        """Return the score of a run; NaN if it diverged."""
        return math.nan if "diverged" in result else result["scores"][self.score]

    def gain(self, own: dict, baseline: dict) -> float:
        """Return how much better a run is than one of the baseline."""
        difference = self.value(own) - self.value(baseline)
        return -difference if self.lower_is_better else difference


@dataclass(frozen=True)
class Experiment:
    """A change of the code, of flags, or of both.

    theme: a folder of experiments/. claim: a published claim about it, and its source.
    modification: whether it is claimed to be better; otherwise it is an ablation.
    recipe: that of the command by default. recipe_flags: these replace `flags` for a recipe.
    score: "bleu", if the change alters what a loss means.
    average: number of last epochs whose weights are averaged; 0: the recipe's.
    paired: False if its runs have other random draws than those of the baseline.
    guard: the test that fails with the patch, if it is a bug.
    """

    name: str
    question: str
    theme: str = ""
    claim: str = ""
    modification: bool = False
    recipe: str = "mini"
    score: str = ""
    average: int = 0
    flags: str = ""
    recipe_flags: dict[str, str] = field(default_factory=dict, hash=False)
    paired: bool = True
    guard: str = ""
    diff: str = ""

    def for_recipe(self, recipe: Recipe) -> "Experiment":
        """Return the experiment with its flags for a recipe, its score, and whether it is paired.

        BLEU replaces a loss if the change may alter what the loss means, or what it does not see.
        """
        flags = self.recipe_flags.get(recipe.name, self.flags)
        bleu = any("meaning" in can_change(name) for name in self.files)
        lines = [*settings(flags), *self.changed_lines]
        bleu |= any("label_smoothing" in line.replace(" ", "_") for line in lines)
        score, paired = self.score or ("bleu" if bleu else ""), self.paired and recipe.paired
        return replace(self, flags=flags, score=score, paired=paired)

    @property
    def files(self) -> list[str]:
        """Names of the files that the diff changes, sorted."""
        line = r"^(?:(?:---|\+\+\+) [abciwo]/|rename (?:from|to) )([^\t\n]*\S)"  # all of git's
        return sorted({*re.findall(line, self.diff, re.MULTILINE)})

    @property
    def changed_lines(self) -> list[str]:
        """The lines that the diff removes and adds, and those that name its files."""
        return [line for line in self.diff.splitlines() if line[:1] in ("+", "-")]

    @property
    def change(self) -> str:
        """A hash of the flags, the average, and the lines that the diff removes and adds."""
        lines = [self.flags, *self.changed_lines]
        lines += [f"average {self.average}"] if self.average else []
        return short_hash("\n".join(lines))

    @property
    def changed_settings(self) -> set[str]:
        """Names of the settings that the flags give, or whose defaults the diff changes."""
        names, default = {*settings(self.flags)}, r"^    (\w+): .*= setting\(\s*([^,]*),"
        for part in diffs_of_files(self.diff):
            lines = part.splitlines() if part.startswith("diff --git a/config.py ") else []
            sides = ("\n".join(x[1:] for x in lines if x[:1] in (" ", sign)) for sign in "-+")
            old, new = ({*re.findall(default, side, re.MULTILINE)} for side in sides)
            names |= {name for name, _ in old ^ new}
        return names

    @property
    def keeps_pairs(self) -> bool:
        """True if runs have the random draws, the batches and the tokens of the baseline's, so that
        the runs of a seed are judged by their difference.
        """
        data = self.changed_settings & {*names_in_group(Config, "data")}
        batches = data or any("batches" in can_change(name) for name in self.files)
        return self.paired and not batches

    def rate(self, recipe: Recipe, default: float = Config.learning_rate_scale) -> float:
        """Return the factor of the learning rate that flags give, or else `default`."""
        return settings(f"{recipe.flags} {self.flags}").get("learning_rate_scale", default)

    def at_rate(self, recipe: Recipe, rate: float) -> "Experiment":
        """Return the experiment with a factor of the learning rate, of three digits, in its flags.

        Returns the experiment itself if its flags or the recipe's give this rate. A default does
        not count, because an edit may change it.
        """
        if self.rate(recipe, default=math.nan) == float(f"{rate:.3g}"):
            return self
        flags = f"{self.flags} --learning-rate-scale={rate:.3g}".strip()
        return replace(self, name=f"{self.name}@{rate:.3g}", flags=flags)

    def apply(self, folder: Path, *options: str) -> None:
        """Apply the diff to a copy of the source. options: of `git apply`. Raises UserError."""
        if self.diff:
            # Hide any repository around the folder: git would take paths as relative to its root,
            # and skip them silently.
            hidden = {"GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)}
            words = ("apply", *options, "--whitespace=nowarn", "-")
            git(*words, stdin=self.diff, cwd=folder, **hidden)


BASELINE = Experiment("baseline", "The unpatched source")


# ---- Files of experiments/ ----


def parse_tables(kind: type, path: Path, text: str, **others: str) -> dict[str, Any]:
    """Create a Recipe or an Experiment from each table of a TOML text. Raises ExperimentError."""
    created, name = {}, ""
    try:
        for name, table in tomllib.loads(text).items():
            values = {key.replace("-", "_"): value for key, value in table.items()}
            created[name] = kind(name=name, **values, **others)
    except (ValueError, TypeError, AttributeError) as error:
        raise ExperimentError(f"{path}: {name} {error}") from None
    return created


def recipes() -> dict[str, Recipe]:
    """Read experiments/recipes.toml. Raises ExperimentError."""
    path = HERE / "recipes.toml"
    return parse_tables(Recipe, path, path.read_text("utf-8"))


def saved() -> dict[str, Experiment]:
    """Read all experiments. Raises ExperimentError."""
    path = HERE / "flags.toml"
    experiments = parse_tables(Experiment, path, path.read_text("utf-8"))
    for path in HERE.glob("*/*.patch"):
        head, _, diff = path.read_bytes().decode("utf-8").partition("\n\n")
        about = {"theme": path.parent.name, "diff": diff}
        experiments |= parse_tables(Experiment, path, f"[{path.stem}]\n{head}", **about)
    return dict(sorted(experiments.items()))


def read(name: str) -> Experiment:
    """Read an experiment. Raises ExperimentError."""
    experiments = saved()
    if name not in experiments:
        hint = did_you_mean(name, experiments, 3) or f": they are in {HERE}"
        raise ExperimentError(f"unknown experiment {name}{hint}")
    return experiments[name]


# ---- The edit of the working tree ----


def edit(commit: str = "HEAD") -> Experiment | None:
    """Return the changes since a commit as an experiment, or None if there are none.

    Only Python files at the top and in folders of modules count, and tables of packages, except
    corpora in data/, and new files outside of the packages that nothing imports. The name has a
    hash of the changes. Raises ExperimentError.
    """
    wanted = {":(glob)*.py", ":(exclude,glob)data/*.tsv", *(f":!{name}" for name in NOT_CODE)}
    wanted |= {f":(glob){path.parent.name}/**/*.py" for path in ROOT.glob("*/*.py")}
    wanted |= {f":(glob){path.parent.name}/**/*.tsv" for path in ROOT.glob("*/__init__.py")}
    try:
        diff = working_tree_diff(*wanted, base=commit)
    except UserError as error:
        raise ExperimentError(f"--against {commit}: {error}; choose a commit of git log") from None
    used, new = source_files(ROOT), re.compile(r"diff --git a/(.+\.py) b/\1\nnew file ")
    parts = diffs_of_files(diff)
    diff = "".join(x for x in parts if not (found := new.match(x)) or found[1] in used)
    about = {"question": "The edit of the working tree", "recipe": EDIT_RECIPE, "diff": diff}
    return Experiment(f"edit-{short_hash(diff)[:6]}", **about) if diff else None


def save(target: str, question: str, commit: str, recipe: str) -> None:
    """Save the changes since a commit as THEME/NAME. Raises UserError and OSError."""
    theme, _, name = target.partition("/")
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9][a-z0-9-]*", target):
        raise ExperimentError(f"{target}: give THEME/NAME, such as attention/sharper")
    if name in saved() or name == BASELINE.name:
        raise ExperimentError(f"{name} exists: choose another name")
    if recipe not in recipes():
        raise ExperimentError(f"recipe {recipe}: choose from {', '.join(recipes())}")
    if not (own := edit(commit)):
        raise ExperimentError(f"nothing to save: no code differs from {commit}")
    path = HERE / theme / f"{name}.patch"
    path.parent.mkdir(exist_ok=True)
    head = f'recipe = "{recipe}"\nquestion = {json.dumps(question, ensure_ascii=False)}'
    write_text(path, f"{head}\n\n{own.diff}")
    print(f"wrote {path}; to measure it, on the commit that it changes: python -m ablation {name}")


def refresh(name: str) -> None:
    """Rewrite a patch for the last commit, by a three-way merge. Raises UserError and OSError."""
    if edit():
        raise ExperimentError("the code has uncommitted changes: commit or stash them")
    path = HERE / read(name).theme / f"{name}.patch"
    head, _, diff = path.read_text("utf-8").partition("\n\n")
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}  # the user's does not change
        git("read-tree", "HEAD", **index)
        try:
            # Paths of a patch are those of the project, which may be a folder of a repository.
            place = f"--directory={git('rev-parse', '--show-prefix').strip()}"
            apply = ("apply", "--3way", "--cached", "--whitespace=nowarn", place, "-")
            git(*apply, stdin=diff, **index)
        except UserError as error:
            hint = f"resolve `git apply -3 {quote(path)}`, delete that file, and --save the edit"
            raise ExperimentError(f"{name}: {error}: {hint}") from None
        diff = git(*DIFF, "--cached", "HEAD", **index)
    if not diff:
        raise ExperimentError(f"{name}: the last commit has all of its changes")
    write_text(path, f"{head}\n\n{diff}")
    print(f"wrote {path}")
