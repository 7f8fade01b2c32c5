"""Saved ensembles: ensemble.json, its folder and its model card."""
