"""Run contestants in turn, each in its own process, and report medians."""

import argparse
import json
import pickle
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from utils import make_parser, positive

ROOT = Path(__file__).resolve().parents[1]

Rows = dict[str, dict]  # the measures of each row of a table: {name: {measure: value}}
Columns = dict[str, tuple[str, str]]  # {measure: (heading, format)}


def benchmark_parser(description: str) -> argparse.ArgumentParser:
    """Create a parser with the flag that all benchmarks share."""
    parser = make_parser(description, prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}")
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each contestant [3]")
    return parser


def run_once(contestant: str, job: dict) -> dict | None:
    """Run a contestant, such as "ours.train", and return its measurements; None if it fails."""
    command = [sys.executable, "-m", "benchmarks.peers", contestant]
    job = pickle.dumps(job | {"launched": time.time()})
    result = subprocess.run(command, cwd=ROOT, input=job, capture_output=True)
    if result.returncode:
        error = result.stderr.decode("utf-8", "replace")[-3000:]
        print(f"{contestant} failed: {error}", file=sys.stderr)
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


def report(measured: Iterator[tuple[str, Rows]], columns: Columns) -> None:
    """Print each row when it is measured, and finally a table, also if interrupted.

    measured: yields the name of a row that is new or has changed, and all rows so far.
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
