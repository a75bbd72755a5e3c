"""Hugging Face folders, read and written."""
