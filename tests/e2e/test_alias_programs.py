"""Programs of views and in-place writes on inputs that may overlap, compiled and in eager: a spread, or many."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

import braze

sys.path.insert(0, str(Path(__file__).parent))
import alias_programs  # noqa: E402

number = st.integers(0, 999)
programs = st.lists(st.tuples(number, number, number), min_size=1, max_size=12)
returned = st.lists(number, min_size=1, max_size=4)
OPTIONS: list[dict[str, Any]] = [{}, {}, {"dynamic": True}, {"backend": "aot_eager"}]


@st.composite
def cases(draw: Any) -> Any:
    """The arguments of ``alias_programs.check``."""
    n = draw(st.integers(1, 3))
    places = st.lists(st.integers(0, alias_programs.AGAIN), min_size=n, max_size=n)
    kinds = draw(st.lists(number, min_size=n, max_size=n))
    memories = draw(st.lists(places, min_size=1, max_size=2))
    return (
        draw(programs),
        kinds,
        memories,
        draw(returned),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(OPTIONS)),
    )


REGRESSIONS: dict[str, tuple[str, list[int], list[int], bool, bool, dict[str, Any]]] = {
    # text, kinds and memories of the inputs, grad, late, options
    "a write to a detached output does not reach the input": (
        "def program(x0):\n    v0 = x0.detach()\n    return v0, x0.roll(1)\n", [1], [0], False, True, {},
    ),
    "views of an integer view belong together": (
        "def program(x0):\n    v = x0.view(torch.int32).view(torch.float32)\n    return v.t(), v\n",
        [0], [0], False, True, {},
    ),
    "a custom function's view of an input is the input's memory": (
        "def program(x0):\n    return x0.sin(), Negated.apply(x0[1:])\n", [0], [1], True, False, {},
    ),
    "a custom function's view of a result is the result's memory": (
        "def program(x0):\n    v = x0 * 2\n    return Negated.apply(v)[1:], v\n",
        [0], [1], True, False, {"dynamic": True},
    ),
    "windows over a symbolic size overlap": (
        "def program(x0):\n    v = x0.view(-1).unfold(0, 2, 1)\n    v.mul_(2)\n    return v, x0\n",
        [0], [1], True, False, {"dynamic": True},
    ),
    "an input that is a view of a tensor with a history is overwritten": (
        "def program(x0, x1):\n    x0.mul_(x1.mean())\n    return x0.sin(), x0[1:]\n",
        [2, 5], [1, 2], True, False, {},
    ),
    "a view's history after a write to its base by a foreach call": (
        "def program(x0):\n    v = x0 * 2\n    w = v[0]\n    torch._foreach_mul_([v], [x0.mean()])\n    return w,\n",
        [2], [1], True, False, {},
    ),
    "a view of an input that is overwritten where it lies": (
        "def program(x0, x1):\n    x1.mul_(2)\n    x0.copy_(x1)\n    return x0,\n", [7, 5], [0, 1], False, False, {},
    ),
    "a write through .data is not seen by autograd": (
        "def program(x0):\n    v = x0.data\n    w = x0 * x0\n    v.add_(1)\n    return w,\n", [0], [0], True, False, {},
    ),
    "what is detached twice shares the counter of the first": (
        "def program(x0):\n    v = x0.data\n    return v.detach(), v.t(), v.detach()[1:]\n", [0], [0], False, False, {},
    ),
    "two views of one tensor with a history, one overwritten": (
        "def program(x0, x1):\n    x0.mul_(2)\n    return x1.sin(), x0[1:]\n", [2, 3], [2, 2], True, False, {},
    ),
    "a part put into windows that overlap": (
        "def program(x0):\n    v = x0.unfold(0, 2, 1)\n    return torch.slice_scatter(v, v[:1] * 3, 0, 0, 1),\n",
        [0], [0], False, False, {},
    ),
    "a part put into windows of a computed tensor that overlap": (
        "def program(x0):\n    v = (x0 * 2).t().unfold(0, 2, 1)\n"
        "    return torch.slice_scatter(v, v[1:3] * 3, 0, 0, 4, 2), torch.select_scatter(v, v[0] * 3, 0, 0)\n",
        [0], [0], False, False, {},
    ),
    "a view that was taken without gradients requires grad with what it shows": (
        "def program(x0):\n    v = x0.sin()\n    with torch.no_grad(): w = v[:1]\n    return w,\n",
        [0], [1], True, False, {},
    ),
    "a view whose shape was changed in place is overwritten": (
        "def program(x0):\n    v = x0.t()\n    v.transpose_(0, 1)\n    v.mul_(torch.arange(4.0))\n    return x0, v\n",
        [2], [1], True, False, {},
    ),
    "a tensor is overwritten of which a view's shape was changed in place": (
        "def program(x0):\n    v = x0.t()\n    v.transpose_(0, 1)\n    x0.mul_(torch.arange(4.0))\n    return v,\n",
        [2], [1], True, False, {},
    ),
    "a view is overwritten of a tensor whose shape was changed in place": (
        "def program(x0):\n    y = x0 * 2\n    v = y[1:]\n    y.t_()\n    v.mul_(x0[0])\n    return y, v\n",
        [2], [1], True, False, {},
    ),
    "what is made like a tensor does not keep it": (
        "def program(x0):\n    v = x0 + x0\n    v.scatter_(0, torch.zeros_like(v[:1], dtype=torch.int64), 2.5)\n"
        "    braze.graph_break()\n    x0.add_(1)\n    return v,\n",
        [0], [1], True, False, {},
    ),
    "the greatest element, which a write through .data moved away": (
        "def program(x0):\n    y = x0 * x0.t().max() * x0.min()\n    x0.data.mul_(2)\n    return y,\n",
        [0], [0], True, False, {},
    ),
    "as_strided of a view that is no view for autograd": (
        "def program(x0):\n    v = x0.roll(1)\n    w = v.view(torch.int32).view(torch.float32)\n"
        "    return w.as_strided(w.shape, w.stride()), v\n",
        [0], [0], False, True, {},
    ),
    "a saved value with gaps between its elements": (
        "def program(x0, x1):\n    torch.mul(x0.detach(), 3, out=x0.detach()[:])\n    x0.mul_(x0.mean())\n"
        "    return x0,\n",
        [6, 0], [2, 2], True, False, {},
    ),
    "a saved result with gaps between its elements": (
        "def program(x0):\n    v = torch.slice_scatter(x0, x0[:1] * 3, 0, 0, 1)\n    return v, v * v.exp()\n",
        [6], [3], True, False, {},
    ),
    "as_strided of a part that was detached": (
        "def program(x0):\n    v = x0.sin()\n    w = v[1:].detach()[1:]\n"
        "    return w.as_strided((2, 2), (6, 1)), v, w.as_strided((2, 2), (1, 2)).data.as_strided((2,), (2,))\n",
        [0], [0], False, True, {},
    ),
    "a part that was detached, overwritten through its strides": (
        "def program(x0):\n    v = x0.sin()\n    w = v[1:].detach()\n    w.as_strided((2, 2), (6, 1)).mul_(3)\n"
        "    return w, v, w.as_strided((2, 2), (6, 1))\n",
        [0], [0], True, False, {},
    ),
    "the copy that reshape makes is written to": (
        "def program(x0):\n    v = x0.reshape(-1)\n    w = v.unsqueeze(0)\n    v.masked_fill_(v > 0.5, 0.25)\n"
        "    return v, w, w[:, 1:].t()\n",
        [1], [0], True, False, {},
    ),
    "a view of an input that was transposed in place": (
        "def program(x0):\n    v = x0[1:]\n    x0.t_()\n    return x0.t(), v, x0[1:]\n", [0], [0], False, False, {},
    ),
    "the copy that reshape makes is seen through its strides": (
        "def program(x0):\n    v = x0.reshape(-1)\n    w = v[2:].detach()\n    v.mul_(v.exp())\n"
        "    return v.as_strided((2, 2), (6, 1), 1), w, v\n",
        [1], [0], True, True, {},
    ),
    "unsafe splits share the memory": (
        "def program(x0):\n    v, w = torch.unsafe_split(x0, 2, -1)\n    v.fill_(3)\n"
        "    return x0, w, torch.unsafe_chunk(x0, 2)[0], torch.unsafe_split_with_sizes(x0, [1, 3])[1]\n",
        [2], [0], False, False, {},
    ),
    "a part of an unsafe split owns its memory for autograd": (
        "def program(x0):\n    v = torch.unsafe_split(x0, 1, -1)[-1]\n    v.mul_(x0.mean())\n"
        "    return x0.sin(), v[...], v\n",
        [0], [0], True, True, {},
    ),
    "a part of an unsafe split, and what is detached of it first": (
        "def program(x0):\n    v = torch.unsafe_chunk(x0, 2)[0]\n"
        "    return v.view(torch.int32).view(torch.float32), v.detach(), v\n",
        [0], [0], True, False, {},
    ),
    "a view without gradients of what was detached and got a history": (
        "def program(x0):\n    v = x0.detach()\n    v[torch.tensor([0])] = x0.min()\n"
        "    with torch.no_grad(): w = v[:1]\n    return w,\n",
        [0], [0], True, False, {},
    ),
    "complex numbers in what padding left of an input": (
        "def program(x0):\n    v = torch.nn.functional.pad(x0, (-1, 0))\n"
        "    return torch.view_as_complex(v.view(-1, 2)).imag,\n",
        [3], [0], False, False, {},
    ),
    "an input of symbolic sizes is not saved for them": (
        "def program(x0, x1, x2):\n    x0.add_(1)\n    x1.transpose_(0, -1)\n"
        "    v = x2.narrow(-1, 1, x2.shape[-1] - 1)\n    return x0,\n",
        [0, 0, 0], [1, 0, 0], True, False, {"dynamic": True},
    ),
    "views of a part of an unsafe split, overwritten through the whole": (
        "def program(x0):\n    v = torch.unsafe_chunk(x0, 2, 0)[0]\n    w = v.t()\n    x0.add_(1)\n    return v, w\n",
        [0], [1], True, False, {},
    ),
    "an _unsafe_view of an input": (
        "def program(x0):\n    v = torch.ops.aten._unsafe_view(x0, [-1])\n    return v,\n",
        [2], [0], False, True, {},
    ),
    "an input is detached in place": (
        "def program(x0, x1):\n    x0.detach_()\n    x0.mul_(x1.mean())\n    return x0, x1 * x0.sum()\n",
        [7, 0], [1, 2], True, False, {},
    ),
    "an alias of a view that is no view for autograd": (
        "def program(x0):\n    v = x0.view(torch.int32).view(torch.float32)\n    w = torch.empty_like(x0).copy_(x0)\n"
        "    return v[...], v, w[...], w\n",
        [0], [0], False, True, {},
    ),
    "one value is put into a view as smaller integers": (
        "def program(x0):\n    v = x0.view(torch.int16).view(torch.float32)\n    v.copy_(v.mean())\n    return x0,\n",
        [3], [0], False, False, {"backend": "aot_eager"},
    ),
    "a view of a computed tensor that was then transposed in place": (
        "def program(x0):\n    v = x0 * 2\n    w = v.select(-1, -1)\n    v.t_()\n    return w,\n",
        [2], [1], True, False, {},
    ),
    "a view's sizes before its owner was squeezed in place": (
        "def program(x0):\n    v = torch.unsafe_split(x0, 1, -1)[-1]\n    w = v.adjoint()\n    v.squeeze_()\n"
        "    return w,\n",
        [7], [0], True, True, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGRESSIONS)
def test_what_once_failed(name: str) -> None:
    text, kinds, memory, grad, late, options = REGRESSIONS[name]
    found = alias_programs.check_text(text, kinds, [memory], grad, late, options)
    assert not found, found


def test_views_of_one_detached_tensor_belong_together() -> None:
    def split(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x.detach()
        return v[0], v, v[1:]

    seen = []
    for f in (split, braze.compile(split)):
        x, factor = torch.ones(3, 2), torch.tensor(2.0, requires_grad=True)
        row, whole, rest = f(x)
        row.mul_(factor)
        assert whole.requires_grad and not x.requires_grad
        seen.append((whole.tolist(), *torch.autograd.grad(whole.sum() + rest.sum(), factor)))
    assert seen[0] == seen[1]


def test_an_input_is_transposed_in_place_and_then_gets_a_history() -> None:
    def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        row = x[0]
        x.t_()
        x.mul_(w)
        return row

    seen = []
    for f in (turned, braze.compile(turned)):
        x, w = torch.arange(9.0).view(3, 3).clone(), torch.ones(3, 3, requires_grad=True)
        row = f(x, w)
        seen.append((row.tolist(), torch.autograd.grad(row.sum(), w)[0].tolist()))
    assert seen[0] == seen[1]


def test_what_gets_no_gradient_may_be_overwritten() -> None:
    w, x = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = braze.compile(lambda x: x * x)(x)
    z = braze.compile(lambda y, w: y.detach() * w)(y, w)
    with torch.no_grad():
        x.mul_(2)
    z.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1, 1, 1]


def run(case: Any) -> None:
    found = alias_programs.check(*case)
    assume(found != "skipped")
    assert not found, found


quiet = [HealthCheck.filter_too_much, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=quiet)
@given(cases())
def test_a_few(case: Any) -> None:
    run(case)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many() -> None:
    """For BRAZE_FUZZ_SECONDS (an hour by default)."""
    end = time.monotonic() + float(os.environ.get("BRAZE_FUZZ_SECONDS", 3600))
    while time.monotonic() < end:
        settings(max_examples=500, deadline=None, database=None, suppress_health_check=quiet)(given(cases())(run))()
