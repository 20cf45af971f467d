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
from collections import Counter
from pathlib import Path

from tests.helpers import assert_same_state, command_line, metrics_of, state

ROOT = Path(__file__).resolve().parents[1]
# train.py, but it saves often, and prints when it saves and validates.
PROGRAM = """
from training.command_line import parse_config
CONFIG = parse_config("train")
import train
from training import checkpoints, run

def announced(function, before, after):
    def wrapped(*arguments, **options):
        print(before, flush=True)
        result = function(*arguments, **options)
        print(after, flush=True)
        return result
    return wrapped

run.SAVE_EVERY = 0.05  # seconds
checkpoints.Checkpoints.save = announced(checkpoints.Checkpoints.save, "saving", "stepping")
train.validation_metrics = announced(train.validation_metrics, "validating", "validated")
train.train(CONFIG)
"""
SETTINGS = {"corpus": "mini:3000", "d_model": 32, "num_layers": 1, "epochs": 3, "vocab_size": 2000}
# A word in the log when each phase begins, and the maximum delay of a kill in seconds.
CACHE_PHASES = {"training the tokenizer": 0.2, "encoding": 0.3}
PHASES = CACHE_PHASES | {"saving": 0.02, "validating": 1, "stepping": 0.2, "starting": 3}
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


def read_log(folder: Path) -> str:
    """Return what the last process of a folder has printed."""
    return "starting\n" + (folder / "log").read_text("utf-8", "replace")


def kill(process: subprocess.Popen, folder: Path, phase: str, draws: random.Random) -> bool:
    """Kill a process a random moment after a phase began. Whether it was still running."""
    repeated = phase in ("saving", "stepping")
    count, word = (draws.randint(1, 5), phase + "\n") if repeated else (1, phase)
    while read_log(folder).count(word) < count and process.poll() is None:
        time.sleep(0.002)
    time.sleep(draws.uniform(0, PHASES[phase]))
    running = process.poll() is None
    process.kill()
    process.wait()
    return running


def finish(folder: Path) -> None:
    """Start or resume the run of a folder, and wait until it ends."""
    assert start(folder).wait(TIMEOUT) == 0, read_log(folder)


def main() -> None:
    """Kill runs and print a line for each kill."""
    parser = argparse.ArgumentParser("python -m tests.kill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=50, help="number of kills [50]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments [0]")
    flags = parser.parse_args()
    draws, phases, runs, damaged = random.Random(flags.seed), Counter(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed = Path(scratch, "undisturbed")
        undisturbed.mkdir()
        finish(undisturbed)
        while phases.total() < flags.times:
            runs += 1
            folder = Path(scratch, f"run-{runs}")
            folder.mkdir()
            for phase in PHASES:
                cached = any(not path.suffix for path in folder.glob("cache/*"))
                if phases.total() == flags.times or (phase in CACHE_PHASES and cached):
                    continue
                if kill(start(folder), folder, phase, draws):
                    phases[phase] += 1
                    print(f"kill {phases.total()}: {phase}", flush=True)
                damaged += read_log(folder).count("is damaged")
            finish(folder)
            damaged += read_log(folder).count("is damaged")
            assert_same_state(state(folder / "run"), state(undisturbed / "run"))
            assert metrics_of(folder / "run") == metrics_of(undisturbed / "run")
            print(f"run {runs}: same checkpoint, same metrics", flush=True)
    print(f"{phases.total()} kills in {runs} runs: {dict(phases)}; {damaged} damaged checkpoints")


if __name__ == "__main__":
    main()
