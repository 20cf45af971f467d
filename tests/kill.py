"""Kill training at random moments: python -m tests.kill --times 50

Not part of the suite; a kill takes a quarter of a minute. Small runs, each with its own cache, are
killed while they start, train the tokenizer, write the cache, train, save and validate, and are
resumed until they end. Their last checkpoint and their metrics must then equal, bit for bit, those
of a run that was not killed.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.helpers import assert_same_state, command_line, metrics_of, state

ROOT = Path(__file__).resolve().parents[1]
# train.py, but it saves often.
PROGRAM = """
from training.command_line import parse_config
CONFIG = parse_config("train")
import train
from training import run

run.SAVE_EVERY = 0.05  # seconds
train.train(CONFIG)
"""
SETTINGS = {"corpus": "mini:3000", "d_model": 32, "num_layers": 1, "epochs": 3, "vocab_size": 2000}
KILLS = 6  # at most, of a run
TIMEOUT = 600  # seconds that a process may take


def start(folder: Path) -> subprocess.Popen:
    """Start the run of a folder, or resume it."""
    run = folder / "run"
    if run.exists() and not (run / "config.json").exists():  # killed before it was complete
        shutil.rmtree(run)
    settings = {"resume": run} if run.exists() else SETTINGS | {"name": "run", "runs_dir": folder}
    flags = command_line(settings | {"cache_dir": folder / "cache"})
    with open(folder / "log", "w") as log:
        command = [sys.executable, "-c", PROGRAM, *flags]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def finish(folder: Path) -> None:
    """Start or resume the run of a folder, and wait until it ends."""
    assert start(folder).wait(TIMEOUT) == 0, (folder / "log").read_text("utf-8", "replace")


def main() -> None:
    """Kill runs and print a line for each kill."""
    parser = argparse.ArgumentParser("python -m tests.kill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=50, help="number of kills [50]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments [0]")
    flags = parser.parse_args()
    draws, kills = random.Random(flags.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed = Path(scratch, "undisturbed")
        undisturbed.mkdir()
        started = time.monotonic()
        finish(undisturbed)
        duration = time.monotonic() - started
        while kills < flags.times:
            folder = Path(scratch, f"after-{kills}")
            folder.mkdir()
            for _ in range(min(KILLS, flags.times - kills)):
                process, seconds = start(folder), draws.uniform(0, duration)
                time.sleep(seconds)
                kills += process.poll() is None
                process.kill()
                process.wait()
                print(f"kill {kills}: after {seconds:.1f} s", flush=True)
            finish(folder)
            assert_same_state(state(folder / "run"), state(undisturbed / "run"))
            assert metrics_of(folder / "run") == metrics_of(undisturbed / "run")
            print("same checkpoint, same metrics", flush=True)


if __name__ == "__main__":
    main()
