"""Time from the launch of train.py to its first logged step, and its peak memory."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import sentences


def first_step(job: dict) -> float:
    """Return the seconds until the first step is logged, and stop the run."""
    run = Path(job["folder"]) / f"run-{time.time()}"
    start = time.time()
    command = [sys.executable, "train.py", "--corpus", job["corpus"], "--cache-dir", job["cache"]]
    command += ["--runs-dir", str(run.parent), "--name", run.name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and metrics.stat().st_size:
            seconds = time.time() - start
            process.send_signal(signal.SIGTERM)
            process.communicate()
            return seconds
        time.sleep(0.02)
    raise SystemExit(process.stderr.read().decode())


if __name__ == "__main__":
    job = sentences.load_job()
    seconds = first_step(job)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"seconds_to_first_step": seconds, "peak_mb": peak}))
