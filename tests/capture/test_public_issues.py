"""One case for each public issue that compiled PyTorch programs ran into: capture's part of it, graphs in eager."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.errors import Unsupported

X = torch.arange(6.0).reshape(2, 3)


def compiled(f: Any, **options: Any) -> Any:
    return braze.compile(f, backend="eager", **options)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.lin(x)) + self.calls


class Deep(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_114511_limits_do_not_mix_instances_with_shapes() -> None:
    """Many instances of one class, each with several shapes: every one stays compiled."""

    def run(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer.lin(x)

    f = compiled(run, dynamic=False)
    layers = [Block() for _ in range(6)]
    for layer in layers:
        for n in range(2, 6):
            x = torch.ones(n, 3)
            assert torch.equal(f(layer, x), run(layer, x))
    assert len(log_of(f).graphs) <= 24  # type: ignore[union-attr]


def test_174704_a_size_that_changes_is_not_pinned_silently() -> None:
    f = compiled(lambda x: x * x.shape[0])
    for n in (2, 3, 4, 5, 6):
        assert torch.equal(f(torch.ones(n)), torch.ones(n) * n)
    assert len(log_of(f).graphs) <= 2  # type: ignore[union-attr]


def test_160757_breaks_say_line_reason_and_way_out() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x

    with pytest.raises(Unsupported) as e:
        compiled(f, fullgraph=True)(X)
    text = str(e.value)
    assert "if x.sum() > 0:" in text and "branch on the value of a tensor" in text and "torch.where" in text


def test_138908_an_in_place_add_through_an_index_happens_once() -> None:
    def f(y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y[i] += y[i]
        return y

    want, got = X.clone(), X.clone()
    f(want, torch.tensor([0]))
    compiled(f)(got, torch.tensor([0]))
    assert torch.equal(want, got)


def test_118735_94855_dropout_draws_what_eager_draws() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    torch.manual_seed(3)
    want = f(torch.ones(64))
    torch.manual_seed(3)
    assert torch.equal(compiled(f)(torch.ones(64)), want)


def test_139789_93363_aliased_inputs_with_mutation() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    c = compiled(f)
    for same in (False, True, False):
        a1, a2 = X.clone(), X.clone()
        want = f(a1, a1 if same else X)
        got = c(a2, a2 if same else X)
        assert torch.equal(want, got) and torch.equal(a1, a2)


def test_91469_second_order_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x**3).sum()

    c = compiled(f)
    for g in (f, c):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(g(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.allclose(second, 6 * X)


def test_118260_threads() -> None:
    f = compiled(lambda x, n: x * n + 1)
    errors: list[Any] = []

    def work(n: int) -> None:
        for _ in range(20):
            if not torch.equal(f(X, n), X * n + 1):
                errors.append(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_101107_pickling_and_20233_state_dict_keys() -> None:
    m = Block()
    c = compiled(m)
    c(X)
    assert list(c.state_dict()) == list(m.state_dict()) and isinstance(c, Block)
    again = pickle.loads(pickle.dumps(c))
    twin = copy.deepcopy(c)
    buffer = io.BytesIO()
    torch.save(c.state_dict(), buffer)
    want = torch.relu(m.lin(X)) + 2
    assert torch.allclose(again(X), want) and torch.allclose(twin(X), want)


def test_107076_133898_a_changing_rate_does_not_recompile() -> None:
    def step(p: torch.Tensor, g: torch.Tensor, lr: float) -> torch.Tensor:
        return p - lr * g

    f = compiled(step)
    for i in range(12):
        lr = 0.1 / (i + 1)
        assert torch.allclose(f(X, X + 1, lr), X - lr * (X + 1))
    assert len(log_of(f).graphs) <= 3  # type: ignore[union-attr]


def test_150706_172547_a_repeated_block_is_captured_in_linear_time() -> None:
    few, many = Deep(2), Deep(12)
    sizes = []
    for m in (few, many):
        c = compiled(m, fullgraph=True)
        c(X)
        (record,) = log_of(c).graphs  # type: ignore[union-attr]
        sizes.append(len(record.graph.calls))
    assert sizes[1] <= 6 * sizes[0]
    assert [b.calls for b in many.layers] == [1] * 12


def test_155558_191753_185886_a_second_call_does_not_capture_again() -> None:
    f = compiled(Deep(3))
    f(X)
    n = len(log_of(f).graphs)  # type: ignore[union-attr]
    for _ in range(5):
        f(X)
    # the counters of the blocks change: symbolic from the second call on
    assert len(log_of(f).graphs) <= n + 1  # type: ignore[union-attr]


def test_104601_a_break_in_a_deep_callee_leaves_two_graphs() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("", end="")
        return y * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 3) - 1

    f = compiled(outer)
    assert torch.equal(f(X), outer(X))
    assert len(log_of(f).graphs) == 2  # type: ignore[union-attr]


def test_a_loop_of_breaks_compiles_twice() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x * 0.5 + 1
            x.sum().tolist()
        return x

    c = compiled(f)
    assert torch.equal(c(X, 500), f(X, 500))
    assert len(log_of(c).graphs) <= 3  # type: ignore[union-attr]
