"""What an opaque call costs: floating point operations and bytes moved, for scheduling and for reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload

from braze.ir import IntLike, Node, TensorType, leaves, product

from .opaque import base_name


@dataclass(frozen=True, slots=True)
class Cost:
    """``flops`` counts a multiply-add as two; ``nbytes`` is every tensor read and written once."""

    flops: IntLike
    nbytes: IntLike


def _types(tree: Any) -> list[TensorType]:
    vals = [x.val if isinstance(x, Node) else x for x in leaves(tree)]
    return [t for t in leaves(vals) if isinstance(t, TensorType)]


def _product(a: TensorType, out: TensorType) -> IntLike:
    return 2 * out.numel * a.sizes[-1]


def _mm(node: Node) -> IntLike:
    """mm, bmm, mv, dot: two operands."""
    return _product(node.args[0].val, node.val)


def _addmm(node: Node) -> IntLike:
    return _product(node.args[1].val, node.val)


def _convolution(node: Node) -> IntLike:
    """Each output element is a dot product over a filter; transposed: each input element over one."""
    x, weight = _types(node.args[:2])
    transposed = len(node.args) > 6 and node.args[6]
    out: TensorType = node.val
    return 2 * (x if transposed else out).numel * product(weight.sizes[1:])


def _convolution_backward(node: Node) -> IntLike:
    """One convolution's work for each of the input's and the weight's gradients that is asked for."""
    grad, x, weight = _types(node.args[:3])
    transposed, mask = node.args[7], node.args[10]
    return 2 * (x if transposed else grad).numel * product(weight.sizes[1:]) * (int(mask[0]) + int(mask[1]))


def _attention_of(products: int, first: int) -> Callable[[Node], IntLike]:
    """``products`` matrix products over (query, key) pairs; query, key and value are arguments ``first`` and on."""

    def flops(node: Node) -> IntLike:
        q, k, v = _types(node.args[first : first + 3])
        pairs = product(q.sizes[:-2]) * q.sizes[-2] * k.sizes[-2]
        return products * pairs * (q.sizes[-1] + v.sizes[-1])

    return flops


FLOPS: dict[str, Callable[[Node], IntLike]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm"), _mm),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _addmm),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    "convolution_backward": _convolution_backward,
}
for _name in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"):
    FLOPS[f"_scaled_dot_product_{_name}"] = _attention_of(2, 0)
    FLOPS[f"_scaled_dot_product_{_name}_backward"] = _attention_of(5, 1)  # scores again, and four gradients


def cost_of(node: Node) -> Cost:
    """The cost of any call: products, convolutions and attention count their arithmetic, others an operation an
    element."""
    out = _types(node.val)
    nbytes: IntLike = 0
    for t in _types(node.args) + _types(node.kwargs) + out:
        nbytes = nbytes + t.nbytes
    row = FLOPS.get(base_name(node.target)) if isinstance(node.target, OpOverload) else None
    flops: IntLike = 0
    for t in out:
        flops = flops + t.numel
    return Cost(flops if row is None else row(node), nbytes)
