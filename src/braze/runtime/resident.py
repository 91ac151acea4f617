"""Memory that a compiler needs only while it compiles: the pages of LLVM's library, 60 MiB, are let go afterwards.

Pages of code and constants are copies of a file.  The kernel finds them in its cache when they are next used (which
takes milliseconds for a compile), so that a process that trains for hours does not hold what it needed for a second.
"""

from __future__ import annotations

import ctypes
import resource
import struct
from functools import lru_cache
from pathlib import Path

_DONTNEED = 4  # MADV_DONTNEED on Linux
_PAGE = resource.getpagesize()
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61  # bits of /proc/self/pagemap


@lru_cache(maxsize=1)
def _library() -> tuple[tuple[int, int], ...]:
    """(address, bytes) of the mappings of LLVM's library that nothing was written to."""
    found = []
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *rest = line.split(maxsplit=5)
            if access in ("r-xp", "r--p") and "llvmlite" in rest[-1]:
                start, end = (int(x, 16) for x in span.split("-"))
                if _of_file(start, end):
                    found.append((start, end - start))
    except OSError:
        return ()
    return tuple(found)


def _of_file(start: int, end: int) -> bool:
    """Whether no page of the range is the process's own copy, as those with relocations are."""
    with Path("/proc/self/pagemap").open("rb") as f:
        f.seek(start // _PAGE * 8)
        data = f.read((end - start) // _PAGE * 8)
    pages = struct.unpack(f"<{len(data) // 8}Q", data)
    return len(pages) * _PAGE == end - start and all(
        not p & _SWAPPED and (not p & _PRESENT or p & _OF_FILE) for p in pages
    )


def let_go_of_compiler() -> None:
    """Give the library's pages back to the system. Safe at any time: whoever needs them reads them again."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        for start, size in _library():
            advise(ctypes.c_void_p(start), ctypes.c_size_t(size), _DONTNEED)
