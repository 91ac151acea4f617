"""Regular expressions on strings that are known while compiling."""

from __future__ import annotations

import re
from typing import Any

import torch

import braze
from braze.api import log_of

PATTERN = re.compile(r"(\d+)_(\w+)")


def parse(x: Any, name: str) -> Any:
    m = PATTERN.match(name)
    if m is None:
        return x, re.split("-", name)
    if m.group(2) == "sin":
        x = x.sin()
    return x * int(m.group(1)), re.sub(r"\d", "", name), PATTERN.sub(r"\2", name), m.groups(), m.span()


def test_known_strings() -> None:
    fast = braze.compile(parse, backend="eager")
    x = torch.randn(3)
    for name in ("3_sin", "12_cos", "a-b", "3_sin"):
        got, want = fast(x, name), parse(x, name)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]
    log = log_of(fast)
    assert not log.breaks and len(log.graphs) == 2  # the third name has no operation to compile
