"""How the C library treats memory that was freed."""

from __future__ import annotations

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in malloc.h


@cache
def keep_freed_memory() -> None:
    """Let the C library use freed memory again instead of returning it to the system.

    Else each large temporary tensor is made of fresh pages, which the system must fill one by one.
    `device.release_memory` returns it all the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    # The second call alone would fix the first threshold at a low value.
    if mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
