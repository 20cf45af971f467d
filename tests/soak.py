"""Train for long and watch what must not grow: python -m tests.soak --minutes 30 [-- FLAGS]

Not a part of the suite. Memory, the processor time of a step, and the run folder's size are taken
every ten seconds, and told by tenths of the time. FLAGS are train.py's.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EVERY = 10  # seconds
FLAGS = ["--corpus", "mini:3000", "--epochs", "100000", "--shards", "1"]


def sample(process, run):
    """Seconds by the clock and of a core, steps, bytes of memory, of the folder, of checkpoints."""
    proc = Path("/proc", str(process.pid))
    ticks = proc.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    pages = int(proc.joinpath("statm").read_text().split()[1])
    text = (run / "metrics.jsonl").read_text()
    steps = json.loads(text[: text.rfind("\n")].rpartition("\n")[2])["step"]
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    saved = sum(size for path, size in sizes.items() if "checkpoints" in path.parts)
    core = sum(map(int, ticks)) / 100
    return time.monotonic(), core, steps, 4096 * pages, sum(sizes.values()) - saved, saved


def main():
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="how long [30]")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    flags, samples = parser.parse_args(words[:cut]), []
    folder = Path(tempfile.mkdtemp())
    command = [sys.executable, "train.py", *FLAGS, *words[cut + 1 :], "--name", "soak",
               "--runs-dir", folder, "--cache-dir", folder / "cache"]  # fmt: skip
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([str(w) for w in command], cwd=ROOT, stdout=log, stderr=log)
    try:
        until = None
        while until is None or time.monotonic() < until:
            time.sleep(EVERY)
            assert process.poll() is None, (folder / "log").read_text()
            try:
                samples.append(sample(process, folder / "soak"))
            except (OSError, IndexError, ValueError):  # not begun, or a file that was just replaced
                continue
            # From the second epoch on: by then all is traced and allocated that ever will be.
            if until is None and (folder / "log").read_text().count("validation loss") > 1:
                until, samples = time.monotonic() + 60 * flags.minutes, []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()
    values = np.array(samples)
    print("minutes   steps  ms of a core a step  memory, MB  folder, MB  checkpoints, MB")
    edges = np.linspace(0, len(values) - 1, 11).astype(int)
    for low, high in zip(edges, edges[1:], strict=False):
        _, core, steps, *_ = values[high] - values[low]
        memory, kept, saved = values[low:high, 3:].mean(axis=0) / 1e6
        clock, _, step, *_ = values[high] - values[0]
        cost = 1000 * core / max(1, steps)
        print(f"{clock / 60:7.1f}{step:8,.0f}{cost:21.2f}{memory:12.1f}{kept:12.2f}{saved:17.2f}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
