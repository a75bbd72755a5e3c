"""Answers about a traced pass or a model, one file each: what it is and how it shows itself."""
