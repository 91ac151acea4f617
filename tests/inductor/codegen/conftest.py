"""Fixtures of the code generators' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from triton_interpreter import Interpreter


@pytest.fixture(scope="module")
def triton_run() -> Iterator[Interpreter]:
    """Triton's interpreter, in a process of its own."""
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()
