"""Save the edits of the working tree as an experiment, experiments/NAME.patch.

The edits are the difference to the last commit, new files included. Files in experiments/ are left
out.
"""

import argparse
import re

from config import UserError, fail, make_parser
from experiments import patches
from experiments.patches import THEMES, ExperimentError, Patch
from experiments.recipes import RECIPES


def save(flags: argparse.Namespace) -> None:
    """Write the patch file. Raises ExperimentError and OSError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", flags.name) or flags.name == "baseline":
        raise ExperimentError(
            f"{flags.name!r} is not a valid name: use lower-case letters, digits and hyphens, and "
            "not `baseline`"
        )
    edit = patches.working_tree()
    texts = {key: " ".join(getattr(flags, key).split()) for key in patches.KEYS}
    patch = Patch(flags.name, diff=edit.diff if edit else "", **texts)
    if not patch.question:
        raise ExperimentError("the question is empty: describe in a sentence what is tested")
    if patch.path.exists() and not flags.replace:
        raise ExperimentError(f"{patch.path} exists: choose another name, or use --replace")
    if not patch.diff and not patch.flags:
        raise ExperimentError("nothing to save: edit the source, or give --flags")
    patches.check(patch)
    patch.path.write_bytes(patch.text().encode())
    path = patch.path.relative_to(patches.ROOT)
    print(f"wrote {path}; try it with\n    python -m experiments.run {patch.name}")
    if patch.diff:
        print(f"your edits are still in the working tree; to undo them: git apply -R {path}")


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = make_parser(__doc__, prog="python -m experiments.save", formatter_class=raw)
    add = parser.add_argument
    add("name", help="lower-case letters, digits and hyphens")
    add("question", help="what the experiment tests, in a sentence")
    add("--theme", default="architecture", choices=THEMES, help="where the table shows it")
    add("--claim", default="", help="a published claim, and its source")
    add("--recipe", default="", choices=RECIPES, help="if it is not about translation")
    add("--flags", default="", help="flags of train.py, quoted as one word")
    add("--guard", default="", help="the test that fails, if the edit is a bug")
    add("--replace", action="store_true", help="replace an experiment of this name")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        save(parse_flags())
    except (UserError, OSError) as error:
        fail(error)
