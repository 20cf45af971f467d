"""kill -9 at random moments, again and again: python -m tests.kill --times 50

Not a part of the suite, which kills a run once in each way (tests/test_run.py): this takes a
quarter of a minute a kill. Small runs, each with a cache of its own, are killed anywhere, in
reading, in tokenizer training, in the cache's writing, in a step, in a save, in validation, and
taken up again, until they end. Then their last checkpoint and their metrics must be those of a run
that nobody disturbed, to the bit.
"""

import argparse
import json
import random
import re
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
# As train.py, but for a checkpoint after each second step instead of every three minutes.
OFTEN = (
    "import runpy, sys; sys.path.insert(0, '.'); sys.argv = ['train.py', *sys.argv[1:]]; "
    "text = open('train.py').read(); assert 'SAVE_EVERY = 180' in text; "
    "text = text.replace('SAVE_EVERY = 180', 'SAVE_EVERY = 0.05'); "
    "exec(compile(text, 'train.py', 'exec'), {'__name__': '__main__'})"
)
FLAGS = ["--corpus", "mini:3000", "--d-model", "32", "--num-layers", "1", "--epochs", "3",
         "--vocab-size", "2000"]  # fmt: skip
PHASES = ("reading", "training the tokenizer", "encoding", "going on", "epoch")


def start(folder):
    """Begin the run of a folder, or go on with it."""
    run = folder / "run"
    if run.exists() and not (run / "config.json").exists():  # as the message says
        shutil.rmtree(run)
    which = ["--resume", run] if run.exists() else [*FLAGS, "--name", "run", "--runs-dir", folder]
    command = [sys.executable, "-c", OFTEN, *which, "--cache-dir", folder / "cache"]
    with open(folder / "log", "w") as log:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=log, stderr=log)


def state(folder):
    """All tensors of the last checkpoint but the clock's, and the metrics but times."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder / "run" / "checkpoints"))
    names = sorted(reader.get_variable_to_shape_map())
    free = ("_CHECKPOINTABLE", "seconds", "save_counter", "metrics_end")
    tensors = {n: reader.get_tensor(n) for n in names if not n.startswith(free)}
    lines = [json.loads(x) for x in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in ("seconds", "tokens_per_second"):
            line.pop(name, None)
    return tensors, lines


def phase(folder):
    """What a run was doing when it was killed, by what it said last."""
    log = (folder / "log").read_text("utf-8", "replace")
    said = [name for name in PHASES if re.search(name, log)]
    return said[-1] if said else "starting"


def main():
    parser = argparse.ArgumentParser("python -m tests.kill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=50, help="kills [50]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    flags = parser.parse_args()
    draws, kills, phases, runs = random.Random(flags.seed), 0, Counter(), 0
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed = Path(scratch) / "undisturbed"
        undisturbed.mkdir()
        began = time.monotonic()
        assert start(undisturbed).wait() == 0, (undisturbed / "log").read_text()
        length = time.monotonic() - began
        tensors, lines = state(undisturbed)
        while kills < flags.times:
            runs += 1
            folder = Path(scratch) / f"run-{runs}"
            folder.mkdir()
            while True:
                process = start(folder)
                # More often late than early: most of a start is TensorFlow's own.
                moment = length * draws.uniform(0.2, 1.1)
                try:
                    status = process.wait(moment if kills < flags.times else None)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    kills += 1
                    phases[phase(folder)] += 1
                    print(f"kill {kills}: {phase(folder)}", flush=True)
                    continue
                assert status == 0, (folder / "log").read_text()
                break
            own, own_lines = state(folder)
            assert own.keys() == tensors.keys() and own_lines == lines
            assert all(np.array_equal(own[name], tensors[name]) for name in tensors)
            print(f"run {runs} ended with the same {len(tensors)} tensors and {len(lines)} lines")
    print(f"{kills} kills in {runs} runs, every one survived, nothing lost: {dict(phases)}")


if __name__ == "__main__":
    main()
