"""Tests of the conversion of other people's checkpoints."""
