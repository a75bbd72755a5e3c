"""Claims about the Transformer as runnable experiments, a folder each."""

from qkv_labs.catalogue import all_labs, find
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.runner import Report, run_lab, write

__all__ = [
    "Lab",
    "Report",
    "Settings",
    "Table",
    "Verdict",
    "Words",
    "all_labs",
    "find",
    "run_lab",
    "write",
]
