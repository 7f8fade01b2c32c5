"""A run: its result, its folder, and what runs in production from it."""
