"""The invariants of joint graphs and of partitions, checked. AssertionError names what breaks one."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from ..ir import Node, TensorType, leaves, verify
from .joint import Joint
from .partition import AotGraphs
from .rewrite import operands
from .schema import op_info

aten = torch.ops.aten


def verify_joint(joint: Joint) -> Joint:
    """Functional calls of one form, a type on every value, tangents and gradients that fit; returns the joint."""
    graph = verify(joint.graph)
    for n in graph.calls:
        _verify_call(n)
    n_heads = sum(joint.result_grads) + sum(m.differentiable for m in joint.mutated)
    assert len(joint.tangents) in (0, n_heads), f"{len(joint.tangents)} tangents for {n_heads} differentiable outputs"
    assert len(joint.result_grads) == joint.n_results
    assert len(graph.outputs) == joint.n_results + len(joint.mutated) + joint.n_primals
    for p, g in zip(joint.primals, joint.gradients):
        if g is not None:
            assert (g.val.sizes, g.val.dtype, g.val.device) == (p.val.sizes, p.val.dtype, p.val.device), (
                f"the gradient {g.name}: {g.val} does not fit {p.name}: {p.val}"
            )
    late: set[Node] = set(joint.tangents)
    for n in graph.nodes:
        if not late.isdisjoint(operands(n)):
            late.add(n)
    for out in leaves(joint.forward_outputs):
        assert out not in late, f"the output {out} depends on a tangent"
    return joint


def _verify_call(n: Node) -> None:
    if isinstance(n.target, OpOverload):
        assert not op_info(n.target).writes, f"{n.name} calls {n.target}, which overwrites an argument"
    assert n.val is not None or n.tags.get("effect"), f"{n.name} has no type"
    for x in leaves((n.args, n.kwargs)):
        assert not isinstance(x, torch.Tensor), f"{n.name} holds a tensor that is no node"


def verify_aot(aot: AotGraphs) -> AotGraphs:
    """Graphs whose inputs and outputs are what the signature says; returns them."""
    sig = aot.signature
    forward = verify(aot.forward)
    n_extras = sum(r.kind == "extra" for r in sig.saved)
    assert len(forward.inputs) == sig.n_inputs == len(sig.input_grads)
    assert len(forward.outputs) == sig.n_results + len(sig.mutated) + n_extras
    assert (aot.backward is not None) == sig.differentiable
    if aot.backward is None:
        return aot
    backward = verify(aot.backward)
    assert len(backward.inputs) == len(sig.saved) + len(sig.tangents)
    assert len(backward.outputs) == sig.n_inputs
    extras = forward.outputs[sig.n_results + len(sig.mutated) :]
    sources: dict[str, Any] = {"input": forward.inputs, "result": forward.outputs[: sig.n_results], "extra": extras}
    for ref, b in zip(sig.saved, backward.inputs):
        f = sources[ref.kind][ref.index]
        assert _shape(f.val) == _shape(b.val), f"saved {b.name}: {b.val} is {f.val} in the forward"
    for t, b in zip(sig.tangents, backward.inputs[len(sig.saved) :]):
        assert _shape(t) == _shape(b.val), f"tangent {b.name}: {b.val}, not {t}"
    return aot


def _shape(t: TensorType) -> Any:
    return t.sizes, t.dtype, t.device
