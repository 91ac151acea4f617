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


@rule("_has_same_storage_numel")
def has_same_storage_numel(a: TensorType, b: TensorType) -> bool:
    """Forward mode asks whether a tangent may stay as it is, and copies it where not."""
    return (a.sizes, a.strides) == (b.sizes, b.strides)


@rule("is_same_size")
def is_same_size(a: TensorType, b: TensorType) -> bool:
    return len(a.sizes) == len(b.sizes) and all(known_eq(m, n) for m, n in zip(a.sizes, b.sizes))


@rule("is_pinned is_coalesced")
def no(x: TensorType, *rest: Any) -> bool:
    return False
