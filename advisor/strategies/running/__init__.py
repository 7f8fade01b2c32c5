"""Asking models by a strategy."""
