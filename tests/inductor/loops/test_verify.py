"""Each rule of the loop IR's specification catches a kernel that breaks it."""

from __future__ import annotations

import pytest
import torch
from prim_graphs import G

from braze.inductor.loops import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Store,
    lower,
    verify_kernel,
    verify_program,
)
from braze.ir import symbol, symbol_of, tensor_type

CPU = torch.device("cpu")
I, J = symbol("i0", 0, 3), symbol("i1", 0, 7)
A = Buffer("a", tensor_type((4, 8)))
B = Buffer("b", tensor_type((4, 8)))
H = Buffer("h", tensor_type((4, 8), torch.bfloat16))
X = (Axis(symbol_of(I), 4), Axis(symbol_of(J), 8))


def kernel(*body: object, x: tuple[Axis, ...] = X, r: tuple[Axis, ...] = ()) -> Kernel:
    return Kernel("k", x, r, list(body), CPU)


LOAD = Load(A, (I, J))
HALF = Load(H, (I, J))
MASK = Compute("lt", (LOAD, LOAD), torch.bool)
BAD = {
    "not defined before": kernel(Store(B, (I, J), LOAD)),
    "may leave": kernel(Load(A, (I + 1, J))),
    "2 indices|1 indices": kernel(Load(A, (I,))),
    "is not an axis": kernel(Load(A, (I, symbol("i9", 0, 7)))),
    "16-bit arithmetic": kernel(HALF, Compute("neg", (HALF,), torch.bfloat16)),
    "into": kernel(HALF, Store(B, (I, J), HALF)),
    "the mask is not bool": kernel(LOAD, Load(A, (I, J), (), LOAD)),
    "no axis to reduce": kernel(LOAD, Reduce("sum", LOAD, torch.float32)),
    "unknown function": kernel(LOAD, Compute("frobnicate", (LOAD,), torch.float32)),
    "operands of": kernel(LOAD, c := Const(1, torch.int64), Compute("add", (LOAD, c), torch.float32)),
    "condition is not bool": kernel(LOAD, Compute("where", (LOAD, LOAD, LOAD), torch.float32)),
    "twice": kernel(x=X + X),
    "reads at another place": kernel(LOAD, Store(B, (I, J), LOAD), Load(B, (3 - I, J))),
    "does not take": kernel(LOAD, Compute("bitwise_not", (LOAD,), torch.float32)),
    "kind": kernel(LOAD, Reduce("mean", LOAD, torch.float32), x=X[:1], r=X[1:]),
    "as torch.float32": kernel(LOAD, Reduce("argmax", LOAD, torch.float32), x=X[:1], r=X[1:]),
    "is bound to": kernel(LOAD, Load(A, (symbol("t0", 0, 3), J), ((symbol_of(symbol("t0", 0, 3)), LOAD),))),
    "dtype": kernel(Index(I, torch.float32)),
}


@pytest.mark.parametrize("message", BAD)
def test_a_broken_kernel_is_caught(message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify_kernel(BAD[message])


def test_a_masked_access_may_point_outside() -> None:
    verify_kernel(kernel(LOAD, MASK, Load(A, (I + 100, J), (), MASK)))


def program(*steps: Kernel, outputs: object = ()) -> Program:
    return Program("p", (A,), list(steps), outputs)


def test_programs() -> None:
    verify_program(program(kernel(LOAD, Store(B, (I, J), LOAD))))
    load = Load(B, (I, J))
    early = kernel(load, narrow := Compute("convert", (load,), torch.bfloat16), Store(H, (I, J), narrow))
    with pytest.raises(AssertionError, match="before it is written"):
        verify_program(program(early))
    with pytest.raises(AssertionError, match="4 of 32 are written"):
        verify_program(program(kernel(LOAD, Store(B, (I, 0), LOAD), x=X[:1], r=X[1:])))
    scatter = Store(B, (I, symbol("t0", 0, 7)), LOAD, "atomic_add", ((symbol_of(symbol("t0", 0, 7)), at := Index(J)),))
    with pytest.raises(AssertionError, match="nothing filled"):
        verify_program(program(kernel(LOAD, at, scatter)))


def test_reuse_of_a_living_buffer_is_caught() -> None:
    g = G()
    x = g.input("x", (4,))
    a = g.exp(x)
    p = lower(g.out(g.add(g.neg(a), a)))
    exp, neg, add = p.buffers
    p.reuse = {neg: exp}
    with pytest.raises(AssertionError, match="before its last use"):
        verify_program(p)
    p.reuse = {add: neg}
    verify_program(p)
