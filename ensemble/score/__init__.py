"""Log-probabilities of given texts: choices and long passages."""
