"""Decoding with steps captured as CUDA graphs: one closed batch of equal settings at a time."""
