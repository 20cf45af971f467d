"""Write the functions of a Transformer yourself, and test them.

`start` copies the source to a directory of yours and removes the body of a function there. Write
it, then `check` it: the exit status is 0 if all exercises pass. What you have written stays.
"""

import difflib
import json
import sys
from pathlib import Path

from exercises.grading import grade
from exercises.source import EXERCISES, PREDICTIONS, find_function
from same_code import ROOT, copy_files, source_files
from training.records import read_json
from utils import (
    UserError,
    did_you_mean,
    errors_in_one_line,
    handle_signals,
    make_parser,
    write_json,
)

STATE = "exercises.json"  # in the learner's directory: the exercises started, and whether passed


def show_list(passed: dict[str, bool]) -> None:
    """Print all exercises in the order of the walkthrough."""
    for name, exercise in EXERCISES.items():
        mark = {True: "passed", False: "started", None: ""}[passed.get(name)]
        print(f"{mark:8}{name:22}docs/walkthrough.md#{exercise['section']}")
    print(f"{sum(passed.values())} of {len(EXERCISES)} passed")


def start(folder: Path, passed: dict[str, bool], names: list[str]) -> None:
    """Remove functions from the learner's copy of the source, by default those of the next one."""
    if not passed:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose a new directory with --dir")
        copy_files(source_files(), folder)
    names = names or [name for name in EXERCISES if name not in passed][:1]
    if not names:
        print("every exercise is started")
    for name in names:
        if name in passed:
            raise UserError(f"{name} was started already: edit it in {folder}")
        for code in EXERCISES[name]["code"]:
            function = find_function(folder, code)
            function.replace(function.blank(name))
            print(f"{name}: write {code.partition(':')[2]} in {function.path}")
        print("  read docs/walkthrough.md#{section}\n  hint: {hint}".format(**EXERCISES[name]))
        passed[name] = False
        write_json(folder / STATE, passed)


def check(folder: Path, passed: dict[str, bool], names: list[str], as_json: bool) -> int:
    """Grade exercises, by default all that were started. Returns the exit status."""
    tests = {name: path for name, path in source_files().items() if name.startswith("tests/")}
    copy_files(tests, folder)  # edited ones do not count
    started = [name for name in names or passed if name in passed]
    wrong = dict.fromkeys(names, "not started") | (grade(folder, started) if started else {})
    lines = [f"{name}: {text or 'passed'}" for name, text in wrong.items()]
    print(json.dumps(wrong, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    passed |= {name: not wrong[name] for name in started}
    write_json(folder / STATE, passed)
    return int(any(wrong.values()))


def show_solution(folder: Path, name: str, apply: bool) -> None:
    """Print the project's code and how the learner's differs from it, or replace the learner's."""
    for code in EXERCISES[name]["code"]:
        theirs, ours = find_function(folder, code), find_function(ROOT, code)
        lines = [f"{x.head}{x.body}".splitlines(keepends=True) for x in (theirs, ours)]
        print(*lines[1], *difflib.unified_diff(*lines, "yours", "solution"), sep="")
        if apply:
            theirs.replace(ours.body)


def predict() -> None:
    """Ask for the verdicts of experiments, and compare the answers with the stored results."""
    from ablation.experiments import recipes
    from ablation.tables import Table

    right = 0
    for name, (recipe, why) in PREDICTIONS.items():
        table = Table(recipes()[recipe])
        verdict = table.verdicts[name]
        question = f"{table.experiments[name].question} ({recipe})\n"
        question += "better, worse, too small to matter, or undecided? [b/w/t/u] "
        try:
            answer = input(question)
        except EOFError:
            print()
            break
        correct = verdict.outcome[0] == answer.strip().lower()[:1]
        right += correct
        print(f"{'Right' if correct else 'Not so'}: {verdict}. {why}\n")
    print(f"{right} of {len(PREDICTIONS)} right")


def main() -> int:
    """Run a command. Returns the exit status."""
    parser = make_parser(__doc__, prog="python -m exercises")
    commands = ("list", "start", "check", "solution", "predict")
    parser.add_argument("command", nargs="?", choices=commands, default="list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an exercise")
    parser.add_argument("--dir", type=Path, default=Path("my-transformer"), help="your copy")
    parser.add_argument("--json", action="store_true", help="check: print sentences by exercise")
    parser.add_argument("--apply", action="store_true", help="solution: also copy it to yours")
    flags = parser.parse_intermixed_args()
    if not EXERCISES:
        raise UserError("run this in the project's directory, not in your copy")
    folder, names, state = flags.dir, [*dict.fromkeys(flags.names)], flags.dir / STATE
    for name in names:
        if name not in EXERCISES:
            raise UserError(f"there is no exercise {name}{did_you_mean(name, EXERCISES)}")
    passed = read_json(state) if state.exists() else {}
    match flags.command:
        case "check" | "solution" if not passed:
            raise UserError(f"no exercise was started in {folder}: use start")
        case "start":
            start(folder, passed, names)
        case "check":
            return check(folder, passed, names, flags.json)
        case "solution" if not names:
            raise UserError("name an exercise, such as python -m exercises solution loss")
        case "solution":
            for name in names:
                show_solution(folder, name, flags.apply)
        case "predict":
            predict()
        case _:
            show_list(passed)
    return 0


if __name__ == "__main__":
    handle_signals()
    with errors_in_one_line():
        sys.exit(main())
