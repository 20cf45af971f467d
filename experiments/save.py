"""Save the edits of the working tree as an experiment.

The difference to the last commit, new files included, becomes experiments/NAME.patch. Files in
experiments/ are left out.
"""

import argparse
import re

from config import UserError, fail, make_parser
from experiments import patches
from experiments.jobs import RECIPES
from experiments.patches import ExperimentError, Patch
from training.provenance import working_tree_diff


def save(flags: argparse.Namespace) -> None:
    """Write the patch file. Raises ExperimentError and OSError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", flags.name) or flags.name == patches.BASELINE.name:
        raise ExperimentError(
            f"{flags.name!r} is not a valid name: use lower-case letters, digits and hyphens, and "
            "not `baseline`"
        )
    texts = {key: " ".join(getattr(flags, key).split()) for key in patches.KEYS if key in flags}
    old = patches.read(flags.name) if flags.replace and flags.name in patches.names() else None
    diff = working_tree_diff(patches.git, ".", ":(exclude)experiments")
    if old:  # keep what is not given again, and the finding if the edit is the same
        texts = {key: texts[key] or getattr(old, key) for key in texts}
        diff = diff or old.diff
        if (diff, texts["flags"]) == (old.diff, old.flags):
            texts["finding"] = old.finding
    patch = Patch(flags.name, diff=diff, **texts)
    if not patch.question:
        raise ExperimentError("the question is empty: describe in a sentence what is tested")
    if patch.path.exists() and not flags.replace:
        raise ExperimentError(f"{patch.path} exists: choose another name, or use --replace")
    if not patch.diff and not patch.flags:
        raise ExperimentError("nothing to save: edit the source, or give --flags")
    patches.check(patch)
    patches.write(patch)
    changes = re.findall(r"^[+-](?![+-]{2} )", patch.diff, re.MULTILINE)
    files = re.findall(r"^diff --git", patch.diff, re.MULTILINE)
    path = patch.path.relative_to(patches.ROOT)
    print(
        f"{path}: {len(changes)} lines in {len(files)} files; try it with\n"
        f"    python -m experiments.run {patch.name}\n"
        f"    python -m experiments.compare {patch.name}"
    )
    if patch.diff:
        print(f"your edits are still in the working tree; to undo them: git apply -R {path}")


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(
        __doc__,
        prog="python -m experiments.save",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="lower-case letters, digits and hyphens")
    parser.add_argument("question", help="what the experiment tests, in a sentence")
    parser.add_argument("--claim", default="", help="a published claim, and its source")
    parser.add_argument("--recipe", default="", choices=RECIPES, help="if not about translation")
    parser.add_argument("--flags", default="", help="flags of train.py, quoted as one word")
    parser.add_argument("--guard", default="", help="the test that fails, if the edit is a bug")
    parser.add_argument("--replace", action="store_true", help="replace an experiment of this name")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        save(parse_flags())
    except (UserError, OSError) as error:
        fail(error)
