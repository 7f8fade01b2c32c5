"""Tasks without a reference: a model grades single responses, or says which of two is better."""
