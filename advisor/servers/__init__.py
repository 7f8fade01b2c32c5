"""Candidates behind an OpenAI-compatible server: the server gives their texts, and not their probabilities."""
