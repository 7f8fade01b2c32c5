"""The chosen set on held-out questions, and the advice that follows from it."""
