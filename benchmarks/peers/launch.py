"""train.py from launch to its first step, and the most memory that it had."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import sentences


def first_step(job):
    """Seconds until the first step is written down; then the run is stopped."""
    run = Path(job["folder"]) / f"run-{time.time()}"
    began = time.time()
    command = [sys.executable, "train.py", "--corpus", job["corpus"], "--cache-dir", job["cache"],
               "--runs-dir", str(run.parent), "--name", run.name]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and metrics.stat().st_size:
            seconds = time.time() - began
            process.send_signal(signal.SIGTERM)
            process.communicate()
            return seconds
        time.sleep(0.02)
    raise SystemExit(process.stderr.read().decode())


if __name__ == "__main__":
    job = sentences.the_job()
    seconds = first_step(job)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"seconds_to_first_step": seconds, "peak_mb": peak}))
