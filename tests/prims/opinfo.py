"""Checks decompositions on torch's own operator samples: decompose what eager calls, interpret it, compare.

Values may differ from eager's by rounding: then both are measured against eager in float64, and braze's error may be at
most twice eager's (plus two units in the last place).  float64 is its own reference and gets 1e-7.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from aten_trace import Mutates, record
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from braze.errors import Unsupported
from braze.ir import Graph, Node, TensorType, interpret, verify
from braze.prims import decompose
from braze.prims.elementwise import dense_strides

UNSET = ("empty", "new_empty", "resize", "jiterator")  # no values to compare, or another device's
RTOL = {torch.float32: 1e-6, torch.float64: 1e-12, torch.complex64: 1e-6, torch.complex128: 1e-12}
TABLE = {
    f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}": op
    for op in op_db
    if not op.name.startswith(UNSET)
}


def samples(op: Any, dtype: torch.dtype, limit: int) -> Iterator[Any]:
    torch.default_generator.manual_seed(0)
    # op.sample_inputs() walks the whole stack for each sample
    for i, s in enumerate(op.sample_inputs_func(op, "cpu", dtype, False)):
        if i >= limit:
            return
        yield s


class Case:
    """One sample as a function of its tensors, with gradients of the first ``differentiable`` of them."""

    def __init__(self, op: Any, sample: Any, backward: bool) -> None:
        self.op = op
        self.leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.at = [i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]
        self.inputs = [self.leaves[i].detach() for i in self.at]
        self.differentiable = len(self.inputs) if backward else 0

    def forward(self, *tensors: torch.Tensor) -> Any:
        new = list(self.leaves)
        for i, t in zip(self.at, tensors):
            new[i] = t
        x, args, kwargs = tree_unflatten(new, self.spec)
        return self.op.op(x, *args, **kwargs)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        n = self.differentiable
        if not n:
            return self.forward(*tensors)
        inputs = [t.detach().requires_grad_(t.is_floating_point() and i < n) for i, t in enumerate(tensors)]
        out = self.forward(*inputs)
        heads = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        if not heads:
            return out
        wanted = [t for t in inputs if t.requires_grad]
        grads = torch.autograd.grad(heads, wanted, [t.detach().clone() for t in heads], allow_unused=True)
        return out, [g for g in grads if g is not None]

    def traced(self) -> tuple[Graph, list[Any]] | str:
        """The graph and eager's results, or why there are none."""
        try:
            graph, want = record(self, self.inputs)
        except Mutates:
            return "mutates"
        except RuntimeError as e:
            if not self.differentiable or "differentiable" not in str(e) and "derivative for" not in str(e):
                raise
            self.differentiable = int(self.differentiable > 1)  # perhaps only in the first tensor
            return self.traced() if self.differentiable else "not differentiable"
        if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in graph.calls):
            return "random"
        flat = tree_flatten(want)[0]
        return (graph, flat) if any(isinstance(t, torch.Tensor) for t in flat) else "no tensor"

    def check(self) -> str:
        """ "ok", or why the sample says nothing. AssertionError when a value, size, dtype or stride is wrong."""
        if any(x.layout != torch.strided or x.is_quantized for x in self.inputs):
            return "layout"
        found = self.traced()
        if isinstance(found, str):
            return found
        graph, want = found
        try:
            low = verify(decompose(graph))
        except Unsupported as e:
            return f"unsupported: {e.what}"
        got = tree_flatten(interpret(low, self.inputs))[0]
        exact: list[Any] = []
        for i, (w, g) in enumerate(zip(want, got)):
            if not isinstance(w, torch.Tensor):
                continue
            assert g.dtype == w.dtype and g.shape == w.shape, (i, g.dtype, w.dtype, g.shape, w.shape)
            if not close(g, w):
                exact = (
                    exact or tree_flatten(self(*[x.double() if x.is_floating_point() else x for x in self.inputs]))[0]
                )
                compare(g, w, exact[i], i)
        check_layouts(graph, low)
        return "ok"


def close(g: torch.Tensor, w: torch.Tensor) -> bool:
    if w.dtype in RTOL:
        return torch.allclose(g, w, rtol=RTOL[w.dtype], atol=0, equal_nan=True)
    return torch.equal(g, w)


def compare(g: torch.Tensor, w: torch.Tensor, exact: torch.Tensor, i: int) -> None:
    assert w.dtype.is_floating_point or w.dtype.is_complex, f"output {i}: {g} instead of {w}"
    overflowed = w.isinf() & (exact.abs() < torch.finfo(w.dtype).max)  # in a 16-bit intermediate of eager
    w = torch.where(overflowed, g, w)
    assert torch.equal(g.isnan(), w.isnan()) and torch.equal(g.isinf(), w.isinf()), f"output {i}: {g} instead of {w}"
    unit = 1e-7 if w.dtype == torch.float64 else torch.finfo(w.dtype).eps
    size = exact.abs().nan_to_num(0, 0, 0).max() if exact.numel() else 0
    mine, theirs = ((t - exact).abs().nan_to_num(0, 0, 0).max() for t in (g, w))
    assert mine <= 2 * theirs + 2 * unit * max(size, 1), f"output {i}: error {mine:.3g}, eager's {theirs:.3g}"


def check_layouts(graph: Graph, low: Graph) -> None:
    """Dense strides that the ATen graph promises for its outputs are those of the new outputs' vals."""
    for a, c in zip(tree_flatten(graph.outputs)[0], tree_flatten(low.outputs)[0]):
        if isinstance(a, Node) and isinstance(a.val, TensorType) and 0 not in a.val.sizes:
            if dense_strides(a.val.sizes, a.val.strides) is not None:
                strides = [(s, t) for n, s, t in zip(a.val.sizes, a.val.strides, c.val.strides) if n != 1]
                assert all(s == t for s, t in strides), f"promised {a.val}, got {c.val}"


def check(name: str, dtype: torch.dtype, limit: int, backward: bool = False) -> Counter[str]:
    """Outcome -> how many of the first ``limit`` samples. AssertionError names the sample."""
    op = TABLE[name]
    outcomes: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, s in enumerate(samples(op, dtype, limit)):
            try:
                outcomes[Case(op, s, backward).check()] += 1
            except AssertionError as e:
                raise AssertionError(f"{name} {dtype} sample {i}: {s.summary()}\n{e}") from e
    return outcomes
