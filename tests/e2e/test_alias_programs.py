"""Programs of views and in-place writes on inputs that may overlap, compiled and in eager: a spread, or many."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings

sys.path.insert(0, str(Path(__file__).parent))
import alias_programs  # noqa: E402

number = st.integers(0, 999)
programs = st.lists(st.tuples(number, number, number), min_size=1, max_size=9)
returned = st.lists(number, min_size=1, max_size=4)
memories = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=1, max_size=2)
cases = st.tuples(programs, st.lists(number, min_size=2, max_size=2), memories, returned, st.booleans())


def run(case: Any) -> None:
    found = alias_programs.check(*case)
    assume(found != "skipped")
    assert not found, found


quiet = [HealthCheck.filter_too_much, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=quiet)
@given(cases)
def test_a_few(case: Any) -> None:
    run(case)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many() -> None:
    """For BRAZE_FUZZ_SECONDS (an hour by default)."""
    end = time.monotonic() + float(os.environ.get("BRAZE_FUZZ_SECONDS", 3600))
    while time.monotonic() < end:
        settings(max_examples=500, deadline=None, database=None, suppress_health_check=quiet)(given(cases)(run))()
