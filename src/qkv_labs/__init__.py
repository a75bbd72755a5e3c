"""Claims about the Transformer as runnable experiments, a folder each."""

from qkv_labs.catalogue import all_labs, find
from qkv_labs.lab import (
    Comparison,
    Figures,
    Interval,
    Lab,
    Settings,
    SubClaim,
    Table,
    Verdict,
    Words,
    compare,
)
from qkv_labs.runner import Report, run_lab, write

__all__ = [
    "Comparison",
    "Figures",
    "Interval",
    "Lab",
    "Report",
    "Settings",
    "SubClaim",
    "Table",
    "Verdict",
    "Words",
    "all_labs",
    "compare",
    "find",
    "run_lab",
    "write",
]
