"""Runs the strategy that a run recommends: one model, a set that decodes, a vote, a cascade or a router."""
