"""The bundled pool of tiny models, the word problems that they solve, and how both are made."""
