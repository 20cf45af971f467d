"""The contestants: each a process of its own, `python -m benchmarks.peers.NAME JOB.json`."""
