"""The demo: a pool of tiny models, the word problems that they solve, and the scripts that make both."""
