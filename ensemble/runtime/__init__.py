"""Running one model on a batch of token rows: the model runner, its key-value cache, drafts."""
