"""Tokenizers of other libraries, read and written."""
