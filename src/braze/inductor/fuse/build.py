"""Clusters and the placement of values -> the fused program's steps, unordered."""

from __future__ import annotations

from typing import Any

from braze.inductor.loops import Axis, Kernel, Step
from braze.inductor.loops.ref import remap

from .cluster import Cluster, Clusters
from .emit import Emitter
from .ops import Analysis, Op
from .placement import Placement


def build_steps(clusters: Clusters, placement: Placement) -> list[tuple[int, Step]]:
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
            out.append((op.id, _finish(e, [op], tuple(op.kernels[0].x), (), {op.id: None})))
    for c in clusters.live.values():
        if c.closed:
            continue
        roots = [op for op in sorted(c.ops, key=lambda o: o.id) if op.out in placement.stored]
        if roots:
            out.append((max(op.id for op in roots), _kernel(analysis, c, roots, inline.get(c.id, set()))))
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


def _kernel(analysis: Analysis, c: Cluster, roots: list[Op], inline: set[Any]) -> Kernel:
    e = Emitter(analysis, inline, c.env)
    r = set(c.r)
    x = tuple([Axis(s, n) for s, n in c.axes.items() if s not in r])
    return _finish(e, roots, x, tuple([Axis(s, c.axes[s]) for s in c.r]), c.env)


def _finish(e: Emitter, roots: list[Op], x: tuple[Axis, ...], r: tuple[Axis, ...], envs: dict[int, Any]) -> Kernel:
    for op in roots:
        value = e.op_value(op)
        env = envs.get(op.id)
        assert op.out is not None
        e.store(op.out, remap(op.place, env) if env else op.place, value)
    name = "_".join(["k", *[op.out.name for op in roots[:3] if op.out is not None]])
    return Kernel(name, x, r, live(e.body), roots[0].device, tuple(e.origin))


def _fixed(analysis: Analysis, op: Op, k: Kernel, inline: set[Any]) -> Kernel:
    e = Emitter(analysis, inline - {op.out}, {})
    e.rebuild(k.body)
    return Kernel(k.name, k.x, k.r, live(e.body), k.device, k.origin + tuple(e.origin))


def live(body: list[Any]) -> list[Any]:
    """The instructions that a store needs."""
    from braze.inductor.loops import Store, operands

    needed: set[Any] = set()
    out = []
    for i in reversed(body):
        if isinstance(i, Store) or i in needed:
            out.append(i)
            needed.update(operands(i))
    out.reverse()
    return out
