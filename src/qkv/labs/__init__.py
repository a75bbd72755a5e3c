"""The notes' claims as runnable experiments, one file each."""

from qkv.labs.catalogue import all_labs, find
from qkv.labs.lab import Lab, Settings, Table, Verdict, Words
from qkv.labs.runner import Report, run_lab, write

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
