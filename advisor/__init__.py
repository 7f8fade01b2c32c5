"""Which language models can be ensembled, in which order, whether it pays, and how sure that is."""
