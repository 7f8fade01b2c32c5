"""A finished run: its files, written and read."""
