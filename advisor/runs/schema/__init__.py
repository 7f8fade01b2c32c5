"""The shapes of a run folder's files: the models that write them, check them, and describe them to people."""
