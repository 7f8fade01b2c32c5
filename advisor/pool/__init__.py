"""The pool of candidates: the pool file, checks of its models, and what decides their responses."""
