"""``freeze``: an inference program over weights that stay.

    c = convolution(x, w); n = native_batch_norm(c, …)[0]; a = n + y; r = relu(a)
        ->  r = packed_conv(x, y, w, None, gamma, beta, mean, var)

Convolutions of float32 images on the CPU take the batch norm, the addition and the activation that follow, and give
channels_last where only others of their kind read them; linear layers are packed.  Weights are graph inputs (what
computes its weights stays as it is); ``runtime.packed`` sees when they change.  Programs that record gradients are not
touched.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from braze.fake.layout import channels_last
from braze.ir import Expr, Graph, Node, TensorType, leaves, map_leaves
from braze.prims.decompositions.conv import of_few_pixels
from braze.runtime.packed import PackedConv, PackedLinear, available

aten = torch.ops.aten
NORMS = (aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default)
LIGHT = 1 << 17
"""Elements of a weight up to which a convolution of few single pixels is faster as a plain product (``prims``) than
packed."""
AFTER = {
    aten.relu.default: "relu",
    aten.hardtanh.default: "hardtanh",
    aten.silu.default: "swish",
    aten.hardswish.default: "hardswish",
}
"""What a convolution may end with, and oneDNN's name for it; further arguments are numbers."""


@dataclass
class Fused:
    """A convolution and what it takes in: ``last`` is the node whose value it gives."""

    conv: Node
    last: Node
    norm: Node | None = None
    other: Node | None = None
    after: tuple[str, list[Any]] = ("none", [])
    members: list[Node] = field(default_factory=list)


def freeze(graph: Graph) -> Graph:
    """The graph with its convolutions and linear layers over packed weights."""
    if not available():
        return graph
    users = graph.users()
    outputs = [x for x in leaves(graph.outputs) if isinstance(x, Node)]
    claimed: set[Node] = set()
    found = [_grow(n, users, set(outputs), claimed) for n in graph.nodes if _packable(n)]
    by_last = {f.last: f for f in found}
    inside = {m for f in found for m in f.members} - by_last.keys()
    packed_reads = {n for f in found for n in (f.conv.args[0], f.other)}
    out = Graph(graph.name)
    env: dict[Node, Node] = {}

    def new(x: Any) -> Any:
        return env[x] if isinstance(x, Node) else x

    for n in graph.nodes:
        if n in by_last:
            stays = n in packed_reads and n not in outputs and all(_owner(u, found) for u in users[n])
            env[n] = _packed(out, by_last[n], env, stays)
        elif n in inside:
            continue
        elif _packable_linear(n):
            bias, x, w = (None, *n.args) if n.target is aten.mm.default else n.args
            env[n] = out.call(PackedLinear(), (env[x], env[w.args[0]], new(bias)), {}, n.val, n.loc, "packed_linear")
        elif n.op == "input":
            env[n] = out.input(n.name, n.val, n.loc)
        elif n.op == "const":
            env[n] = out.const(n.target, n.val, n.name)
        else:
            args, kwargs = map_leaves(n.args, new), map_leaves(n.kwargs, new)
            env[n] = out.call(n.target, args, kwargs, n.val, n.loc, n.name)
            env[n].tags = dict(n.tags)
    out.outputs = map_leaves(graph.outputs, new)
    return out


def _packable(n: Node) -> bool:
    if n.target is not aten.convolution.default or n.op != "call":
        return False
    x, w, b, *settings = n.args
    return (
        not settings[3]
        and not (of_few_pixels(x.val, w.val, n.val, settings) and prod(w.val.sizes) <= LIGHT)
        and w.op == "input"
        and (b is None or b.op == "input")
        and _plain(x.val)
        and x.val.rank == 4
        and _plain(w.val)
    )


def _plain(t: Any) -> bool:
    """A float32 tensor of known sizes on the CPU."""
    known = isinstance(t, TensorType) and not any(isinstance(s, Expr) for s in (*t.sizes, *t.strides))
    return known and t.dtype is torch.float32 and t.device.type == "cpu" and 0 not in t.sizes


def _packable_linear(n: Node) -> bool:
    if n.op != "call" or n.target not in (aten.addmm.default, aten.mm.default) or n.kwargs:
        return False
    bias, x, w = (None, *n.args) if n.target is aten.mm.default else n.args
    turned = w.op == "call" and w.target is aten.t.default and w.args[0].op == "input"
    vector = bias is None or (_plain(bias.val) and bias.val.rank == 1 and bias.val.sizes[0] == n.val.sizes[1])
    return turned and vector and _plain(x.val) and _plain(w.val)


def _sole_user(n: Node, users: dict[Node, list[Node]], outputs: set[Node]) -> Node | None:
    return users[n][0] if len(users[n]) == 1 and n not in outputs else None


def _grow(conv: Node, users: dict[Node, list[Node]], outputs: set[Node], claimed: set[Node]) -> Fused:
    """What follows a convolution and can be computed with it; an addition of two goes to the first."""
    f = Fused(conv, conv, members=[conv])
    norm = _sole_user(conv, users, outputs)
    if norm is not None and norm.target in NORMS and _folds(norm, conv, users):
        f.norm, f.last = norm, users[norm][0]
        f.members += [norm, f.last]
    user = _sole_user(f.last, users, outputs)
    if user in claimed:
        user = None
    if user is not None and user.target is aten.add.Tensor and not user.kwargs and len(user.args) == 2:
        other = user.args[1] if user.args[0] is f.last else user.args[0]
        same = isinstance(other, Node) and other is not f.last and _plain(other.val)
        if same and other.val.sizes == f.last.val.sizes and other not in f.members:
            f.other, f.last = other, user
            f.members.append(user)
            user = _sole_user(f.last, users, outputs)
    after = AFTER.get(user.target) if user is not None else None
    if after != "relu" and f.other is not None:
        after = None  # after an addition oneDNN has nothing else
    if user is not None and after is not None and not user.kwargs:
        f.after, f.last = (after, [float(v) for v in user.args[1:]]), user
        f.members.append(user)
    claimed.update(f.members)
    return f


def _folds(norm: Node, conv: Node, users: dict[Node, list[Node]]) -> bool:
    """True for a batch norm in evaluation mode over graph inputs, of whose results only the first is used."""
    if norm.args[0] is not conv or (norm.target is NORMS[0] and norm.args[5]):
        return False
    weights = norm.args[1:5]
    fine = all(w is None or (w.op == "input" and _plain(w.val)) for w in weights) and None not in weights[2:]
    only = users[norm]
    return fine and len(only) == 1 and only[0].target is operator.getitem and only[0].args[1] == 0


def _owner(user: Node, found: list[Fused]) -> bool:
    """True when a packed convolution reads through this user."""
    return any(
        user is f.conv or (f.other is not None and user in f.members and user.target is aten.add.Tensor) for f in found
    )


def _packed(out: Graph, f: Fused, env: dict[Node, Node], stays: bool) -> Node:
    x, w, b, stride, padding, dilation, _, _, groups = f.conv.args
    norm = list(f.norm.args[1:5]) if f.norm is not None else []
    eps = f.norm.args[-1] if f.norm is not None else None
    call = PackedConv(stride, padding, dilation, groups, eps, f.after)
    args = tuple([None if a is None else env[a] for a in (x, f.other, w, b, *norm)])
    val = f.last.val
    if stays:
        val = val.with_(strides=channels_last(val.sizes))
    return out.call(call, args, {}, val, f.last.loc, "packed_conv")
