"""What a training run leans on: its directory, checkpoints, provenance and replicas."""
