"""`python -m qkv`: the command line."""

from qkv.cli import main

main()
