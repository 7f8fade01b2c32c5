"""Candidates behind an OpenAI-compatible server: they answer questions, and nobody sees their probabilities."""
