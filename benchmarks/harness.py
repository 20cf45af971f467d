"""Run contestants in turn, each in its own process, and report medians."""

import argparse
import json
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from training.machine import cores, cpu_info
from utils import make_parser, write_json

ROOT = Path(__file__).resolve().parents[1]

Rows = dict[str, dict]  # the measures of each row of a table: {name: {measure: value}}
Columns = dict[str, tuple[str, str]]  # {measure: (heading, format)}


def benchmark_parser(description: str) -> argparse.ArgumentParser:
    """Create a parser with the flags that all benchmarks share."""
    parser = make_parser(description, prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contestant [3]")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    return parser


def run_once(contestant: str, job: dict) -> dict | None:
    """Run a contestant, such as "ours.train", and return its measurements; None if it fails."""
    command = [sys.executable, "-m", "benchmarks.peers", contestant]
    job = json.dumps(job | {"launched": time.time()})
    result = subprocess.run(command, cwd=ROOT, input=job, capture_output=True, text=True)
    if result.returncode:
        print(f"{contestant} failed: {result.stderr[-3000:]}", file=sys.stderr)
        return None
    return json.loads(result.stdout.splitlines()[-1])


def medians(outcomes: list[dict]) -> dict:
    """Return the median of each measure. One that is not a number is that of the last outcome."""
    return {
        name: statistics.median(outcome[name] for outcome in outcomes)
        if isinstance(value, int | float)
        else value
        for name, value in outcomes[-1].items()
    }


def run_in_turn(
    contestants: dict[str, tuple[str, dict]], rounds: int
) -> Iterator[tuple[str, Rows]]:
    """Run all contestants once, then all again, and so on.

    contestants: {name: (function of benchmarks.peers, job)}. Yields, after each process, the name
    of the contestant and the medians of all contestants so far. A contestant that fails is left out
    of later rounds.
    """
    contestants, outcomes = dict(contestants), {}
    for number in range(1, rounds + 1):
        for name, (function, job) in list(contestants.items()):
            print(f"round {number} of {rounds}: {name}", file=sys.stderr, flush=True)
            if (outcome := run_once(function, job)) is None:
                del contestants[name]
                continue
            outcomes.setdefault(name, []).append(outcome)
            yield name, {name: medians(each) for name, each in outcomes.items()}


def machine() -> dict:
    """Return the processor, versions, date and command."""
    versions = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "torch", "ctranslate2", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": cpu_info().get("model name") or platform.processor(),
        "cores": len(cores()),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }


def cells(row: dict, columns: Columns) -> list[str]:
    """Format the measures of a row; "–" stands for one that is missing."""
    return [
        form.format(row[measure]) if measure in row else "–"
        for measure, (_, form) in columns.items()
    ]


def table(rows: Rows, columns: Columns) -> str:
    """Format a table in Markdown."""
    headings = [heading for heading, _ in columns.values()]
    lines = [["", *headings], ["---"] * (1 + len(columns))]
    lines += [[name, *cells(row, columns)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(measured: Iterator[tuple[str, Rows]], columns: Columns, path: Path | None) -> None:
    """Print each row when it is measured, and finally a table, also if interrupted.

    measured: yields the name of a row that is new or has changed, and all rows so far. path: a JSON
    file for the rows and the machine.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = {}
    try:
        for name, rows in measured:
            values = zip(cells(rows[name], columns), columns.values(), strict=True)
            known = [f"{cell} {heading}" for cell, (heading, _) in values if cell != "–"]
            print(f"{name}: {', '.join(known)}", file=sys.stderr, flush=True)
    finally:
        print(table(rows, columns))
        if path:
            write_json(path, machine() | {"rows": rows})
