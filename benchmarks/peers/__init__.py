"""The contestants of the benchmarks: `python -m benchmarks.peers.NAME JOB.json`."""
