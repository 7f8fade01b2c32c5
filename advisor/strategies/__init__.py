"""The strategies: what could run in production, from stored answers and from models."""
