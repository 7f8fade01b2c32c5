"""Which candidates form the set: the rules of the paper, and copies."""
