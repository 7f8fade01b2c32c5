"""How alike two candidates are, in several respects: each measure for all pairs at once, from values alone."""
