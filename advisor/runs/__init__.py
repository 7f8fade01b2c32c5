"""The files of a run folder: their shapes, writing and reading them."""
