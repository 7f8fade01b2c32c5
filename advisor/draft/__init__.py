"""A first task file for data that somebody has: what is in the data, what its columns probably mean, and the file."""
