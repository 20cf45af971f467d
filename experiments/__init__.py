"""What was tried, and what can be tried beside the model: `LOG.md` has the results."""
