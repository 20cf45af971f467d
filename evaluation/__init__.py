"""What a finished model is worth, and what it looks like inside."""
