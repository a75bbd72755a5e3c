"""Proofs, on the user's machine, that a model's numbers are right."""

from qkv.proofs.proof import Proof
from qkv.proofs.rows import ROWS, verify

__all__ = ["ROWS", "Proof", "verify"]
