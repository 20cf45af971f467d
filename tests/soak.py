"""Train for long and measure what must not grow: python -m tests.soak --minutes 30 [-- FLAGS]

Not part of the suite. Measures memory, processor time per step and the size of the run directory
every ten seconds, and prints them for each tenth of the time. FLAGS are those of train.py.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
INTERVAL = 10  # seconds
FLAGS = ["--corpus", "mini:3000", "--epochs", "100000", "--shards", "1", "--name", "soak"]


def measure(pid: int, run: Path) -> tuple[float, ...]:
    """Return seconds of wall time and of processor time, steps, and bytes of memory, of the run
    directory without checkpoints, and of its checkpoints.
    """
    proc = Path("/proc", str(pid))
    ticks = proc.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    pages = int(proc.joinpath("statm").read_text().split()[1])
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    saved = sum(size for path, size in sizes.items() if "checkpoints" in path.parts)
    seconds, step = sum(map(int, ticks)) / 100, json.loads(lines[-1])["step"]
    return time.monotonic(), seconds, step, 4096 * pages, sum(sizes.values()) - saved, saved


def train(folder: Path, minutes: float, flags: list[str]) -> np.ndarray:
    """Train in a process and return the measurements: (times, 6)."""
    directories = ["--runs-dir", str(folder), "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "train.py", *FLAGS, *flags, *directories]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    values, end = [], None
    try:
        while end is None or time.monotonic() < end:
            time.sleep(INTERVAL)
            assert process.poll() is None, (folder / "log").read_text()
            try:
                values.append(measure(process.pid, folder / "soak"))
            except (OSError, IndexError):  # not started, or a file was just replaced
                continue
            # From the second epoch on: all is traced and allocated.
            if end is None and (folder / "log").read_text().count("validation loss") > 1:
                end, values = time.monotonic() + 60 * minutes, []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()
    return np.array(values)


def main() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="duration [30]")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    flags = parser.parse_args(words[:cut])
    with tempfile.TemporaryDirectory() as folder:
        values = train(Path(folder), flags.minutes, words[cut + 1 :])
    print("minutes   steps  core ms per step  memory, MB  directory, MB  checkpoints, MB")
    edges = np.linspace(0, len(values) - 1, 11).astype(int)
    for low, high in zip(edges, edges[1:], strict=False):
        if low == high:
            continue
        _, seconds, steps, *_ = values[high] - values[low]
        memory, directory, saved = values[low:high, 3:].mean(axis=0) / 1e6
        minutes, step = (values[high, 0] - values[0, 0]) / 60, values[high, 2] - values[0, 2]
        print(
            f"{minutes:7.1f}{step:8,.0f}{1000 * seconds / max(1, steps):18.2f}{memory:12.1f}"
            f"{directory:15.2f}{saved:17.2f}"
        )


if __name__ == "__main__":
    main()
