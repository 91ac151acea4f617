"""Checks decompositions on torch's own operator samples: decompose what eager calls, interpret it, compare.

Values may differ from eager's by rounding: then both are measured against eager in float64, and braze's error may be at
most twice eager's (plus a unit in the last place of the dtype).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from aten_trace import Mutates, record
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from braze.errors import Unsupported
from braze.ir import interpret, verify
from braze.prims import decompose
from braze.prims.elementwise import dense_strides

TABLE = {f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}": op for op in op_db}


def samples(name: str, dtype: torch.dtype, limit: int) -> Iterator[Any]:
    op = TABLE[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, s in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if i >= limit:
                return
            yield s


def check_sample(op: Any, sample: Any, backward: bool) -> str:
    """"ok", or why the sample says nothing. AssertionError when a value, a size, a dtype or a stride is wrong."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    inputs = [leaves[i].detach() for i in at]
    if any(x.layout != torch.strided or x.is_quantized for x in inputs):
        return "layout"

    def forward(*tensors: Any) -> Any:
        new = list(leaves)
        for i, t in zip(at, tensors):
            new[i] = t
        x, args, kwargs = tree_unflatten(new, spec)
        return op.op(x, *args, **kwargs)

    def both(*tensors: Any) -> Any:
        tensors = tuple(t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors)
        out = forward(*tensors)
        outs = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        grads = torch.autograd.grad(outs, [t for t in tensors if t.requires_grad], [t.detach().clone() for t in outs], allow_unused=True) if outs else ()
        return out, [g for g in grads if g is not None]

    fn = both if backward else forward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph, want = record(fn, inputs)
        except Mutates:
            return "mutates"
        except RuntimeError as e:
            if "not differentiable" in str(e) or "derivative for" in str(e):
                return "not differentiable"
            raise
        if not any(isinstance(t, torch.Tensor) for t in tree_flatten(want)[0]):
            return "no tensor"
        try:
            low = verify(decompose(graph))
        except Unsupported as e:
            return f"unsupported: {e.what}"
        got = interpret(low, inputs)
        exact = None
        for i, (w, g) in enumerate(zip(tree_flatten(want)[0], tree_flatten(got)[0])):
            if not isinstance(w, torch.Tensor):
                continue
            assert g.dtype == w.dtype and g.shape == w.shape, (i, g.dtype, w.dtype, g.shape, w.shape)
            if close(g, w):
                continue
            if exact is None:
                exact = tree_flatten(fn(*[x.double() if x.is_floating_point() else x for x in inputs]))[0]
            compare(g, w, exact[i], i, low)
        check_layouts(graph, low)
    return "ok"


def close(g: torch.Tensor, w: torch.Tensor) -> bool:
    if not w.dtype.is_floating_point and not w.dtype.is_complex:
        return torch.equal(g, w)
    return torch.allclose(g, w, rtol=1e-6 if w.dtype == torch.float32 else 1e-12 if w.dtype == torch.float64 else 0, atol=0, equal_nan=True)


def compare(g: torch.Tensor, w: torch.Tensor, exact: torch.Tensor, i: int, low: Any) -> None:
    assert w.dtype.is_floating_point or w.dtype.is_complex, (i, g, w)
    assert torch.equal(g.isnan(), w.isnan()) and torch.equal(g.isinf(), w.isinf()), (i, g, w)
    scale = torch.finfo(w.dtype).eps
    size = exact.abs().nan_to_num(0, 0, 0).max() if exact.numel() else 0
    mine = (g.double() - exact).abs().nan_to_num(0, 0, 0).max()
    theirs = (w.double() - exact).abs().nan_to_num(0, 0, 0).max()
    scale = 1e-7 if w.dtype == torch.float64 else scale  # eager is its own reference then
    assert mine <= 2 * theirs + 2 * scale * max(size, 1), f"output {i}: error {mine:.3g}, eager {theirs:.3g}, size {size:.3g}"


def check_layouts(graph: Any, low: Any) -> None:
    """The strides that the ATen graph promises for its outputs are those of the new outputs' vals."""
    for a, c in zip(tree_flatten(graph.outputs)[0], tree_flatten(low.outputs)[0]):
        if hasattr(a, "val") and hasattr(a.val, "sizes"):
            strides = [(s, t) for n, s, t in zip(a.val.sizes, a.val.strides, c.val.strides) if n != 1]
            dense = 0 not in a.val.sizes and dense_strides(a.val.sizes, a.val.strides) is not None
            assert all(s == t for s, t in strides) or not dense, f"promised {a.val}, got {c.val}"


def check(name: str, dtype: torch.dtype, limit: int, backward: bool = False) -> dict[str, int]:
    """Outcome -> how many samples. AssertionError names the sample."""
    counts: dict[str, int] = {}
    op = TABLE[name]
    for i, s in enumerate(samples(name, dtype, limit)):
        try:
            outcome = check_sample(op, s, backward)
        except AssertionError as e:
            raise AssertionError(f"{name} {dtype} sample {i}: {s.summary()}\n{e}") from e
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts
