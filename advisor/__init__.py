"""Which language models can be ensembled, in which order, whether it pays, and how sure that is."""

from advisor.api import SelectResult, select

__all__ = ["SelectResult", "select"]
