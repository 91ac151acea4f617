"""Symbolic sizes: a trace with a symbolic batch, with the symbol filled in, is the static trace of that batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import test_fake_models as models
import torch
import torch.nn.functional as F
from aten_record import functional
from torch import nn

from braze import ir
from braze.errors import Unsupported
from braze.fake import FakeMode, FakeTensor, fake_from, type_of
from braze.ir import Expr, IntLike, TensorType, contiguous_strides, evaluate, symbol, tensor_type

# before that, torch.matmul asks for plain sizes in C++: batches of matrices become static
plain_matmul = pytest.mark.skipif(torch.__version__ < "2.14", reason="torch.matmul needs static sizes")
QUESTIONS = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


def filled(x: Any, env: dict[str, int]) -> Any:
    """A type (or scalar) with its symbols replaced by values."""
    if isinstance(x, FakeTensor):
        x = x.val
    if isinstance(x, TensorType):
        sizes, strides = (tuple(evaluate(n, env) for n in v) for v in (x.sizes, x.strides))
        return TensorType(sizes, strides, x.dtype, x.device, evaluate(x.offset, env))
    if isinstance(x, torch.SymInt):
        raise AssertionError(f"{x} reached the recorder")
    return evaluate(x, env) if isinstance(x, Expr) else x


def plain(tree: Any) -> Any:
    return ir.map_leaves(tree, lambda x: x.val if isinstance(x, FakeTensor) else x)


def calls(fn: Any, types: list[TensorType], asked: list[str] | None = None) -> list[tuple[str, Any, Any]]:
    def decide(op: str, a: IntLike, b: IntLike) -> bool:
        assert asked is not None
        asked.append(f"{a} {op} {b}")
        return bool(getattr(evaluate(a), QUESTIONS[op])(evaluate(b)))

    seen: list[tuple[str, Any, Any]] = []

    def on_op(op: Any, args: Any, kwargs: Any, out: Any) -> None:
        seen.append((str(op), plain([list(args), kwargs]), plain(list(out) if isinstance(out, tuple) else out)))

    with FakeMode(on_op, decide=decide):
        fn(*[fake_from(t, decide=decide) for t in types])
    return seen


def check(model: nn.Module, inputs: list[torch.Tensor], loss: Any, dims: tuple[int, ...] = (0,)) -> list[str]:
    fn, tensors = functional(model, loss)
    params = [ir.type_of(t) for t in tensors]
    asked: list[str] = []
    names = "bs"

    def types(sizes: list[IntLike]) -> list[TensorType]:
        out = list(params)
        for x in inputs:
            n = list(x.shape)
            for d, s in zip(dims, sizes):
                n[d] = s
            out.append(tensor_type(n, x.dtype))
        return out

    symbols = [symbol(names[i], 2, 512, hint=inputs[0].shape[d]) for i, d in enumerate(dims)]
    symbolic = calls(fn, types(list(symbols)), asked)
    for values in ([3, 7], [5, 12]):
        env = dict(zip(names, values))
        static = calls(fn, types(list(values)))
        assert [c[0] for c in symbolic] == [c[0] for c in static]
        for a, b in zip(symbolic, static):
            assert ir.map_leaves(a, partial(filled, env=env)) == ir.map_leaves(b, partial(filled, env={})), a[0]
    return asked


def test_mlp() -> None:
    model, inputs, _ = models.mlp()
    assert check(model, inputs, lambda o: o.square().sum()) == []


@plain_matmul
def test_encoder_batch_and_length() -> None:
    model, inputs, loss = models.encoder()
    check(model, inputs, loss, (0, 1))


def test_convnet() -> None:
    model, inputs, _ = models.convnet()
    assert check(model, inputs, lambda o: o.sum()) == []


@plain_matmul
def test_by_hand_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.heads = nn.Linear(32, 96), 4

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, 2))
            scores = (q @ k.transpose(-2, -1)) * 0.5
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
            y = F.dropout(scores.softmax(-1), 0.1) @ v
            return torch.cat([y.transpose(1, 2).reshape(b, t, c), x[:, :, :8]], -1).flatten(0, 1)

    check(Attention(), [torch.randn(2, 10, 32)], lambda o: o.sum(), (0, 1))


def test_sizes_are_symbolic_at_the_boundary() -> None:
    b = symbol("b", 2, 64, hint=8)
    x = fake_from(TensorType((b, 4), contiguous_strides((b, 4)), torch.float32, torch.device("cpu")))
    with FakeMode():
        y = (x + 1).view(-1)
        assert str(type_of(y).sizes[0]) == "4*b" and isinstance(y.shape[0], torch.SymInt)
        assert y.shape[0] == x.shape[0] * 4  # proven, no question
        assert type_of(x.view(x.shape[0] * 2, 2)).sizes == (b * 2, 2)


def test_open_questions_raise_or_are_asked() -> None:
    b = symbol("b", 2, 64, hint=8)
    t = TensorType((b, 4), contiguous_strides((b, 4)), torch.float32, torch.device("cpu"))
    with FakeMode(), pytest.raises(Unsupported, match="b > 5|5 < b"):
        bool(fake_from(t).shape[0] > 5)
    asked: list[Any] = []

    def yes(*question: Any) -> bool:
        asked.append(question)
        return True

    with FakeMode(decide=yes):
        assert fake_from(t, decide=yes).shape[0] > 5
    assert asked == [(">", b, 5)]


def test_integers_for_kernels_that_need_them() -> None:
    b = symbol("b", 2, 64, hint=8)
    t = tensor_type((b, 4))
    with FakeMode(), pytest.raises(Unsupported, match="b == 8"):
        torch.ops.aten.size.default(fake_from(t))

    def yes(*question: Any) -> bool:
        return True

    with FakeMode(decide=yes):
        assert torch.ops.aten.size.default(fake_from(t, decide=yes)) == [8, 4]


@plain_matmul
def test_matmul_asks_nothing() -> None:
    b, s = symbol("b", 2, 64, hint=8), symbol("s", 2, 64, hint=8)
    with FakeMode():
        x, y = (fake_from(tensor_type(n)) for n in ((b, s, 12), (b, 12, s)))
        assert type_of(x @ y).sizes == (b, s, s)
        assert type_of(F.linear(x, fake_from(tensor_type((3, 12))))).sizes == (b, s, 3)


def test_broadcast_of_unknown_sizes_raises() -> None:
    b, c = symbol("b", 2, 64, hint=8), symbol("c", 2, 64, hint=8)
    x, y = (fake_from(TensorType((n,), (1,), torch.float32, torch.device("cpu"))) for n in (b, c))
    with FakeMode(), pytest.raises(Unsupported, match="not known"):
        x + y
