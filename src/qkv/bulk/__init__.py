"""Work on files of any number of lines, in parts, in one process or on many workers."""

from qkv.bulk.job import BulkJob, run_bulk
from qkv.bulk.parts import Part, cut_into_parts

__all__ = ["BulkJob", "Part", "cut_into_parts", "run_bulk"]
