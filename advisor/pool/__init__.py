"""The pool file, and what each of its lines stands for."""
