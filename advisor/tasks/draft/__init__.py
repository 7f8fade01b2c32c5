"""A first task file for data: where its questions are, what its columns probably mean, and the file's text."""
