"""The primitive table: each shape rule agrees with its reference, on sizes and dtypes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from braze import prims
from braze.ir import Graph, interpret, load_python, tensor_type, type_of
from braze.prims.elementwise import ANY, DTYPES
from braze.prims.prim import FAMILIES, PRIMS

X = torch.randn(3, 4, 5)
I = torch.tensor([[0, 2, -1], [1, 1, 0]])
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "where": [(X > 0, X, 0.0), (X > 0, 1.5, X), (X > 0, X, -X)],
    "convert": [(X, torch.bfloat16), (X, torch.int32), (X, torch.bool)],
    "bitcast": [(X, torch.int32)],
    "expand": [(X, (2, 3, 4, 5)), (X[:, :1], (3, 7, 5)), (torch.tensor(1.0), (2, 2))],
    "permute": [(X, (2, 0, 1))],
    "reshape": [(X, (12, 5)), (X, (60,)), (X.permute(2, 0, 1), (5, 12)), (X.permute(2, 0, 1), (15, 4))],
    "slice": [(X, (1, 0, 0), (3, 4, 5), (1, 3, 2)), (X, (0, 2, 0), (3, 2, 5), (1, 1, 1))],
    "flip": [(X, (0, 2))],
    "as_strided": [(X, (4, 3), (1, 7), 2), (X.permute(2, 0, 1), (4, 3), (1, 7), 2)],
    "pad": [(X, (1, 0, 2), (0, 3, 1), 7.0)],
    "cat": [((X, X[:, :2], X), 1)],
    "take": [(X, 1, I)],
    "gather": [(X, 1, torch.randint(-4, 4, (3, 2, 5)))],
    "index": [(X, (None, I, I)), (X, (I,))],
    "index_put": [(X, (None, I, I), torch.randn(3, 2, 3), True), (X, (I,), torch.randn(2, 3, 4, 5))],
    "scatter": [(X, 1, torch.zeros(3, 1, 5, dtype=torch.int64), torch.randn(3, 1, 5))],
    "scatter_add": [(X, 1, torch.randint(0, 4, (3, 6, 5)), torch.randn(3, 6, 5))],
    "full": [((2, 3), 1.5, torch.float32, torch.device("cpu")), ((), True, torch.bool, torch.device("cpu"))],
    "iota": [(4, 3, -2, torch.int64, torch.device("cpu"))],
    "cumsum": [(X, 1)],
    "cumprod": [(X, -2 % 3)],
    "philox_seed": [(torch.device("cpu"),)],
    "philox_uniform": [(torch.tensor([1, 2]), 0, (3, 5), torch.device("cpu"))],
}


def calls(name: str) -> list[tuple[Any, ...]]:
    prim = PRIMS[name]
    if name in CALLS:
        return CALLS[name]
    if prim.family == "reduction":
        x = X > 0 if name in ("any", "all") else X
        return [(x, (0,)), (x, (1, 2)), (x, (0, 1, 2))]
    out: list[tuple[Any, ...]] = []
    for dtype in sorted(DTYPES[name], key=str):
        x = torch.randint(1, 5, (3, 4)).to(dtype)
        try:
            prim.shape(type_of(x), type_of(x))
            prim.reference(x, x)
            out += [(x, x), (x, 2)] + ([(3, x)] if dtype != torch.bool else [])
        except TypeError:
            out.append((x,))
    return out


def as_val(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return type_of(x)
    return tuple(map(as_val, x)) if isinstance(x, tuple) else x


@pytest.mark.parametrize("name", sorted(PRIMS))
def test_shape_rule_agrees_with_reference(name: str) -> None:
    prim = PRIMS[name]
    for args in calls(name):
        val, real = prim.shape(*map(as_val, args)), prim(*args)
        assert val.sizes == tuple(real.shape), args
        assert val.dtype == real.dtype, args
        if prim.family == "view" and name not in ("flip", "as_strided"):
            assert all(a == b for n, a, b in zip(val.sizes, val.strides, real.stride()) if n > 1), args


def test_table() -> None:
    assert len(PRIMS) <= 250
    assert all(p.family in FAMILIES and p.doc for p in PRIMS.values())
    assert prims.add is PRIMS["add"] and prims.slice.name == "slice"
    with pytest.raises(AttributeError):
        prims.no_such_primitive  # noqa: B018


def test_prints_and_loads_as_python() -> None:
    g = Graph()
    x = g.input("x", tensor_type((2, 3)))
    y = g.call(prims.mul, (x, 2.0), val=x.val)
    g.outputs = (g.call(prims.sum, (y, (1,)), val=tensor_type((2,))),)
    assert "prims.sum(mul, (1,))" in str(g)
    t = torch.randn(2, 3)
    assert torch.equal(load_python(g)(t)[0], interpret(g, [t])[0])


def test_operands_must_agree() -> None:
    a, b = tensor_type((2, 3)), tensor_type((3,))
    with pytest.raises(AssertionError, match="sizes"):
        prims.add.shape(a, b)
    with pytest.raises(AssertionError, match="dtypes"):
        prims.add.shape(a, tensor_type((2, 3), torch.float64))
    with pytest.raises(AssertionError, match="does not take"):
        prims.exp.shape(tensor_type((2, 3), torch.int64))


def test_scalars_take_the_tensors_dtype() -> None:
    x = torch.tensor(3, dtype=torch.int32)
    assert prims.add(x, 1).dtype == torch.int32
    h = torch.tensor([1.0], dtype=torch.bfloat16)
    assert prims.mul(h, 0.1).dtype == torch.bfloat16
    assert prims.sub(1.0, h).dtype == torch.bfloat16


def test_special_values() -> None:
    nan = torch.tensor([math.nan, 1.0, 2.0])
    assert prims.amax(nan, (0,)).isnan() and prims.argmax(nan, (0,)).item() == 0
    assert prims.maximum(nan, 0.0).isnan().tolist() == [True, False, False]
    assert prims.floor_div(torch.tensor([-7, 7]), 2).tolist() == [-4, 3]
    assert prims.trunc_div(torch.tensor([-7, 7]), 2).tolist() == [-3, 3]
    assert prims.remainder(torch.tensor([-7, 7]), 3).tolist() == [2, 1]
    assert prims.fmod(torch.tensor([-7, 7]), 3).tolist() == [-1, 1]
    assert prims.shift_left(torch.tensor([1], dtype=torch.int32), 40).tolist() == [0]
    assert set(DTYPES["eq"]) == ANY
