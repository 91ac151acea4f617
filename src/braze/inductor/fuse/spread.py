"""Values of groups, once for each member: what keeps two axes of a large kernel from being one is written out first.

Before: ``y[p, 8*g + c] = (x[p, 8*g + c] - mean[g]) * weight[8*g + c]`` has 8 neighbours in memory for its lanes, as the
mean is another one for the next 8.  After: ``m[g, c] = mean[g]`` in a small kernel, and the large one has one axis for
all channels.  So it is in a group norm of images in channels_last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from braze.inductor.loops import Axis, Buffer, Index, Kernel, Load, Step, Store
from braze.ir import Expr, IntLike, coefficient, symbols, tensor_type

from .split import rebound
from .traits import DeviceTraits

SMALL = 16  # a buffer is small for a kernel of so many times its elements


def spread_groups(steps: Sequence[Step], traits: DeviceTraits) -> list[Step]:
    """The steps, with such values spread before their readers."""
    out: list[Step] = []
    for step in steps:
        if traits.short_axis and isinstance(step, Kernel) and step.device.type == "cpu":
            out += _spread(step, traits)
        else:
            out.append(step)
    return out


def _spread(k: Kernel, traits: DeviceTraits) -> list[Step]:
    axes = (*k.x, *k.r)
    points = math.prod(a.size for a in axes if isinstance(a.size, int))
    if points <= traits.split_points or not all(isinstance(a.size, int) for a in axes):
        return [k]
    for c in k.x:
        for g in k.x:
            if g is not c and isinstance(c.size, int) and 2 <= c.size <= traits.short_axis:
                loads = _in_the_way(k, g, c, points)
                if loads:
                    return _written_out(k, g, c, loads)
    return [k]


def _in_the_way(k: Kernel, g: Axis, c: Axis, points: int) -> list[Load]:
    """The loads of small buffers that alone keep ``g`` and ``c`` from being one axis of neighbours in memory."""
    found: list[Load] = []
    for i in k.body:
        if isinstance(i, Index) and {g.index, c.index} & symbols(i.expr):
            return []
        if not isinstance(i, (Load, Store)):
            continue
        outer, inner = _step(i, g), _step(i, c)
        if i.indirect or outer is None or inner is None:
            return []
        small = _elements(i.buffer) * SMALL <= points
        if outer == inner * c.size and (small or inner == 1):
            continue
        if not (isinstance(i, Load) and small and inner == 0) or i.mask is not None or i.buffer in k.writes:
            return []
        found.append(i)
    return found


def _elements(b: Buffer) -> int:
    n = b.type.numel
    return n if isinstance(n, int) else 1 << 62


def _step(i: Load | Store, a: Axis) -> IntLike | None:
    out: IntLike = 0
    for e, stride in zip(i.index, i.buffer.type.strides):
        n = coefficient(e, a.index)
        if n is None:
            return None
        out = out + n * stride
    return out


def _written_out(k: Kernel, g: Axis, c: Axis, loads: list[Load]) -> list[Step]:
    steps: list[Step] = []
    made: dict[Any, Buffer] = {}
    new: dict[Any, Any] = {}
    body = []
    for i in k.body:
        now = rebound(i, new)
        if i in loads:
            assert isinstance(i, Load)
            dims = [a for a in (*k.x, *k.r) if a.index in symbols(*i.index) and a is not g] + [g, c]
            place = tuple([Expr({(a.index,): 1}) for a in dims])
            known = made.get((i.buffer, i.index))
            if known is None:
                t = tensor_type(tuple([a.size for a in dims]), i.buffer.type.dtype, k.device)
                known = made[i.buffer, i.index] = Buffer(f"{i.buffer.name}_each{len(made) or ''}", t)
                load = Load(i.buffer, i.index)
                name = f"k_{known.name}"
                steps.append(Kernel(name, tuple(dims), (), [load, Store(known, place, load)], k.device, k.origin))
            now = Load(known, place)
        new[i] = now
        body.append(now)
    return [*steps, replace(k, body=body)]
