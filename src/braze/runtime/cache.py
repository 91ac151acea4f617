"""The on-disk cache: bytes by content key, verified on every read.

One file an entry: magic, SHA-256 of the payload, payload.  Files are written to a temporary name and renamed, so a
reader sees all of an entry or nothing; the folder is private to the user (0700).  A damaged entry is deleted and counts
as a miss.  Nothing is unpickled.  An unusable folder turns the cache off (a miss is never an error).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

MAGIC = b"braze-cache-1\n"
PATIENCE = 30.0  # seconds to wait for another process' entry


@dataclass
class Counts:
    """What the cache did in this process."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    written: int = 0


_OPENED: weakref.WeakSet[DiskCache] = weakref.WeakSet()


def opened() -> dict[str, Counts]:
    """What the caches of this process did, by folder."""
    return {str(c.folder or "off"): c.counts for c in sorted(_OPENED, key=lambda c: str(c.folder))}


class DiskCache:
    """``get`` and ``put`` bytes under a hexadecimal key. ``folder`` None: a cache that holds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.counts = Counts()
        _OPENED.add(self)
        self.folder = folder if folder is not None and _private(folder) else None

    def get(self, key: str) -> bytes | None:
        """The payload, or None when there is no sound entry."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            data = path.read_bytes()
        except OSError:
            self.counts.misses += 1
            return None
        payload = data[len(MAGIC) + 32 :]
        if data.startswith(MAGIC) and data[len(MAGIC) : len(MAGIC) + 32] == hashlib.sha256(payload).digest():
            self.counts.hits += 1
            return payload
        self.counts.damaged += 1
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, payload: bytes) -> None:
        """Store atomically; a full or read-only disk is ignored."""
        if self.folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".tmp-")
            with os.fdopen(handle, "wb") as f:
                f.write(MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(name, self.folder / key)
            self.counts.written += 1
        except OSError:
            return

    @contextmanager
    def exclusive(self, key: str) -> Iterator[bytes | None]:
        """For making a missing entry once on a machine: waits while another process makes it (ranks start together and
        compile the same), then gives the entry if it is there by now. After ``PATIENCE`` seconds, or where locks do not
        work, it gives None: made twice is slower, never wrong. A process that dies lets go of its lock."""
        if self.folder is None:
            yield None
            return
        # on the machine's own disk, since the cache may lie on a network's; few files, so that none need be deleted
        locks = Path(tempfile.gettempdir()) / f"braze-locks-{os.getuid() if hasattr(os, 'getuid') else 0}"
        lock = FileLock(locks / content_key(str(self.folder.resolve()), key[:2])[:16], timeout=PATIENCE)
        try:
            if not _private(locks):
                raise OSError
            lock.acquire()
        except (OSError, Timeout, NotImplementedError):
            yield None
            return
        try:
            yield self.get(key) if (self.folder / key).exists() else None
        finally:
            lock.release()


def _private(folder: Path) -> bool:
    """Make the folder, 0700; False when it cannot be used or is another user's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        if hasattr(os, "getuid") and info.st_uid != os.getuid():
            return False
        if info.st_mode & 0o077:
            folder.chmod(0o700)
        return True
    except OSError:
        return False


def content_key(*parts: str | bytes) -> str:
    """A hexadecimal SHA-256 over the parts, each with its length so that no two lists collide."""
    h = hashlib.sha256()
    for p in parts:
        data = p.encode() if isinstance(p, str) else p
        h.update(b"%d:" % len(data))
        h.update(data)
    return h.hexdigest()
