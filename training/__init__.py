"""Support for train.py: the run directory, checkpoints, provenance and replicas."""
