"""The builder: broadcasting, promotion, sharing and folding."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch

from braze.ir import Graph, Node, TensorType, interpret, tensor_type, verify
from braze.prims import builder as module
from braze.prims.builder import Builder


def start(*types: TensorType) -> tuple[Graph, Builder, list[Node]]:
    g = Graph()
    return g, Builder(g), [g.input(f"x{i}", t) for i, t in enumerate(types)]


def test_doctest() -> None:
    assert doctest.testmod(module).failed == 0


def test_broadcast_and_share() -> None:
    g, b, (x, y) = start(tensor_type((2, 3)), tensor_type((3,)))
    assert b.add(x, y) is b.add(x, y)
    assert b.add(x, 0.0) is not b.add(x, -0.0)
    g.outputs = (b.add(x, y),)
    verify(g)
    t, u = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(interpret(g, [t, u])[0], t + u)


@pytest.mark.parametrize(
    "kinds", [("i64", 2.5), ("b8", 1), ("bf16", 1.5), ("i32", True), ("u8", "i16"), ("f32", "f64")]
)
def test_promotion_is_atens(kinds: Any) -> None:
    names = {"i64": torch.int64, "b8": torch.bool, "bf16": torch.bfloat16, "i32": torch.int32, "u8": torch.uint8}
    names |= {"i16": torch.int16, "f32": torch.float32, "f64": torch.float64}
    real = [torch.ones(3, dtype=names[k]) if isinstance(k, str) else k for k in kinds]
    g, b, nodes = start(*[tensor_type((3,), names[k]) for k in kinds if isinstance(k, str)])
    operands = [nodes.pop(0) if isinstance(k, str) else k for k in kinds]
    assert b.common(*operands) == torch.result_type(*real)


def test_full_folds() -> None:
    g, b, (x,) = start(tensor_type((2, 3)))
    one = b.full((3,), 1.0, torch.float32, torch.device("cpu"))
    two = b.add(one, one)
    assert two.args[1] == 2.0 and two.val.sizes == (3,)
    assert b.mul(x, two).args == (x, 2.0)
    assert b.where(b.full((), True, torch.bool, torch.device("cpu")), x, 0.0) is x
    third = b.convert(b.full((2,), 1 / 3, torch.float32, torch.device("cpu")), torch.bfloat16)
    assert third.args[1] == torch.tensor(1 / 3).bfloat16().item()


def test_numbers_alone_are_refused() -> None:
    _, b, _ = start()
    with pytest.raises(AssertionError):
        b.add(1, 2)


def test_views_and_conversions_collapse() -> None:
    _, b, (x,) = start(tensor_type((2, 3, 4), torch.bfloat16))
    assert b.reshape(b.reshape(x, (6, 4)), (2, 3, 4)) is x
    assert b.reshape(b.reshape(x, (6, 4)), (24,)).args[0] is x
    assert b.permute(b.permute(x, (1, 2, 0)), (2, 0, 1)) is x
    assert b.convert(b.convert(x, torch.float32), torch.bfloat16) is x
    wide = b.exp(b.convert(x, torch.float32))
    assert b.convert(b.convert(wide, torch.bfloat16), torch.float32) is not wide  # the rounding stays
