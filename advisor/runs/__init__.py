"""A run folder: its files, their shapes, and what is read of them. `advisor/jobs` makes what they contain."""
