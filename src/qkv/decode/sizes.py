"""Sizes that are rounded up, so that few of them occur."""

from __future__ import annotations


def power_of_two(size: int, least: int = 1) -> int:
    """Round up to a power of two."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def some_more(size: int) -> int:
    """Return room for this many and for an eighth more, a multiple of 16."""
    return -(-(size + size // 8) // 16) * 16
