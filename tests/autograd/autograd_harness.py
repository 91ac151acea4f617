"""Runs a program in eager and through trace, partition and the autograd glue, and compares all that a user can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.autograd import AotGraphs, partition, trace_joint, verify_aot, verify_joint
from braze.autograd.layout import same_strides
from braze.ir import Graph, Node, interpret, leaves, type_of
from braze.runtime.autograd_node import make_autograd_callable


def strict(graph: Graph) -> Callable[..., Any]:
    """The graph's interpreter, checking every value against its type."""

    def observe(n: Node, v: Any) -> None:
        if isinstance(v, torch.Tensor):
            assert (tuple(v.shape), v.dtype) == (n.val.sizes, n.val.dtype), (n, v.shape, n.val)
            assert same_strides(v.shape, v.stride(), n.val.strides), (n, n.target, n.args, v.stride(), n.val)

    return lambda *xs: interpret(graph, xs, observe)


def compile_program(fn: Callable[..., Any], inputs: Sequence[Any], budget: float = 1.0) -> tuple[Any, AotGraphs]:
    """``fn`` as a callable made of interpreted graphs, and the graphs."""
    joint = trace_joint(fn, [type_of(x) for x in inputs])
    verify_joint(joint)
    aot = verify_aot(partition(joint, budget))
    lazy = None
    if aot.backward is not None:
        backward = strict(aot.backward)
        lazy = lambda: backward  # noqa: E731
    return make_autograd_callable(strict(aot.forward), lazy, aot.signature), aot


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _aliases(outs: list[Any], inputs: list[Any]) -> list[Any]:
    """Who is whom, and who shares memory with whom."""
    facts: list[Any] = []
    everyone = outs + inputs
    for i, a in enumerate(outs):
        for j, b in enumerate(everyone):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                facts.append((i, j, a is b, a.numel() > 0 and _storage(a) == _storage(b)))
    return facts


def _own_elements(x: torch.Tensor) -> bool:
    """Whether no two elements share memory, as in an expanded tensor."""
    return all(n == 1 or s for n, s in zip(x.shape, x.stride()))


class Run:
    """One run: inputs made of leaves, outputs, gradients of the leaves, and inputs after the call."""

    def __init__(
        self, call: Callable[..., Any], fn_inputs: Sequence[Any], leaf: bool, dtype: torch.dtype | None
    ) -> None:
        self.leaves = [self._leaf(x, dtype) for x in fn_inputs]
        self.inputs = [
            x.clone(memory_format=torch.preserve_format) if x.requires_grad and not leaf else x for x in self.leaves
        ]
        with torch.no_grad():
            for x, y in zip(self.inputs, self.leaves):
                assert same_strides(x.shape, x.stride(), y.stride()) or not leaf
        self.outs = list(leaves(call(*self.inputs)))

    @staticmethod
    def _leaf(x: Any, dtype: torch.dtype | None) -> Any:
        y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        y.copy_(x.detach())
        if dtype is not None and y.is_floating_point():
            y = y.to(dtype)
        return y.requires_grad_(x.requires_grad)

    def differentiate(self, seed: int = 0) -> None:
        """Gradients of the leaves, for random cotangents of all that requires grad."""
        gen = torch.Generator().manual_seed(seed)
        heads = [x for x in [*self.outs, *self.inputs] if isinstance(x, torch.Tensor) and x.requires_grad]
        heads = [h for h in heads if not h.is_leaf]
        wanted = [x for x in self.leaves if x.is_leaf and x.requires_grad]
        self.grads: list[Any] = []
        if heads and wanted:
            loss = sum((h * torch.randn(h.shape, generator=gen).to(h.dtype)).sum() for h in heads)
            self.grads = list(torch.autograd.grad(loss, wanted, allow_unused=True))

    def values(self) -> list[Any]:
        return [*self.outs, *self.inputs]


def check_program(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    leaf: bool = False,
    budget: float = 1.0,
    tol: float = 1e-6,
    compiled: Any = None,
) -> AotGraphs | None:
    """Compare with eager: values, dtypes, strides, requires_grad, identities, shared memory, mutated inputs, gradients,
    and the same again after every output was overwritten."""
    aot = None
    if compiled is None:
        probe = Run(lambda *xs: (), inputs, leaf, None)
        compiled, aot = compile_program(fn, probe.inputs, budget)
    torch.manual_seed(0)
    want = Run(fn, inputs, leaf, None)
    torch.manual_seed(0)
    got = Run(compiled, inputs, leaf, None)
    _compare(got, want, tol)
    want.differentiate()
    got.differentiate()
    assert len(got.grads) == len(want.grads)
    for i, (a, b) in enumerate(zip(got.grads, want.grads)):
        if a is None or b is None:
            present = a if b is None else b
            assert present is None or not present.any(), f"gradient {i}: {a} for {b}"
            continue
        assert a.shape == b.shape and a.dtype == b.dtype, f"gradient {i}"
        torch.testing.assert_close(a, b, rtol=tol * 10, atol=tol * 10, equal_nan=True)
    for k in range(len(want.outs)):
        for run in (want, got):
            if isinstance(run.outs[k], torch.Tensor) and _own_elements(run.outs[k]):
                with torch.no_grad():
                    run.outs[k].detach()[...] = k + 1
        _compare(got, want, tol)
    return aot


def _compare(got: Run, want: Run, tol: float) -> None:
    assert len(got.outs) == len(want.outs)
    for i, (a, b) in enumerate(zip(got.values(), want.values())):
        if not isinstance(b, torch.Tensor):
            assert a == b, f"value {i}"
            continue
        assert a.requires_grad == b.requires_grad, f"value {i}: requires_grad {a.requires_grad}"
        assert same_strides(b.shape, a.stride(), b.stride()), f"value {i}: strides {a.stride()} for {b.stride()}"
        torch.testing.assert_close(
            a.detach(), b.detach(), rtol=tol, atol=tol, equal_nan=True, msg=f"value {i}: {a} for {b}"
        )
    assert _aliases(got.outs, got.inputs) == _aliases(want.outs, want.inputs)
