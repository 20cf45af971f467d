"""The contestants of the benchmarks. Each runs in a process of its own."""
