"""A trained model at work, and what it is worth: translating, measuring, scoring."""
