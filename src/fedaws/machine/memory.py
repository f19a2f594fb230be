"""Keep freed memory instead of giving it back: a fresh page costs more than the arithmetic done in it."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from its heap and not to shrink it; False where there is no glibc.

    By default every temporary above 32 MB, and many above 128 kB, is mapped anew and zeroed page by page by the kernel.
    Five local steps of 1,000 small clients (an earlier stacked runner, one comparison): 3,800 became 5,100 per second.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
