"""Which candidates form the set: the rules of the paper, races, copies, predictions and the search."""
