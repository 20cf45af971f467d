"""Did a change help? Trains the model with and without it, and gives a verdict."""
