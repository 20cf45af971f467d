"""Experiments: patches of the source, and the programs that run and compare them."""
