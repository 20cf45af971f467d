"""Contestants in turn, each in a process of its own; medians and ratios as a table and as JSON."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def flags(description, rounds=3):
    """The parser of a benchmark's command line, with what all of them have."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, help=f"turns of each contestant [{rounds}]")
    add("--json", type=Path, help="write the figures to this file too")
    return parser


def one_turn(module, job):
    """Run a contestant on a job, a dict, and return the dict that it prints; None if it cannot.

    module: its name in benchmarks.peers. It ends with status 3 where its packages are missing.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job | {"launched": time.time()}, file)
        file.flush()
        command = [sys.executable, "-m", f"benchmarks.peers.{module}", file.name]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode == 3:
        return None
    if ran.returncode:
        raise SystemExit(f"{module} failed:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def in_turn(contestants, rounds):
    """Every contestant once, then all again: {name: {measure: median over the rounds}}.

    contestants: {name: (module, job)}. What is no number is taken from the last round.
    """
    turns = {name: [] for name in contestants}
    for number in range(1, rounds + 1):
        for name, (module, job) in contestants.items():
            if turns[name] == [None]:
                continue
            print(f"round {number} of {rounds}: {name}", file=sys.stderr, flush=True)
            outcome = one_turn(module, job)
            if outcome is None:
                print(f"skipped {name}: its packages are not installed; "
                      'pip install -e ".[benchmarks]"', file=sys.stderr)  # fmt: skip
            turns[name].append(outcome)
    result = {}
    for name, outcomes in turns.items():
        if outcomes == [None]:
            continue
        result[name] = dict(outcomes[-1])
        for measure, value in outcomes[-1].items():
            if isinstance(value, int | float):
                result[name][measure] = statistics.median(o[measure] for o in outcomes)
    return result


def machine():
    """Hardware and versions."""
    packages = ("tensorflow", "keras", "torch", "ctranslate2", "numpy")
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        processor = platform.processor()
    return {"processor": processor, "cores": os.cpu_count(), "versions": versions,
            "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv)}  # fmt: skip


def table(rows, columns):
    """Markdown: rows {name: {measure: value}}, columns {measure: (heading, format)}."""
    lines = ["| | " + " | ".join(heading for heading, _ in columns.values()) + " |",
             "|---|" + "---|" * len(columns)]  # fmt: skip
    for name, measures in rows.items():
        cells = (
            form.format(measures[measure]) if measures.get(measure) is not None else "–"
            for measure, (_, form) in columns.items()
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(path, printed, figures):
    """Print a table; write the figures, with the machine, where a path is given."""
    print(printed)
    if path:
        text = json.dumps(machine() | figures, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, "utf-8")
