"""Models behind servers: their addresses, the client, and what servers tell of the next token, by token id."""
