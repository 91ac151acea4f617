"""Split a joint graph into a forward and a backward: what to save, what to compute again.

    forward(x, w):  m = x @ w; r = relu(m); s = softmax(r); return s.sum(), r, s
    backward(x, r, s, tangent):  ...                                    # x is an input: saved for free

Which values cross is a minimum cut (``choose.py``); this file builds the graphs and the signature around it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import Expr, Graph, Node, SavedRef, Signature, TensorType, nodes_in, symbol_of
from ..ir.pause import paused_gc
from ..prims.rng import philox_seed
from .again import compute_again
from .choose import Plan, choose_saved, nbytes, recomputed, saved_bytes, study, with_sizes
from .cse import eliminate_common_subexpressions
from .dce import eliminate_dead_code
from .joint import Joint
from .norms import split_norms
from .pack import gaps, packed, unpacked
from .rewrite import build, operands, replaced, substituted
from .schedule import backward_order, peak_bytes
from .schema import draws
from .simplify import simplify
from .unalias import storage_root, unalias, unalias_gradients

BUDGETS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


@dataclass(frozen=True)
class AotGraphs:
    """``forward(*inputs) -> (*results, *mutated, *extras)``; ``backward(*saved, *tangents) -> gradients`` or None when
    there is nothing to differentiate. ``signature`` says how to call them."""

    forward: Graph
    backward: Graph | None
    signature: Signature


def partition(joint: Joint, budget: float = 1.0) -> AotGraphs:
    """Simplify the joint graph and split it. ``budget`` is the share of the bytes that the cheapest cut saves which may
    be saved: below 1.0 more is computed again."""
    with paused_gc():
        return _partition(joint, budget)


def _partition(joint: Joint, budget: float) -> AotGraphs:
    graph = _simplified(joint)
    n_forward = joint.n_results + len(joint.mutated)
    outputs, gradients = graph.outputs[:n_forward], graph.outputs[n_forward:]
    primals = graph.inputs[: joint.n_primals]
    mutated = _changed(joint)
    if not joint.tangents:
        graph = compute_again(graph)
        nodes, outputs = graph.nodes, graph.outputs[:n_forward]
        forward = unalias(build("forward", primals, nodes, outputs), joint.n_results, mutated)
        forward.overwrites = _overwrites(joint)
        return AotGraphs(forward, None, _signature(joint, (), ()))
    plan = study(graph, primals, outputs, gradients, frozenset(mutated))
    saved = with_sizes(plan, choose_saved(plan, budget), joint.tangents)
    return _split(joint, plan, saved, outputs, gradients)


def _simplified(joint: Joint) -> Graph:
    graph = eliminate_common_subexpressions(simplify(eliminate_dead_code(joint.graph)))
    if joint.tangents:
        graph = eliminate_common_subexpressions(split_norms(graph))
    return eliminate_dead_code(graph)


@dataclass(frozen=True)
class Budget:
    """What a memory budget gives: bytes saved for the backward; bytes of memory traffic to compute the rest again, and
    the most bytes that are held at once (estimates: the partitioner's own)."""

    budget: float
    saved: int
    again: float
    peak: int


def budget_curve(joint: Joint, budgets: Sequence[float] = BUDGETS) -> list[Budget]:
    """The memory and time that each ``activation_memory_budget`` gives a joint graph. Empty without a backward."""
    if not joint.tangents:
        return []
    with paused_gc():
        graph = _simplified(joint)
        n = joint.n_results + len(joint.mutated)
        primals = graph.inputs[: joint.n_primals]
        plan = study(graph, primals, graph.outputs[:n], graph.outputs[n:], frozenset(_changed(joint)))
        chosen = [(b, choose_saved(plan, b)) for b in budgets]
        sizes = {n: nbytes(n) for n in graph.nodes}
        return [
            Budget(b, saved_bytes(plan, s), recomputed(plan, s), peak_bytes(plan, s, sizes)) for b, s in chosen
        ]  # fmt: skip


def curve_text(curve: Sequence[Budget]) -> str:
    """The curve as a table, with a bar for what is saved."""
    most = max((p.saved for p in curve), default=0) or 1
    lines = ["budget   saved for backward    computed again       held at most"]
    for p in curve:
        bar = "#" * round(30 * p.saved / most)
        sizes = "   ".join(f"{n / 2**20:11.1f} MiB" for n in (p.saved, p.again, p.peak))
        lines.append(f"{p.budget:6.2f}      {sizes}   {bar}")
    return "\n".join(lines)


def _overwrites(joint: Joint) -> tuple[tuple[int, int], ...]:
    """The forward's outputs that may be written into the inputs themselves, as ``ir.signature`` has it."""
    return tuple((joint.n_results + k, m.index) for k, m in enumerate(joint.mutated) if not m.differentiable)


def _changed(joint: Joint) -> list[int]:
    """Inputs that the call overwrites or reshapes: a backward that needs them needs copies."""
    return sorted({m.index for m in joint.mutated} | {i for i, _ in joint.reshaped})


def _signature(joint: Joint, saved: tuple[SavedRef, ...], watched: tuple[int, ...]) -> Signature:
    return Signature(
        n_inputs=joint.n_primals,
        n_results=joint.n_results,
        outputs=joint.outputs,
        result_grads=joint.result_grads,
        mutated=joint.mutated,
        saved=saved,
        tangents=tuple(t.val for t in joint.tangents),
        input_grads=tuple(isinstance(g, Node) for g in joint.gradients),
        watched=watched,
        random=any(_random(n) for n in joint.graph.calls),
        stale=bool(joint.mutated) and _stale(joint),
        sizes=_sizes(joint),
        reshaped=joint.reshaped,
        shown=joint.shown,
    )


def _sizes(joint: Joint) -> tuple[tuple[str, int, int], ...]:
    found: dict[str, tuple[str, int, int]] = {}
    for i, p in enumerate(joint.primals):
        if isinstance(p.val, Expr):
            found[p.name] = (p.name, i, -1)
    for i, p in enumerate(joint.primals):
        for d, n in enumerate(p.val.sizes if isinstance(p.val, TensorType) else ()):
            s = symbol_of(n)
            if s is not None:
                found.setdefault(s.name, (s.name, i, d))
    return tuple(found.values())


_UNREAD = {  # operators whose results up to a number do not depend on some arguments
    torch.ops.aten._native_batch_norm_legit_functional.default: (3, (3, 4)),
}


def _stale(joint: Joint) -> bool:
    """Whether results depend on what a mutated input was before. Batch norms do not, on their running statistics."""
    old = {joint.primals[m.index] for m in joint.mutated}
    seen: set[Node] = set()
    stack = nodes_in(joint.graph.outputs[: joint.n_results])
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in old:
            return True
        call = n.args[0] if n.target is operator.getitem else n
        unread = _UNREAD.get(call.target) if isinstance(call, Node) and call is not n else None
        if unread is not None and n.args[1] < unread[0]:
            stack += nodes_in([a for i, a in enumerate(call.args) if i not in unread[1]])
        else:
            stack += operands(n)
    return False


def _random(n: Node) -> bool:
    return n.target is philox_seed or draws(n.target)


def _split(joint: Joint, plan: Plan, saved: list[Node], outputs: Any, gradients: Any) -> AotGraphs:
    graph = plan.graph
    primals = graph.inputs[: joint.n_primals]
    results = list(outputs[: joint.n_results])
    mutated = set(_changed(joint))
    place: dict[Node, SavedRef] = {}
    extras: list[Node] = []
    stored: dict[Node, Node] = {}
    for v in saved:
        if isinstance(v.val, Expr):
            place[v] = SavedRef("size", plan.primal_index[v])
        elif v in plan.primal_index and plan.primal_index[v] not in mutated:
            place[v] = SavedRef("input", plan.primal_index[v])
        elif v in results and not gaps(v):
            place[v] = SavedRef("result", results.index(v))
        else:
            copy = packed(plan, v)
            if copy is not None:
                stored[v] = copy
            place[v] = SavedRef("extra", len(extras))
            extras.append(stored.get(v, v))
    nodes = _forward_nodes(plan, [*outputs, *extras], stored)
    forward = unalias(build("forward", primals, nodes, (*outputs, *extras)), joint.n_results, sorted(mutated))
    forward.overwrites = _overwrites(joint)
    roots = {storage_root(e) for e in extras}
    watched = tuple(i for i, r in enumerate(results) if isinstance(r, Node) and storage_root(r) in roots)
    backward = _backward(plan, saved, stored, graph.inputs[joint.n_primals :], gradients)
    return AotGraphs(forward, backward, _signature(joint, tuple(place[v] for v in saved), watched))


def _forward_nodes(plan: Plan, wanted: list[Any], stored: dict[Node, Node]) -> list[Node]:
    """The nodes that the wanted values need, in the joint's order, stored copies after their sources."""
    live = set(nodes_in(wanted)) | set(stored)
    kept: list[Node] = []
    for n in reversed(plan.graph.nodes):
        if n in live or n.tags.get("effect") and n not in plan.late:
            if n in stored:
                kept.append(stored[n])
            kept.append(n)
            live.update(operands(n))
    kept.reverse()
    return kept


def _backward(
    plan: Plan, saved: list[Node], stored: dict[Node, Node], tangents: Sequence[Node], gradients: Any
) -> Graph:
    """The backward graph. What is computed again, or unpacked, is placed right before its first use."""
    inputs = [_as_input(v, stored.get(v, v).val) for v in saved] + list(tangents)
    env = dict(zip(saved, inputs))
    packs = {v: unpack for v, x in zip(saved, inputs) if (unpack := unpacked(v, x)) is not None}
    order = backward_order(plan, set(saved), packs)
    nodes = []
    for n in order:
        if n in packs:
            new = env[n] = packs[n]
        else:
            new = replaced(n, env)
            if new is not n:
                env[n] = new
        nodes.append(new)
    return unalias_gradients(build("backward", inputs, nodes, substituted(tuple(gradients), env)), len(saved))


def _as_input(node: Node, val: Any) -> Node:
    return Node(node.name, "input", None, (), {}, val, node.loc)
