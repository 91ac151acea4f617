"""Starts of collectives move up, waits down; bytes in flight are bounded; nothing gives its memory away too early."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.inductor.fuse import fuse, overlap, plan
from braze.inductor.fuse.schedule import reads_of, writes_of
from braze.inductor.loops import Extern, Program, lower
from braze.ir import Graph, Node, TensorType, contiguous_strides
from braze.prims.collective import collective
from braze.prims.decompose import decompose

aten = torch.ops.aten
N = 64


def typed(*sizes: int) -> TensorType:
    return TensorType(sizes, contiguous_strides(sizes), torch.float32, torch.device("cpu"))


def gather(g: Graph, x: Node) -> Node:
    node = g.call(collective("all_gather_into_tensor"), (x, 2, "0"), {}, typed(2 * N, N))
    node.tags["effect"] = True
    return node


def layers(n: int) -> Graph:
    """Products with gathered weights, one after the other: all weights are inputs."""
    g = Graph("forward")
    h = g.input("x", typed(N, N))
    weights = [g.input(f"w{k}", typed(N, N)) for k in range(n)]
    for w in weights:
        whole = gather(g, w)
        wide = g.call(aten.mm.default, (h, g.call(aten.t.default, (whole,), {}, t_of(whole))), {}, typed(N, 2 * N))
        h = g.call(aten.mm.default, (wide, whole), {}, typed(N, N))
    g.outputs = (h,)
    return g


def t_of(n: Node) -> TensorType:
    (a, b), (s, t) = n.val.sizes, n.val.strides
    return TensorType((b, a), (t, s), torch.float32, torch.device("cpu"))


def names(program: Program) -> list[str]:
    short = {"start_all_gather_into_tensor": "start", "wait_tensor": "wait"}
    found = [getattr(s.target, "__name__", str(s.target)) for s in program.steps if isinstance(s, Extern)]
    return [short.get(n, "mm") for n in found]


def test_gathers_run_ahead() -> None:
    assert names(fuse(lower(decompose(layers(3))))) == "start start start wait mm mm wait mm mm wait mm mm".split()


def test_bytes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "IN_FLIGHT", 1)
    got = names(fuse(lower(decompose(layers(4)))))
    assert got == "start start wait start mm mm wait start mm mm wait mm mm wait mm mm".split()


def test_what_a_pending_collective_reads_is_not_reused() -> None:
    g = Graph("forward")
    x = g.input("x", typed(N, N))
    a = g.call(aten.sin.default, (x,), {}, typed(N, N))
    whole = gather(g, a)
    b = g.call(aten.cos.default, (x,), {}, typed(N, N))
    c = g.call(aten.mm.default, (b, b), {}, typed(N, N))
    d = g.call(aten.exp.default, (c,), {}, typed(N, N))
    e = g.call(aten.mm.default, (d, d), {}, typed(N, N))
    g.outputs = (g.call(aten.tanh.default, (whole,), {}, typed(2 * N, N)), e)
    program = plan(fuse(lower(decompose(g))))
    kinds: list[Any] = [getattr(s.target, "__name__", "") if isinstance(s, Extern) else "" for s in program.steps]
    begun, waited = kinds.index("start_all_gather_into_tensor"), kinds.index("wait_tensor")
    (read,) = [b for b in reads_of(program.steps[begun]) if b.type.numel == N * N]
    pending = writes_of(program.steps[begun])[0]
    for new, old in program.reuse.items():
        made = next(k for k, s in enumerate(program.steps) if new in writes_of(s))
        assert old is not pending
        assert old is not read or made > waited, "overwritten while it is sent"


def test_every_collective_is_issued() -> None:
    g = Graph("forward")
    x = g.input("x", typed(N, N))
    gather(g, x)
    g.outputs = (g.call(aten.sin.default, (x,), {}, typed(N, N)),)
    assert "start" in names(fuse(lower(decompose(g))))
