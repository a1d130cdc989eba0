"""Gives freed memory back to the system.

glibc keeps what a thread has freed for threads that share its part of the heap. Work that takes much memory in changing
threads, as loading models does, would so make a process grow for hours.

Source: malloc_trim(3).
"""

import ctypes


def return_free_memory() -> None:
    """Give whole pages of freed memory back; other C libraries than glibc do so themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
