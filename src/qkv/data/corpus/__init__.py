"""Text of any size, read a piece at a time."""
