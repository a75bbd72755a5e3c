"""Side-by-side measurements against peers: each one a command that prints a ratio."""
