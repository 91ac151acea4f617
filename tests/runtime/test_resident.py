"""The compiler's pages are let go, and come back when it is used again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import braze
from braze.runtime import resident


def resident_bytes(start: int) -> int:
    """Bytes in memory of the mapping at an address."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{start:x}-"):
            return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("Rss:"))
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_pages_of_the_compiler_are_let_go() -> None:
    def compiled(k: int) -> torch.Tensor:
        fast = braze.compile(lambda x: (x * k).sin().sum(-1), options={"disk_cache": False})
        out: torch.Tensor = fast(torch.ones(3, 50 + k))
        return out

    compiled(1)
    code = max(resident._library(), key=lambda m: m[1])[0]
    before = resident_bytes(code)
    resident.let_go_of_compiler()
    assert resident_bytes(code) < before / 4
    torch.testing.assert_close(compiled(2), torch.full((3,), 52.0) * torch.tensor(2.0).sin())
    assert resident_bytes(code) > before / 4
