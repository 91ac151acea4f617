"""Kernels for the Triton tests: the benchmark's zoo, and one kernel a dtype that runs every primitive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from braze.inductor.loops.ir import Kernel
from braze.ir import IntLike
from braze.prims import PRIMS
from braze.prims.elementwise import DTYPES

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))

import zoo  # noqa: E402
from zoo import CASES, Body, Case, bound  # noqa: E402

__all__ = ["CASES", "Body", "Case", "arguments", "bound", "every_primitive", "operands", "reference", "zoo"]

F32 = torch.float32
NOT_PLAIN = ("convert", "bitcast", "where", "clone")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 7.0, -7.0, 1e-10, 1e10, 12.0, 0.25, -0.75, 100.0, 2.0]
ODD = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0]


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two vectors over which every pair of interesting values meets."""
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = torch.cat([torch.tensor(ODD[:3] + SPECIAL, dtype=torch.float64), torch.randn(13).double()]).to(dtype)
    elif dtype is torch.uint8:
        values = torch.tensor([0, 1, 2, 3, 7, 8, 100, 128, 255], dtype=dtype)
    else:
        top = torch.iinfo(dtype)
        values = torch.tensor([0, 1, -1, 2, -2, 3, 7, -7, 8, 31, 100, -100, top.max, top.min + 1], dtype=dtype)
    a, b = torch.meshgrid(values, values, indexing="ij")
    return a.reshape(-1).contiguous(), b.reshape(-1).contiguous()


def names(dtype: torch.dtype) -> list[tuple[str, int]]:
    """(primitive, operands) that take the dtype."""
    out = []
    for name, prim in PRIMS.items():
        if prim.family == "elementwise" and dtype in DTYPES.get(name, ()) and name not in NOT_PLAIN:
            try:
                prim.reference(torch.ones(1, dtype=dtype))
                out.append((name, 1))
            except TypeError:
                out.append((name, 2))
    return out


def every_primitive(dtype: torch.dtype, n: IntLike) -> tuple[Kernel, Body, list[tuple[str, int]]]:
    """A kernel that stores each primitive of two inputs to an output of its own name."""
    k = Body({"i": n})
    a, b = (k.load(k.buffer(s, (n,), dtype), k["i"]) for s in "ab")
    ops = names(dtype)
    tests = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"}
    for name, count in ops:
        out = torch.bool if name in tests else dtype
        k.store(k.buffer(f"o_{name}", (n,), out), (k["i"],), k.compute(name, *(a, b)[:count], dtype=out))
    if dtype is not torch.bool:
        wide = k.compute("where", a.lt(b), a, b)
        k.store(k.buffer("o_where", (n,), dtype), (k["i"],), wide)
    for to in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool):
        if to is dtype or (dtype.is_floating_point and not to.is_floating_point and to is not torch.bool):
            continue  # what a NaN is as an integer is unspecified
        k.store(k.buffer(f"o_to_{str(to)[6:]}", (n,), to), (k["i"],), k.to(a, to))
    return k.kernel("every"), k, ops


def reference(name: str, count: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Eager's value of an output of ``every_primitive``."""
    if name == "where":
        return torch.where(a < b, a, b)
    if name.startswith("to_"):
        return a.to(getattr(torch, name[3:]))
    out: torch.Tensor = PRIMS[name].reference(*(a, b)[:count])
    return out


def arguments(case: Case, device: str = "cpu") -> tuple[dict[str, torch.Tensor], dict[Any, torch.Tensor]]:
    """(inputs by name, memory by buffer), outputs filled with what betrays an unwritten element."""
    inputs = case.inputs(device)
    memory = {}
    for b in case.buffers.values():
        fill = 0 if b.name in case.zeroed else 77
        empty = torch.full([int(n) for n in b.type.sizes], fill, dtype=b.type.dtype, device=device)  # type: ignore[call-overload]
        memory[b] = inputs.get(b.name, empty)
    return inputs, memory
