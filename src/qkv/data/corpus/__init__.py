<<<<<<< HEAD
"""Text and encoded data of any size: documents, shards, streams of tokens."""
=======
"""Text of any size, read a piece at a time."""
>>>>>>> formats
