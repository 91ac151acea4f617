"""The primitives that nvFuser takes: a table, and why a node is left to the other path.

nvFuser's elementwise operators promote types by rules of their own, so the translation never relies on them: operands
of an operation have one type, 16-bit floats are cast to float32 before it and back after it, scalars get that type.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import Node, TensorType, leaves
from braze.prims import Prim

DTYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Int",
    torch.int32: "Int32",
    torch.bool: "Bool",
}
"""torch dtype -> the name in nvFuser's ``DataType``."""

FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
INTS = frozenset((torch.int64, torch.int32))
REAL = FLOATS | INTS
ANY = REAL | {torch.bool}


def _rows(names: str, dtypes: frozenset[torch.dtype]) -> dict[str, tuple[str, frozenset[torch.dtype]]]:
    """``prim`` or ``prim:nvfuser name``, separated by blanks."""
    pairs = [name.partition(":") for name in names.split()]
    return {a: (b or a, dtypes) for a, _, b in pairs}


ELEMENTWISE = {
    **_rows(
        "reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh"
        " acosh atanh erf erfc erfinv lgamma sigmoid floor ceil round trunc div pow atan2 fmod remainder maximum"
        " minimum isnan isinf",
        FLOATS,
    ),
    **_rows("neg abs add sub mul", REAL),
    **_rows("bitwise_and bitwise_or bitwise_xor", INTS | {torch.bool}),
    **_rows("bitwise_not", INTS),
    **_rows("eq ne lt le gt ge clone:set where", ANY),
}
"""Elementwise primitive -> (its name in ``fd.ops``, the operand dtypes that it takes)."""

REDUCTIONS = {**_rows("sum prod", FLOATS), **_rows("amax:max amin:min", FLOATS)}
VIEWS = frozenset(("expand", "permute", "reshape"))
OTHERS = frozenset(("convert", "full"))


def refusal(node: Node, device: str = "cuda") -> str | None:
    """Why nvFuser does not get this node, or None if it can."""
    target = node.target
    if node.op != "call" or not isinstance(target, Prim):
        return "a call of a library"
    reason = _values(node, device)
    if reason is not None:
        return reason
    name = target.name
    if name in ELEMENTWISE:
        dtype = operand_dtype(node)
        return None if dtype in ELEMENTWISE[name][1] else f"{name} of {dtype}"
    if name in REDUCTIONS:
        dims = node.args[1]
        if not dims:
            return f"{name} over no dims"
        return None if node.args[0].val.dtype in REDUCTIONS[name][1] else f"{name} of {node.args[0].val.dtype}"
    return None if name in VIEWS or name in OTHERS else f"no rule for {name}"


def operand_dtype(node: Node) -> torch.dtype:
    """The dtype of an elementwise primitive's tensor operands (of the values, for ``where``)."""
    operands = node.args[1:] if node.target.name == "where" else node.args
    tensors = [a.val.dtype for a in operands if isinstance(a, Node)]
    dtype: torch.dtype = tensors[0] if tensors else node.val.dtype
    return dtype


def _values(node: Node, device: str) -> str | None:
    """Types, devices and sizes: static, on the GPU, not empty."""
    for leaf in leaves((node.val, node.args, node.kwargs)):
        t = leaf.val if isinstance(leaf, Node) else leaf
        if isinstance(t, TensorType):
            if t.device.type != device:
                return f"a tensor on {t.device}"
            if t.dtype not in DTYPES:
                return f"a tensor of {t.dtype}"
            if not all(isinstance(n, int) and n > 0 for n in t.sizes):
                return "a size that is symbolic or 0"
            if not all(isinstance(s, int) for s in t.strides):
                return "a stride that is symbolic"
        elif not _plain(t):
            return f"an argument of type {type(t).__name__}"
    return None


def _plain(x: Any) -> bool:
    return x is None or isinstance(x, (bool, int, float, torch.dtype, torch.device))
