"""Operators that give no tensor: checks, marks for the allocator, and questions that types alone answer."""

from __future__ import annotations

from typing import Any

from ...ir import TensorType, known_eq
from ..registry import rule


@rule(
    """_assert_async _assert_tensor_metadata record_stream _linalg_check_errors _functional_assert_async
    _validate_compressed_sparse_indices"""
)
def nothing(*args: Any, **kw: Any) -> None:
    return None


@rule("is_same_size")
def is_same_size(a: TensorType, b: TensorType) -> bool:
    return len(a.sizes) == len(b.sizes) and all(known_eq(m, n) for m, n in zip(a.sizes, b.sizes))


@rule("is_pinned is_coalesced")
def no(x: TensorType, *rest: Any) -> bool:
    return False
