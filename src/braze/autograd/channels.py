"""Convolutions in channels_last, with everything between them in the layout that follows.

    y = convolution(x, w); z = relu(y); return z
        ->  x1 = clone(x, channels_last); w1 = clone(w, channels_last)
            y = convolution(x1, w1); z = relu(y); return clone(z, contiguous)

Tensor cores want channels innermost: given other layouts, the vendor library converts each operand and result on its
own.  So does the CPU's, whose vectors lie along channels.  Only strides change, so every value stays what it was; the
graph's outputs leave in their old layout.  A call that cannot take an operand in its new layout (a view that does not
exist there) gets it in the old one.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..fake import find_rule
from ..fake.layout import channels_last as channels_last_strides
from ..fake.layout import is_channels_last, is_dense
from ..ir import Expr, Graph, IntLike, Node, TensorType, evaluate, map_leaves
from ..prims.decompositions.conv import of_few_pixels
from .biases import biases_apart
from .blocks import Blocks, blocks_of, input_in_blocks, weight_from_blocks, weight_in_blocks
from .costs import Kind, kind_of
from .joint import Joint
from .layout import relayout, same_strides
from .rewrite import build, operands, replaced, substituted

aten = torch.ops.aten
LEAD = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
"""The convolutions, with the number of leading operands whose layout counts."""
OWN = {aten.native_group_norm.default}
"""Calls that generated kernels always compute: their result takes its operand's layout, whatever the library's has."""
_BY_STRIDE = ("as_strided", "view_as_complex", "view_as_real", "view.dtype")
"""What reads memory rather than elements: it gets the layout that it was traced with."""


def channels_last(joint: Joint) -> Joint:
    """The joint graph with its convolutions in channels_last, where the device gains by that and every new type is
    known (symbolic sizes may leave one open); on a GPU with their biases apart."""
    graph = joint.graph
    if _worth(graph):
        try:
            graph = _Relayout(graph).run()
        except Unsupported:
            pass
    graph = biases_apart(graph)
    return joint if graph is joint.graph else replace(joint, graph=graph)


def _worth(graph: Graph) -> bool:
    """True where most of the convolutions' arithmetic is dense (not depthwise) and runs on tensor cores. A CPU gains by
    each convolution that takes it."""
    dense = other = 0.0
    for n in graph.nodes:
        if n.target is aten.convolution.default and _takes_last(n):
            work = _work(n)
            if n.args[8] == 1 or n.val.device.type == "cpu":
                dense += work
            else:
                other += work
    return dense > other


def _takes_last(n: Node) -> bool:
    x: TensorType = n.args[LEAD[n.target] - 2].val
    if x.rank != 4:
        return False
    if x.device.type == "cpu":
        return _cpu_gains(n, x)
    half = x.dtype in (torch.float16, torch.bfloat16)
    return half or (x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32)


def _cpu_gains(n: Node, x: TensorType) -> bool:
    """True where oneDNN is known to be faster in channels_last: not where it spends its time on reordering weights,
    which is faster from contiguous ones (512 channels on 2 x 2 pixels: 1.7x). And not where its backward is wrong: of
    strided 1 x 1 convolutions of less than 16 channels it writes beyond its memory (torch 2.14, eager's too), unless
    they will be products."""
    lead = LEAD[n.target]
    w, result = n.args[lead - 1].val, n.args[0].val if lead == 3 else n.val
    sizes = (*x.sizes, *w.sizes, *result.sizes)
    transposed = n.args[7 if lead == 3 else 6]
    if transposed or x.dtype is not torch.float32 or w.rank != 4 or not all(isinstance(k, int) for k in sizes):
        return False
    single = list(w.sizes[2:]) == [1, 1]
    settings = n.args[4:10] if lead == 3 else n.args[3:9]
    if single and w.sizes[1] < 16 and any(k != 1 for k in settings[0]):
        last = [t.with_(strides=channels_last_strides(t.sizes)) for t in (x, result)]
        return of_few_pixels(last[0], w, last[1], settings)
    weight = 0 if single else prod(w.sizes)
    return bool(torch._C._has_mkldnn) and weight <= prod(x.sizes) + prod(result.sizes)


def _work(n: Node) -> float:
    w: TensorType = n.args[1].val
    return float(prod(map(_number, n.val.sizes))) * prod(map(_number, w.sizes[1:]))


def _number(n: IntLike) -> int:
    try:
        return evaluate(n) if isinstance(n, Expr) else n
    except ValueError:
        return 64


class _Relayout:
    """Rebuilds a graph call by call: ``env`` maps its nodes to those of the new one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out = Graph(graph.name)
        self.out._names = {n.name: 0 for n in graph.nodes}
        self.env: dict[Node, Node] = {}
        self.formed: dict[Node, Node] = {}  # new node -> its copy in channels_last
        self.blocked: dict[tuple[Node, Blocks], Node] = {}
        self.parts: dict[tuple[Node, int], Node] = {}  # (old call, place) -> what its result is made of
        self.made: set[Node] = set()  # stand-ins that are in the new graph already
        self.restored: dict[Node, Node] = {}  # old node -> the new value in the old layout

    def call(self, op: OpOverload, *args: Any, **kwargs: Any) -> Node:
        """One more call (for ``layout.relayout`` too)."""
        return self.out.call(op, args, kwargs, _infer(op, args, kwargs))

    def run(self) -> Graph:
        for n in self.graph.nodes:
            if n.op == "call":
                new = self._convolution(n) if n.target in LEAD and _takes_last(n) else self._follow(n)
                if new is n or new not in self.made:
                    self.out.nodes.append(new)
                if new is not n:
                    self.env[n] = new
            elif n.op == "const":
                self.out.nodes.append(n)
        outputs = map_leaves(self.graph.outputs, lambda x: self._restore(x) if isinstance(x, Node) else x)
        return build(self.graph.name, self.graph.inputs, [*self.graph.inputs, *self.out.nodes], outputs)

    def _convolution(self, n: Node) -> Node:
        lead = LEAD[n.target]
        args = [self.env.get(a, a) if isinstance(a, Node) else a for a in n.args]
        blocks = self._blocks(n, args, lead)
        if blocks is not None:
            return self._in_blocks(n, args, lead, blocks)
        laid = lead if n.args[1].val.device.type == "cuda" else lead - 1  # a CPU's weights are reordered at each call
        args[:laid] = [self._form(a) for a in args[:laid]]
        return _like(n, tuple(args), n.kwargs, _laid(n.val, _infer(n.target, tuple(args), n.kwargs)))

    def _blocks(self, n: Node, args: list[Any], lead: int) -> Blocks | None:
        backward = lead == 3
        if n.args[1].val.device.type == "cpu" or (backward and args[-1][0]):
            return None  # the input's gradient is asked for
        return blocks_of(args[lead - 2].val, args[lead - 1].val, args[4:10] if backward else args[3:9])

    def _in_blocks(self, n: Node, args: list[Any], lead: int, b: Blocks) -> Node:
        """The call over blocks of pixels; a weight's gradient comes back from them (``self.parts``)."""
        x, w = args[lead - 2 : lead]
        for at, v, make in ((lead - 2, x, input_in_blocks), (lead - 1, w, weight_in_blocks)):
            if (v, b) not in self.blocked:
                self.blocked[v, b] = make(self, v, b)
            args[at] = self._form(self.blocked[v, b])
        first = 4 if lead == 3 else 3
        args[first : first + 2] = [1, 1], [0, 0]
        if lead == 2:
            return _like(n, tuple(args), n.kwargs, _laid(n.val, _infer(n.target, tuple(args), n.kwargs)))
        args[0] = self._form(args[0])
        val = _infer(n.target, tuple(args), n.kwargs)
        made = self.out.call(n.target, tuple(args), n.kwargs, val, n.loc)
        made.tags = n.tags
        if args[-1][1]:
            self.parts[n, 1] = weight_from_blocks(self, self.out.getitem(made, 1), b, w.val)
        self.made.update((made, *self.parts.values()))
        return made

    def _form(self, x: Node) -> Node:
        """A value in channels_last."""
        if is_channels_last(x.val.sizes, x.val.strides):
            return x
        found = self.formed.get(x)
        if found is None:
            found = self.formed[x] = self.call(aten.clone.default, x, memory_format=torch.channels_last)
        return found

    def _follow(self, n: Node) -> Node:
        """The call on its operands' new layouts, where it can take them."""
        if n.target is operator.getitem and n.args in self.parts:
            return self.parts[n.args]
        changed = {a: b for a in operands(n) if (b := self.env.get(a)) is not None}
        if _only_lays_out(n, changed):
            return replaced(n, changed).args[0]  # type: ignore[no-any-return]
        if not changed:
            return n
        new = replaced(n, changed)
        if all(_same(a.val, b.val) for a, b in changed.items()):
            return new
        if n.target is operator.getitem:
            return _like(n, new.args, new.kwargs, new.args[0].val[new.args[1]])
        if _by_element(n.target):
            try:
                stays = n.target in LEAD and n.args[1].val.device.type == "cpu"  # a convolution that gains by nothing
                val = None if stays else _infer(n.target, new.args, new.kwargs)
            except (Unsupported, RuntimeError, ValueError):
                val = None
            if val is not None:
                return _like(n, new.args, new.kwargs, _leaned(new, _laid(n.val, _owned(new, val))))
        return replaced(n, {a: self._restore(a) for a in changed})

    def _restore(self, old: Node) -> Node:
        """The new value of an old node, with the old strides."""
        new = self.env.get(old, old)
        if not isinstance(new.val, TensorType) or same_strides(new.val.sizes, new.val.strides, old.val.strides):
            return new
        found = self.restored.get(old)
        if found is None:
            gaps = not is_dense(old.val.sizes, old.val.strides)
            found = self.restored[old] = self._viewed(old) if gaps else relayout(self, new, old.val, old)
        return found

    def _viewed(self, old: Node) -> Node:
        """A view with gaps between its elements, or what it is taken of: the same call on its operands' old layouts."""
        if kind_of(old) is not Kind.VIEW and not isinstance(old.val, (tuple, list)):
            raise Unsupported(f"the layout of {old.name}, which has gaps and is no view")
        seen = {a: self._restore(a) if isinstance(a.val, TensorType) else self._viewed(a) for a in operands(old)}
        args, kwargs = substituted((old.args, old.kwargs), seen)
        return self.out.call(old.target, args, kwargs, old.val, old.loc)


def _infer(op: Any, args: Any, kwargs: Any) -> Any:
    rule = find_rule(op)
    if rule is None:
        raise Unsupported(f"no shape rule for {op}")
    types, named = map_leaves((args, kwargs), lambda x: x.val if isinstance(x, Node) else x)
    return rule(*types, **named)


def _leaned(n: Node, val: Any) -> Any:
    """The result of pointwise arithmetic in channels_last where an operand is: eager follows the first operand, which
    may be an expanded vector laid out otherwise. Such a result exists in fused kernels alone."""
    if kind_of(n) not in (Kind.CHEAP, Kind.COSTLY) or n.kwargs or n.target is aten.clone.default:
        return val
    if not isinstance(val, TensorType) or val.rank != 4 or is_channels_last(val.sizes, val.strides):
        return val
    last = channels_last_strides(val.sizes)
    if any(isinstance(t := a.val, TensorType) and t.sizes == val.sizes and t.strides == last for a in operands(n)):
        return val.with_(strides=last)
    return val


def _owned(n: Node, val: Any) -> Any:
    """The results of a call that generated kernels compute, the first in its operand's layout."""
    x: Any = n.args[0].val if n.target in OWN else None
    if x is None or x.rank != 4 or any(n == 0 for n in x.sizes) or not is_channels_last(x.sizes, x.strides):
        return val
    return val[0].with_(strides=x.strides), *val[1:]


def _only_lays_out(n: Node, changed: dict[Node, Node]) -> bool:
    """True for a copy of channels_last into contiguous memory on a GPU, as a norm makes for itself."""
    if n.target is not aten.clone.default or n.kwargs.get("memory_format") is not torch.contiguous_format:
        return False
    x: TensorType = changed.get(n.args[0], n.args[0]).val
    return x.device.type == "cuda" and x.rank == 4 and is_channels_last(x.sizes, x.strides)


def _laid(old: Any, new: Any) -> Any:
    """The type ``old`` with the strides of ``new``."""
    if isinstance(old, TensorType):
        assert old.sizes == new.sizes, f"{old} became {new}"
        return old if old.strides == new.strides else old.with_(strides=new.strides)
    return tuple(map(_laid, old, new)) if isinstance(old, (tuple, list)) else old


def _like(n: Node, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> Node:
    out = Node(n.name, n.op, n.target, args, kwargs, val, n.loc)
    out.tags = n.tags
    return out


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, TensorType):
        return bool(a.strides == b.strides)
    return not isinstance(a, (tuple, list)) or all(_same(x, y) for x, y in zip(a, b))


def _by_element(target: Any) -> bool:
    """True for ATen operators whose meaning does not depend on where in memory elements lie."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    name = str(target).removeprefix("aten.")
    return not any(name.startswith(b) for b in _BY_STRIDE)
