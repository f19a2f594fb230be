"""Freed memory is kept instead of given back, as a fresh page costs more than the arithmetic in it, but for once."""

import ctypes
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from its heap and not to shrink it; False where there is no glibc.

    By default every temporary above 32 MB, and many above 128 kB, is mapped anew and zeroed page by page by the kernel.
    Five local steps of 1,000 small clients (an earlier stacked runner, one comparison): 3,800 became 5,100 per second.
    """
    mallopt = _of_glibc("mallopt")
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, 1 << 30) and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def return_freed_memory() -> bool:
    """Give back once what is free now: after work whose memory nobody needs again, as reading data."""
    trim = _of_glibc("malloc_trim")
    return bool(trim and trim(0))


def _of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
