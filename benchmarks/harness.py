"""Run contestants in turn, each in its own process, and report medians and ratios."""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from training.machine import cores, cpu_info
from utils import make_parser

ROOT = Path(__file__).resolve().parents[1]


def benchmark_parser(description: str, rounds: bool = True) -> argparse.ArgumentParser:
    """Create a parser with the flags that all benchmarks share. rounds: whether to add --rounds."""
    parser = make_parser(description, prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}")
    add = parser.add_argument
    if rounds:
        add("--rounds", type=int, default=3, help="runs of each contestant [3]")
    add("--json", type=Path, help="also write the measurements to this file")
    return parser


def run_once(module: str, job: dict) -> dict | None:
    """Run a contestant of benchmarks.peers and return the JSON object that it prints.

    Returns None if there is none. Says so if it fails, or if its packages are missing (status 3).
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job | {"launched": time.time()}, file)
        file.flush()
        command = [sys.executable, "-m", f"benchmarks.peers.{module}", file.name]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 3:
        print(f'{module} was skipped: run pip install -e ".[benchmarks]"', file=sys.stderr)
    elif result.returncode:
        reason = result.stderr[-3000:]
        print(f"{module} failed with status {result.returncode}:\n{reason}", file=sys.stderr)
    # What a contestant had measured before it failed counts.
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def run_in_turn(contestants: dict[str, tuple[str, dict]], rounds: int) -> dict[str, dict]:
    """Run all contestants once, then all again, and so on: {name: {measure: median}}.

    contestants: {name: (module, job)}. Measures that are not numbers are those of the last round. A
    contestant that fails is left out of the result, and of later rounds.
    """
    turns = {name: [] for name in contestants}
    for number in range(1, rounds + 1):
        for name, (module, job) in contestants.items():
            if name in turns:
                print(f"round {number} of {rounds}: {name}", file=sys.stderr, flush=True)
                outcome = run_once(module, job)
                if outcome is None:
                    print(f"no figures for {name}", file=sys.stderr)
                    del turns[name]
                else:
                    turns[name].append(outcome)
    result = {}
    for name, outcomes in turns.items():
        result[name] = dict(outcomes[-1])
        for measure, value in outcomes[-1].items():
            if isinstance(value, int | float):
                result[name][measure] = statistics.median(o[measure] for o in outcomes)
    return result


def machine() -> dict:
    """Return the processor, versions, date and command."""
    versions = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "torch", "ctranslate2", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    processor = cpu_info().get("model name") or platform.processor()
    return {
        "processor": processor,
        "cores": len(cores()),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }


def table(rows: dict[str, dict], columns: dict[str, tuple[str, str]]) -> str:
    """Format Markdown: rows {name: {measure: value}}, columns {measure: (heading, format)}."""
    lines = ["| | " + " | ".join(heading for heading, _ in columns.values()) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for name, measures in rows.items():
        cells = (
            form.format(measures[measure]) if measures.get(measure) is not None else "–"
            for measure, (_, form) in columns.items()
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(path: Path | None, tables: str, measurements: dict) -> None:
    """Print the tables; write the measurements and the machine to a file if one is given."""
    print(tables)
    if path:
        text = json.dumps(machine() | measurements, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, "utf-8")
