"""Clusters and the placement of values -> the fused program's steps, unordered."""

from __future__ import annotations

from typing import Any

import torch

from braze.inductor.loops import Axis, Extern, Kernel, Step
from braze.inductor.loops.ref import remap

from .cluster import Cluster, Clusters
from .emit import Emitter
from .legality import needs_split
from .ops import Analysis, Op
from .passes import in_passes
from .pieces import cat_cuts, piece_env
from .placement import Placement
from .split import split_reduction, split_short_axis
from .traits import DeviceTraits


def build_steps(clusters: Clusters, placement: Placement, traits: DeviceTraits) -> list[tuple[int, Step]]:
    """(position, step) pairs; the position is the program order of the step's last op."""
    analysis = clusters.analysis
    inline = _inlined_buffers(analysis, clusters, placement)
    out: list[tuple[int, Step]] = []
    for op in analysis.ops:
        if op.kind == "extern":
            out.append((op.id, op.step))
        elif op.kind == "fixed":
            for k in op.kernels:
                out.append((op.id, _fixed(analysis, op, k, inline.get(op.id, set()))))
        elif op.kind == "free" and op.out in placement.stored:
            e = Emitter(analysis, {op.out}, {op.id: None})
            none = 0 in op.axes.values()
            out.append((op.id, _empty(op) if none else _finish(e, [op], op.kernels[0].x, (), {op.id: None})))
    for c in clusters.live.values():
        if c.closed:
            continue
        here = [op for op in sorted(c.ops, key=lambda o: o.id) if c.id in placement.sites[op.id]]
        roots = [op for op in here if op.out in placement.stored]
        if roots:
            steps = _kernels(analysis, c, here, roots, inline.get(c.id, set()), traits)
            out += [(roots[-1].id, k) for k in steps]
    return out


def _inlined_buffers(analysis: Analysis, clusters: Clusters, placement: Placement) -> dict[int, set[Any]]:
    """For each cluster, the buffers that it evaluates itself."""
    out: dict[int, set[Any]] = {}
    for op in analysis.ops:
        if op.kind == "free":
            for site in placement.sites[op.id]:
                out.setdefault(site, set()).add(op.out)
        elif op.kind not in ("extern", "fixed"):
            out.setdefault(clusters.find(op.id).id, set()).add(op.out)
    for id, site in placement.inlined:
        out.setdefault(site, set()).add(analysis.ops[id].out)
    return out


def _kernels(
    analysis: Analysis, c: Cluster, here: list[Op], roots: list[Op], inline: set[Any], traits: DeviceTraits
) -> list[Step]:
    """The cluster's kernel; two where its reduction is split, one a piece where a concatenation is stored.

    ``here``: the ops that it evaluates; ``roots``: those that it stores.
    """
    if 0 in c.axes.values():
        return [_empty(op) for op in roots]
    e = Emitter(analysis, inline, c.env)
    r = set(c.r)
    x = tuple([Axis(s, n) for s, n in c.axes.items() if s not in r])
    for op in here:
        e.op_value(op)  # in order, so that long chains need no deep recursion
    kernel = _finish(e, roots, x, tuple([Axis(s, c.axes[s]) for s in c.r]), c.env)
    if r:
        if needs_split(c, traits):
            return list(split_reduction(kernel, c.rows, c.column, traits, kernel.name))
        if traits.short_axis and c.points > traits.split_points:
            return list(split_short_axis(kernel, traits, kernel.name))
        return [kernel]
    cuts = cat_cuts(kernel) if traits.split_pieces and c.points >= traits.split_pieces else None
    if cuts is None:
        return [kernel]
    out: list[Step] = []
    for k, (low, high) in enumerate(cuts.pieces):
        env, axis = piece_env(c, cuts.axis, low, high)
        piece = [a for a in x if a.index is not cuts.axis.index] + axis
        e = Emitter(analysis, inline, env)
        for op in here:
            e.op_value(op)
        made = _finish(e, roots, tuple(piece), (), env)
        made.name += f"_{k}"
        out.append(made)
    return out


def _empty(op: Op) -> Extern:
    """The step for a result without elements."""
    assert op.out is not None
    t = op.out.type
    kwargs = {"dtype": t.dtype, "device": t.device}
    target = torch.ops.aten.empty_strided.default
    return Extern(target, (t.sizes, t.strides), kwargs, (op.out,), op.kernels[0].origin)


def _finish(e: Emitter, roots: list[Op], x: tuple[Axis, ...], r: tuple[Axis, ...], envs: dict[int, Any]) -> Kernel:
    for op in roots:
        value = e.op_value(op)
        env = envs.get(op.id)
        assert op.out is not None
        e.store(op.out, remap(op.place, env) if env else op.place, value)
    name = "_".join(["k", *[op.out.name for op in roots[:3] if op.out is not None]])
    return Kernel(name, x, r, in_passes(e.body, r), roots[0].device, tuple(e.origin))


def _fixed(analysis: Analysis, op: Op, k: Kernel, inline: set[Any]) -> Kernel:
    e = Emitter(analysis, inline - {op.out}, {})
    e.rebuild(k.body)
    return Kernel(k.name, k.x, k.r, in_passes(e.body, k.r), k.device, k.origin + tuple(e.origin))
