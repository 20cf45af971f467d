"""The programs of the documentation: they run walkthrough.md and draw its pictures."""
