"""The checked JSON objects of ``strategy.json``."""
