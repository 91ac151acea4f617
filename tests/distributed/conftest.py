"""Pools of gloo processes, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def ranks2() -> Iterator[Ranks]:
    pool = Ranks(2)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def ranks4() -> Iterator[Ranks]:
    pool = Ranks(4)
    yield pool
    pool.stop()
