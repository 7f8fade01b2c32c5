"""Running one model on a batch of token sequences: the model runner, its key-value cache, drafts."""
