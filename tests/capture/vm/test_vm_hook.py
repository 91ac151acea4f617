"""The interpreter under the frame hook: callees after a break, loops, recompiles, recursion; graphs run in eager."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from vm_harness import outcome, same

import braze
from braze.errors import Unsupported

X = torch.arange(6.0).reshape(2, 3)


class Compiled:
    """A compiled function beside its original."""

    def __init__(self, f: Any, **options: Any) -> None:
        self.f = f
        self.compiled = braze.compile(f, backend="eager", **options)

    def check(self, *args: Any, **kwargs: Any) -> Any:
        want = outcome(self.f, args, kwargs)
        got = outcome(self.compiled, args, kwargs)
        if got.error is not None and want.error is None:
            raise got.error
        assert type(got.error) is type(want.error) and str(got.error) == str(want.error)
        assert got.printed == want.printed
        assert same(got.result, want.result), (got.result, want.result)
        assert same(got.args, want.args)
        return got.result


def inner(x, n):
    print("inner", n)
    return x * n


def middle(x, n):
    y = x + 1
    return inner(y, n) + y


def outer(x, n):
    y = x * 2
    z = middle(y, n)
    return z - y


def test_callees_are_captured_after_a_break():
    c = Compiled(outer)
    for n in (1, 2, 1, 3):
        c.check(X, n)


def loop_with_breaks(x, n):
    out = []
    for i in range(n):
        x = middle(x, i)
        if x.sum() > 20:
            out.append(x.sum().item())
            x = x / 2
    return x, out


def test_break_in_a_loop():
    c = Compiled(loop_with_breaks)
    for n in (0, 1, 5):
        c.check(X, n)


def recursive(x, n):
    print(n)
    if n == 0:
        return x + 1
    return recursive(x * 2, n - 1) - 1


def test_recursion_with_breaks():
    Compiled(recursive).check(X, 5)


def generator(x):
    for i in range(3):
        print("gen", i)
        yield x + i


def uses_generator(x):
    total = x * 0
    for v in generator(x):
        total = total + v
    return total


def test_generator_with_breaks():
    Compiled(uses_generator).check(X)


def branches(x, flag):
    y = x + 1
    if y.sum() > 0:
        y = y * 2
        if flag:
            print("positive")
    else:
        y = y - 2
    try:
        z = y.sum().item()
        if z > 50:
            raise ValueError(z)
    except ValueError as e:
        return y, e.args
    finally:
        y = y + 3
    return y, z


def test_branches_on_tensors():
    c = Compiled(branches)
    for x in (X, -X - 1, X * 10, X):
        for flag in (True, False):
            c.check(x, flag)


def raises(x, n):
    y = x + 1
    if n > 2:
        raise KeyError(n, "too large")
    return y


def test_exceptions_reach_the_caller():
    c = Compiled(raises)
    for n in (1, 3, 1, 5):
        c.check(X, n)


def scaled(x, n):
    return x * n


def test_more_versions_than_the_limit_run_in_eager():
    c = Compiled(scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(20):
            c.check(X, n)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(i) for i in range(3)])
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear, self.n = nn.Linear(3, 3), n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        print("layer", self.n)
        return torch.relu(x)


def test_module_with_breaks_in_its_layers():
    torch.manual_seed(0)
    model = Net()
    c = Compiled(lambda m, x: m(x))
    for _ in range(3):
        c.check(model, X)


def test_training_steps(capsys):
    torch.manual_seed(0)
    eager = Net()
    ours = copy.deepcopy(eager)
    compiled = braze.compile(ours, backend="eager")
    for model, f in ((eager, eager), (ours, compiled)):
        opt = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            f(X).square().mean().backward()
            opt.step()
            opt.zero_grad()
    capsys.readouterr()
    assert same(dict(ours.named_parameters()), dict(eager.named_parameters())) and ours.count == 3


def test_fullgraph_raises():
    with pytest.raises(Unsupported, match=r"print\(\)"):
        braze.compile(outer, backend="eager", fullgraph=True)(X, 1)


def many_arguments(a, b=2, *rest, c, d=4, **more):
    print(len(rest))
    return a * b + sum(rest) + c * d + sum(more.values())


def test_arguments_of_all_kinds():
    c = Compiled(many_arguments)
    c.check(X, c=1)
    c.check(X, 3, 4, 5, c=X, d=2, e=7, f=X)


def closures(x):
    n = [1]

    def add(v):
        n.append(len(n))
        print("add", len(n))
        return v + len(n)

    return add(add(x)) * len(n)


def test_closures_with_breaks():
    Compiled(closures).check(X)


def with_blocks(x):
    with torch.no_grad():
        y = x * 2
        print(torch.is_grad_enabled())
        with torch.autocast("cpu", torch.bfloat16):
            z = y @ y.T
            print(z.dtype)
        w = y @ y.T
    return w + x.sum(), z, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def test_with_blocks_with_breaks():
    Compiled(with_blocks).check(X.clone().requires_grad_())


def test_inference_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()
    compiled = braze.compile(model, backend="eager", fullgraph=True)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            out = compiled(X)
            assert torch.equal(out, model(X)) and out.is_inference() == (mode is torch.inference_mode)


def test_an_entry_that_is_only_looked_for_is_guarded():
    def f(x, d):
        d.setdefault("b", x * 2)
        return x + len("b" * ("c" in d))

    c = Compiled(f)
    c.check(X, {"b": X, "c": X})
    c.check(X, {})
    c.check(X, {"b": X})
    c.check(X, {"c": X})
