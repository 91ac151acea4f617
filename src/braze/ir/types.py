"""What a value is: the abstract value of every node in every graph.

``node.val`` is a :class:`TensorType`, an ``IntLike``, another Python scalar, ``None``, or a tuple/list of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .expr import IntLike

SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's program."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        name = self.file.rsplit("/", 1)[-1]
        return f"{name}:{self.line}" + (f" {self.text}" if self.text else "")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A strided tensor without its data: sizes and strides in elements, storage offset in elements."""

    sizes: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    dtype: torch.dtype
    device: torch.device
    offset: IntLike = 0
    requires_grad: bool = False

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def numel(self) -> IntLike:
        return product(self.sizes)

    @property
    def nbytes(self) -> IntLike:
        """Bytes of the elements (not of the storage)."""
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps; strides of size-1 dims do not count."""
        return row_major(self.sizes, self.strides)

    def with_(self, **changes: Any) -> TensorType:
        return replace(self, **changes)

    def __str__(self) -> str:
        text = f"{SHORT.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.sizes))}]"
        if not self.is_contiguous:
            text += f"{{{', '.join(map(str, self.strides))}}}"
        return text + (f" {self.device}" if self.device.type != "cpu" else "")


def row_major(sizes: Sequence[IntLike], strides: Sequence[IntLike]) -> bool:
    """Whether the elements lie in order, without gaps."""
    want = contiguous_strides(sizes)
    return any(n == 0 for n in sizes) or all(n == 1 or a == b for n, a, b in zip(sizes, strides, want))


def product(values: Sequence[IntLike]) -> IntLike:
    out: IntLike = 1
    for v in values:
        out = out * v
    return out


def contiguous_strides(sizes: Sequence[IntLike]) -> tuple[IntLike, ...]:
    """Row-major strides as ATen gives them: a size-0 or size-1 dim counts as 1."""
    out: list[IntLike] = []
    step: IntLike = 1
    for n in reversed(sizes):
        out.append(step)
        step = step * (n if not isinstance(n, int) else max(n, 1))
    return tuple(reversed(out))


def tensor_type(
    sizes: Sequence[IntLike],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    strides: Sequence[IntLike] | None = None,
    requires_grad: bool = False,
) -> TensorType:
    """A TensorType, contiguous unless strides are given."""
    sizes = tuple(sizes)
    return TensorType(
        sizes,
        contiguous_strides(sizes) if strides is None else tuple(strides),
        dtype,
        torch.device(device),
        0,
        requires_grad,
    )


def type_of(t: torch.Tensor) -> TensorType:
    """The type of a real tensor."""
    offset: Any = t.storage_offset()
    return TensorType(tuple(t.shape), t.stride(), t.dtype, t.device, offset, t.requires_grad)
