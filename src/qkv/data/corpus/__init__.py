"""Text and encoded data of any size: documents, shards, streams of tokens."""
