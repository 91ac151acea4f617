"""Reductions: the kept dims are x axes, the reduced ones r axes, both under the operand's own axis names."""

from __future__ import annotations

from braze.ir import Node

from ..build import Body, Lowering, Rule, compute_dtype
from ..ir import Axis, Const, Reduce
from ..ref import Ref, atom

KINDS = {
    "sum": "sum",
    "prod": "prod",
    "amax": "max",
    "amin": "min",
    "any": "any",
    "all": "all",
    "argmax": "argmax",
    "argmin": "argmin",
}
_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True}


def _reduce(state: Lowering, node: Node) -> Ref:
    kind = KINDS[node.target.name]
    x, dims = state.ref(node.args[0]), node.args[1]
    body = Body(node, x.sizes)
    value = body.wide(body.load(x))
    r = tuple([Axis(atom(body.axes[d]), x.sizes[d]) for d in dims if x.sizes[d] != 1])
    dtype = compute_dtype(node.val.dtype)
    if any(a.size == 0 for a in r):
        value, r = body.add(Const(_EMPTY[kind], dtype)), ()
        body.restrict(dims)
    elif r:
        value = body.add(Reduce(kind, value, dtype))
    elif kind in ("argmax", "argmin"):
        value = body.add(Const(0, dtype))
    index = tuple([e for d, e in enumerate(body.axes) if d not in dims])
    return state.kernel(body, value, node.val, index, r)


RULES: dict[str, Rule] = dict.fromkeys(KINDS, _reduce)
