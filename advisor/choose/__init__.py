"""Which candidates form the set: the rules, the race and the search."""
