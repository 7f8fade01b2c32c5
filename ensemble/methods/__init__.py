"""Ways of combining what the members want, one small file each."""

METHODS = {"unite": "the mean over the union of every member's top k tokens (Yao et al., ICLR 2025)"}
"""The methods, with what each one does in a line."""
