"""The on-disk cache as a whole: what is in it, how large it is, emptying it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from .cache import MAGIC

KEPT = ("machine.json",)  # measured facts about the machine, small


@dataclass(frozen=True)
class Entry:
    """One file of the cache. ``age``: seconds since it was written."""

    path: Path
    kind: str
    nbytes: int
    age: float


def entries(root: Path) -> list[Entry]:
    """Every entry under a cache folder, newest first; files that braze did not write are not counted."""
    now, out = time.time(), []
    for path in root.rglob("*") if root.is_dir() else ():
        try:
            if path.is_symlink() or not path.is_file() or not ours(path):
                continue
            info = path.stat()
        except OSError:
            continue
        kind = str(path.parent.relative_to(root)) if path.parent != root else "machine"
        out.append(Entry(path, kind, info.st_size, max(0.0, now - info.st_mtime)))
    return sorted(out, key=lambda e: e.age)


def ours(path: Path) -> bool:
    """Whether braze wrote a file: its first bytes say so, or it is one of the few named ones, or half written."""
    if path.name in KEPT or path.name.startswith(".tmp-"):
        return True
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC


def clear(root: Path, older_than: float = 0.0) -> tuple[int, int]:
    """Delete entries written more than ``older_than`` seconds ago; (entries, bytes) deleted. Other files stay."""
    count = nbytes = 0
    for e in entries(root):
        if e.age >= older_than:
            try:
                e.path.unlink()
            except OSError:
                continue
            count, nbytes = count + 1, nbytes + e.nbytes
    return count, nbytes
