"""kill -9 again and again: python -m tests.kill --times 50

Not a part of the suite, which kills a run once in each way (tests/test_run.py): this takes a
quarter of a minute a kill. Small runs, each with a cache of its own, are killed while they read,
train the tokenizer, write the cache, step, save and validate, each time a random moment after that
has begun, and taken up again, until they end. Then their last checkpoint and their metrics must be
those of a run that nobody disturbed, to the bit.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[1]
# As train.py, but for a checkpoint after each second step instead of every three minutes, and for
# saying when it saves and validates.
OFTEN = """
import sys
sys.path.insert(0, ".")
from training import run as run_folder
from evaluation import report

def said(room, name, before, after):
    function = getattr(room, name)
    def wrapped(*arguments):
        print(before, flush=True)
        result = function(*arguments)
        print(after, flush=True)
        return result
    setattr(room, name, wrapped)

said(run_folder.Run, "keep", "saving", "stepping")
said(report, "validation", "validating", "validated")
import train
train.SAVE_EVERY = 0.05
train.train(train.from_flags("train"))
"""
FLAGS = ["--corpus", "mini:3000", "--d-model", "32", "--num-layers", "1", "--epochs", "3",
         "--vocab-size", "2000"]  # fmt: skip
# What is said when each begins, and how many seconds later a kill comes at the most.
ONCE = {"reading": 0.2, "training the tokenizer": 0.2, "encoding": 0.3}  # until the cache is whole
PHASES = ONCE | {"saving": 0.02, "validating": 1, "stepping": 0.2, "starting": 3}


def start(folder):
    """Begin the run of a folder, or go on with it."""
    run = folder / "run"
    if run.exists() and not (run / "config.json").exists():  # as the message says
        shutil.rmtree(run)
    which = ["--resume", run] if run.exists() else [*FLAGS, "--name", "run", "--runs-dir", folder]
    command = [sys.executable, "-c", OFTEN, *which, "--cache-dir", folder / "cache"]
    with open(folder / "log", "w") as log:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=log, stderr=log)


def log(folder):
    return "starting\n" + (folder / "log").read_text("utf-8", "replace")


def state(folder):
    """All tensors of the last checkpoint but the clock's, and the metrics but times."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder / "run" / "checkpoints"))
    names = sorted(reader.get_variable_to_shape_map())
    free = ("_CHECKPOINTABLE", "seconds", "save_counter", "metrics_size")
    tensors = {n: reader.get_tensor(n) for n in names if not n.startswith(free)}
    lines = [json.loads(x) for x in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in ("seconds", "tokens_per_second"):
            line.pop(name, None)
    return tensors, lines


def phase(folder):
    """What a run was doing when it was killed, by what it said last."""
    said = log(folder)
    return max(PHASES, key=lambda name: said.rfind(name))


def killed(process, folder, aim, draws):
    """Kill a run a random moment after it has begun to do something → whether it still ran."""
    count = draws.randint(1, 5) if aim in ("saving", "stepping") else 1
    while log(folder).count(aim + "\n" if aim in ("saving", "stepping") else aim) < count:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    time.sleep(draws.uniform(0, PHASES[aim]))
    if process.poll() is not None:
        return False
    process.kill()
    process.wait()
    return True


def main():
    parser = argparse.ArgumentParser("python -m tests.kill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=50, help="kills [50]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    flags = parser.parse_args()
    draws, kills, phases, runs, torn = random.Random(flags.seed), 0, Counter(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed = Path(scratch) / "undisturbed"
        undisturbed.mkdir()
        assert start(undisturbed).wait() == 0, log(undisturbed)
        tensors, lines = state(undisturbed)
        while kills < flags.times:
            runs += 1
            folder = Path(scratch) / f"run-{runs}"
            folder.mkdir()
            for aim in PHASES:
                whole = [path for path in folder.glob("cache/*") if "unfinished" not in path.name]
                if aim in ONCE and whole:
                    continue
                process = start(folder)
                if kills < flags.times and killed(process, folder, aim, draws):
                    kills += 1
                    phases[phase(folder)] += 1
                    print(f"kill {kills}: {phase(folder)}", flush=True)
                assert process.wait() in (0, -9), log(folder)
                torn += log(folder).count("cannot be read")
            assert start(folder).wait() == 0, log(folder)
            torn += log(folder).count("cannot be read")
            own, own_lines = state(folder)
            assert own.keys() == tensors.keys() and own_lines == lines
            assert all(np.array_equal(own[name], tensors[name]) for name in tensors)
            print(f"run {runs} ended with the same {len(tensors)} tensors and {len(lines)} lines")
    print(f"{kills} kills in {runs} runs, every one survived, nothing lost: {dict(phases)}; "
          f"{torn} torn checkpoints were named and passed over")  # fmt: skip


if __name__ == "__main__":
    main()
