"""Make an experiment of the edits that you have just made.

The edits in the working tree against the last commit, new files included, become
experiments/NAME.patch. experiments/ itself stays out of it.
"""

import argparse
import re

from config import fail
from experiments import patches
from experiments.patches import ExperimentError, Patch
from training.provenance import edits


def save(flags):
    """Write the experiment. Raises ExperimentError, OSError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", flags.name) or flags.name == patches.BASELINE.name:
        raise ExperimentError(
            f"{flags.name!r} cannot name an experiment: small letters, digits and hyphens, and not "
            "baseline"
        )
    texts = {key: " ".join(getattr(flags, key).split()) for key in patches.KEYS if key in flags}
    old = patches.read(flags.name) if flags.replace and flags.name in patches.names() else None
    diff = edits(patches.git, ".", ":(exclude)experiments")
    if old:  # what is not said anew stays, and the finding where it is of the same edit
        texts = {key: texts[key] or getattr(old, key) for key in texts}
        diff = diff or old.diff
        if (diff, texts["flags"]) == (old.diff, old.flags):
            texts["finding"] = old.finding
    patch = Patch(flags.name, diff=diff, **texts)
    if not patch.question:
        raise ExperimentError("an experiment wants a question")
    if patch.path.exists() and not flags.replace:
        raise ExperimentError(f"{patch.path} exists: choose another name, or give --replace")
    if not patch.diff and not patch.flags:
        raise ExperimentError("nothing has been edited since the last commit, and no --flags given")
    patches.check(patch)
    patches.write(patch)
    changes = re.findall(r"^[+-](?![+-]{2} )", patch.diff, re.MULTILINE)
    files = re.findall(r"^diff --git", patch.diff, re.MULTILINE)
    where = patch.path.relative_to(patches.ROOT)
    print(
        f"{where}: {len(changes)} lines in {len(files)} files; try it with\n"
        f"    python -m experiments.run {patch.name}\n"
        f"    python -m experiments.compare {patch.name}"
    )
    if patch.diff:
        print(f"your edits are still in the working tree; to undo them: git apply -R {where}")


def from_flags():
    parser = argparse.ArgumentParser(
        "python -m experiments.save", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.error = fail
    parser.add_argument("name", help="small letters, digits and hyphens")
    parser.add_argument("question", help="what is asked, in a sentence")
    parser.add_argument("--claim", default="", help="what somebody says, and who")
    parser.add_argument("--flags", default="", help="flags of train.py for it, in one word")
    parser.add_argument("--guard", default="", help="the test that notices, where it is a bug")
    parser.add_argument("--replace", action="store_true", help="an experiment of this name")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        save(from_flags())
    except (ExperimentError, OSError) as error:
        fail(error)
