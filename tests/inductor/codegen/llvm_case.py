"""Kernels written by hand, run compiled and in the reference interpreter on the same memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from braze.config import Config
from braze.inductor.codegen.llvm_module import emit_source
from braze.inductor.codegen.program import kernel_order
from braze.inductor.loops import Axis, Buffer, Compute, Const, Instr, Kernel, Load, Store, Value, run_kernel
from braze.ir import Expr, IntLike, Symbol, symbol, tensor_type
from braze.runtime.cpu import Target, host_target, load_kernels

CPU = torch.device("cpu")


def restricted(name: str) -> Target:
    """The host's target without its wider features, as an older machine would have it."""
    host = host_target()
    if "x86_64" not in host.triple:
        pytest.skip("needs an x86 machine")
    on = {"avx2": "+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+lzcnt,+sse4.2,+avx", "plain": ""}[name]
    flags = frozenset(f.strip("+") for f in on.split(",") if f) | {"sse2"} | ({"sse4.1"} if on else set())
    if not flags <= host.flags:
        pytest.skip(f"this machine lacks {flags - host.flags}")
    return dataclasses.replace(host, cpu="x86-64", features=on, flags=flags, vector_bits=256 if name == "avx2" else 128)


def axis(name: str, size: IntLike) -> tuple[Expr, Axis]:
    """An index expression and its axis."""
    e = symbol(name, 0, (size - 1) if isinstance(size, int) else 2**40)
    assert isinstance(e, Expr)
    ((s,),) = e.terms
    assert isinstance(s, Symbol)
    return e, Axis(s, size)


def buffer(name: str, t: torch.Tensor) -> Buffer:
    return Buffer(name, tensor_type(tuple(t.shape), t.dtype, strides=t.stride()))


def kernel(x: Sequence[Axis], r: Sequence[Axis], body: list[Instr], name: str = "k") -> Kernel:
    return Kernel(name, tuple(x), tuple(r), body, CPU)


def built(kernels: Sequence[Kernel], target: Target | None = None) -> list[Any]:
    """The compiled functions, each called with (memory: Buffer -> tensor, sizes)."""
    sources = [emit_source(k, target) for k in kernels]
    functions = load_kernels(sources, Config.from_env(), target)

    def bind(k: Kernel, f: Any) -> Any:
        buffers, names = kernel_order(k)

        def run(memory: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
            f(*(memory[b] for b in buffers), *((sizes or {})[n] for n in names))

        return run

    return [bind(k, f) for k, f in zip(kernels, functions)]


def compare(
    k: Kernel,
    memory: Mapping[Buffer, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    target: Target | None = None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Written buffers by name: (compiled, reference)."""
    mine = {b: clone(t) for b, t in memory.items()}
    theirs = {b: clone(t) for b, t in memory.items()}
    built([k], target)[0](mine, sizes)
    run_kernel(k, theirs, sizes)
    return {b.name: (mine[b], theirs[b]) for b in k.writes}


def clone(t: torch.Tensor) -> torch.Tensor:
    out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    if 0 in t.stride():  # expanded: one element for many
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())
        out[index].copy_(t[index])
        return out
    return out.copy_(t)


def same(pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], rtol: float = 0.0, atol: float = 0.0) -> None:
    for a, b in pairs.values():
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


def elementwise(
    fn: str, inputs: Sequence[torch.Tensor | Any], result: torch.dtype
) -> tuple[Kernel, dict[Buffer, torch.Tensor]]:
    """out[i] = fn(inputs[i]...); Python scalars are constants of the tensors' dtype."""
    n = next(t.numel() for t in inputs if isinstance(t, torch.Tensor))
    i, a = axis("i0", n)
    memory: dict[Buffer, torch.Tensor] = {}
    body: list[Instr] = []
    args: list[Value] = []
    for k, t in enumerate(inputs):
        if isinstance(t, torch.Tensor):
            b = buffer(f"in{k}", t)
            memory[b] = t
            v: Value = Load(b, (i,))
            if t.dtype in (torch.float16, torch.bfloat16) and fn != "convert":
                body.append(v)  # type: ignore[arg-type]
                v = Compute("convert", (v,), torch.float32)
        else:
            like = next(u for u in inputs if isinstance(u, torch.Tensor) and u.dtype != torch.bool)
            v = Const(t, like.dtype)
        body.append(v)  # type: ignore[arg-type]
        args.append(v)
    narrow = result in (torch.float16, torch.bfloat16) and fn != "convert"
    v = Compute(fn, tuple(args), torch.float32 if narrow else result)
    body.append(v)
    if narrow:
        v = Compute("convert", (v,), result)
        body.append(v)
    out = Buffer("out", tensor_type((n,), result))
    memory[out] = torch.zeros(n, dtype=result)
    body.append(Store(out, (i,), v))
    return kernel([a], [], body, f"k_{fn}"), memory
