"""Time from the launch of train.py to its first logged step, and its peak memory.

The memory is private: without the pages of mapped files.
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import sentences


def private_kib(pid: int) -> int:
    """Return the memory of a process in KiB, without pages of files; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def first_step(job: dict) -> dict[str, float]:
    """Return the seconds until the first step is logged, and the peak memory. Stops the run."""
    run = Path(job["folder"]) / f"run-{time.time()}"
    start = time.time()
    command = [sys.executable, "train.py", "--corpus", job["corpus"], "--cache-dir", job["cache"]]
    command += ["--runs-dir", str(run.parent), "--name", run.name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, private_kib(process.pid))
        metrics = run / "metrics.jsonl"
        if metrics.exists() and metrics.stat().st_size:
            seconds = time.time() - start
            process.send_signal(signal.SIGTERM)
            process.communicate()
            return {"seconds_to_first_step": seconds, "peak_mb": peak / 1024}
        time.sleep(0.02)
    raise SystemExit(process.stderr.read().decode())


if __name__ == "__main__":
    print(json.dumps(first_step(sentences.load_job())))
