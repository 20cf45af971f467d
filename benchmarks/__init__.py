"""Speed, side by side with what a user would run instead. Run by hand, never as a test."""
