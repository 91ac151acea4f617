"""The disk cache: round trips, damage, privacy, an unusable folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from braze.runtime.cache import MAGIC, DiskCache, content_key


def test_round_trip_and_counts(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    assert cache.get("ab") is None
    cache.put("ab", b"payload" * 100)
    assert DiskCache(tmp_path / "c").get("ab") == b"payload" * 100
    assert (cache.counts.misses, cache.counts.written) == (1, 1)
    assert not list((tmp_path / "c").glob(".tmp-*"))


@pytest.mark.parametrize("damage", [b"", MAGIC, b"\x00", b"other"], ids=["empty", "short", "flipped", "replaced"])
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path: Path, damage: bytes) -> None:
    cache = DiskCache(tmp_path)
    cache.put("k", b"0123456789")
    path = tmp_path / "k"
    data = bytearray(path.read_bytes())
    if damage == b"\x00":
        data[-1] ^= 1
    path.write_bytes(bytes(data) if damage == b"\x00" else damage)
    assert cache.get("k") is None
    assert cache.counts.damaged == 1 and not path.exists()
    cache.put("k", b"new")
    assert cache.get("k") == b"new"


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    DiskCache(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    DiskCache(open_folder)
    assert open_folder.stat().st_mode & 0o077 == 0


def test_an_unusable_folder_turns_the_cache_off(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = DiskCache(blocked / "cache")
    cache.put("k", b"x")
    assert cache.get("k") is None and DiskCache(None).get("k") is None


def test_keys_tell_lists_apart() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("ab") == content_key(b"ab")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_not_an_error(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    tmp_path.chmod(0o500)
    cache.put("k", b"x")
    tmp_path.chmod(0o700)
    assert cache.get("k") is None


MAKER = """
import sys, time
from pathlib import Path
from braze.runtime.cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
with cache.exclusive("abcd") as found:
    if found is None:
        time.sleep(0.3)
        cache.put("abcd", b"made by " + sys.argv[2].encode())
        print("made")
    else:
        print(found.decode())
"""


def test_processes_that_start_together_make_an_entry_once(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-c", MAKER, str(tmp_path / "c")]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = [subprocess.Popen([*command, str(k)], **pipes) for k in range(3)]
    for w in workers:
        assert w.stdout.readline() == "ready\n"
    for w in workers:
        w.stdin.write("go\n")
        w.stdin.flush()
    said = [w.communicate(timeout=60)[0].strip() for w in workers]
    assert said.count("made") == 1 and sum(s.startswith("made by") for s in said) == 2


def test_exclusive_without_a_folder_or_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from braze.runtime import cache as module

    with DiskCache(None).exclusive("ab") as found:
        assert found is None

    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise OSError("no locks here")

    cache = DiskCache(tmp_path)
    cache.put("ab", b"1")
    with cache.exclusive("ab") as found:
        assert found == b"1"
    monkeypatch.setattr(module.FileLock, "acquire", refuse)
    with cache.exclusive("ab") as found:
        assert found is None
