"""Writes graphs of primitives: vals by shape rule, broadcasting and promotion by ATen's rules, equal calls shared.

Every elementwise primitive is a method: ``b.add(x, y)`` broadcasts its operands (an explicit ``expand``) and wants one
dtype; ``b.promoted(x, y)`` converts first.  Operands are nodes or Python numbers.  Only primitives are ever shared, and
they are pure, so a call equal to an earlier one gives the earlier node.  Calls on ``full`` fold to numbers.

>>> import torch; from braze.ir import Graph, tensor_type; from braze.prims.builder import Builder
>>> g = Graph(); b = Builder(g); x = g.input("x", tensor_type((2, 3))); y = g.input("y", tensor_type((3,)))
>>> g.outputs = (b.maximum(b.add(x, y), 0),); print(g)
def forward(x, y):  # x: f32[2, 3], y: f32[3]
    expand = prims.expand(y, (2, 3))  # f32[2, 3]{0, 1}
    add = prims.add(x, expand)  # f32[2, 3]
    maximum = prims.maximum(add, 0)  # f32[2, 3]
    return (maximum,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from braze.fake.layout import broadcast as broadcast_sizes
from braze.fake.promote import result_type
from braze.ir import Expr, Graph, IntLike, Node, TensorType, contiguous_strides, known_eq, product

from .elementwise import DTYPES, FLOATS
from .prim import PRIMS, Prim
from .reduction import Dims

Operand = Any  # a tensor Node, a Node of a number, or a Python number
Ints = Sequence[IntLike]

_FULL, _CLONE, _CONVERT, _WHERE = (PRIMS[n] for n in ("full", "clone", "convert", "where"))
_EXPAND, _PERMUTE, _RESHAPE, _SLICE = (PRIMS[n] for n in ("expand", "permute", "reshape", "slice"))
_aten = torch.ops.aten
_OPMATH = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_LOSSLESS = {
    (a, b)
    for wide in (
        (torch.float16, torch.float32, torch.float64),
        (torch.bfloat16, torch.float32, torch.float64),
        (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64),
        (torch.int8, torch.int16, torch.int32, torch.int64),
    )
    for i, a in enumerate(wide)
    for b in wide[i + 1 :]
}


def is_tensor(x: Any) -> bool:
    """True for a node whose value is a tensor."""
    return isinstance(x, Node) and isinstance(x.val, TensorType)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on ``dtype`` is done in: float32 for the 16-bit floats."""
    return _OPMATH.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices that depend on the code generator. ``split_addmm``: bias addition apart from the matrix product (so that
    it fuses with what follows) instead of one vendor call. ``one_pass_statistics``: batch statistics from one pass over
    the input, in place of two (a little less exact; see ``reduce.shifted_moments``). ``max_pools``: maxima over windows
    as arithmetic, which fuses with its neighbours, instead of a vendor call. ``pixel_products``: convolutions of few
    single pixels in channels_last as products of matrices."""

    split_addmm: bool = False
    one_pass_statistics: bool = False
    max_pools: bool = False
    pixel_products: bool = False


class Builder:
    """Appends primitives to ``graph``. ``out`` is the type that the present ATen call promises (or a nest of them)."""

    def __init__(self, graph: Graph, policy: Policy | None = None) -> None:
        self.graph = graph
        self.policy = policy or Policy()
        self.out: Any = None
        self._seen: dict[Any, Node] = {}

    def __getattr__(self, name: str) -> Callable[..., Node]:
        """Elementwise primitives as methods."""
        prim = PRIMS.get(name)
        if prim is None or prim.family != "elementwise":
            raise AttributeError(name)

        def method(*operands: Operand) -> Node:
            return self.elementwise(prim, operands)

        self.__dict__[name] = method
        return method

    # -- calls ------------------------------------------------------------------------------------------------------

    def call(self, prim: Prim, *args: Any) -> Node:
        """``prim(*args)``; args hold nodes, numbers and tuples of them (hashable). Equal calls give one node."""
        key = (prim, *map(_key, args))
        node = self._seen.get(key)
        if node is None:
            node = self.graph.call(prim, args, val=prim.shape(*[_val(a) for a in args]))
            self._seen[key] = node
        return node

    def elementwise(self, prim: Prim, operands: Sequence[Operand]) -> Node:
        """The primitive on the broadcast operands, which must agree in dtype."""
        sizes: Any = None
        device: Any = None
        plain = True
        folded: list[Operand] = []
        for x in operands:
            if isinstance(x, Node):
                s = x.val.sizes
                if sizes is None:
                    sizes, device = s, x.val.device
                elif s != sizes or x.val.device != device:
                    plain = False
                if x.target is _FULL:
                    plain = False
            folded.append(x)
        if not plain:
            sizes = broadcast_sizes(tuple(x.val.sizes for x in operands if isinstance(x, Node)))
            device = _device(operands)
            folded = [self._fold(x, sizes, device) for x in folded]
            if prim is _WHERE and not isinstance(folded[0], Node):
                return self._as_tensor(folded[1] if folded[0] else folded[2], operands[1:], sizes, device)
            if not any(isinstance(x, Node) for x in folded) and any(isinstance(x, Expr) for x in folded):
                folded = [self.expand(x, sizes) if isinstance(x, Node) else x for x in operands]
            if not any(isinstance(x, Node) for x in folded):
                return self._evaluate(prim, operands, sizes, device)
            if prim is _WHERE and not (isinstance(folded[1], Node) or isinstance(folded[2], Node)):
                folded[1] = self._as_tensor(folded[1], operands[1:], sizes, device)
        key = (prim, *[x if isinstance(x, Node) else _key(x) for x in folded])
        node = self._seen.get(key)
        if node is None:
            val = prim.shape(*[x.val if isinstance(x, Node) else x for x in folded])
            node = self._seen[key] = self.graph.call(prim, tuple(folded), val=val)
        return node

    def _fold(self, x: Operand, sizes: Ints, device: torch.device) -> Operand:
        """A ``full`` as its number, another tensor on the device and expanded to ``sizes``."""
        if not isinstance(x, Node):
            return x
        if x.target is _FULL:
            return x.args[1]
        return self.expand(x if x.val.device == device else self.to_device(x, device), sizes)

    def _as_tensor(self, x: Operand, peers: Sequence[Operand], sizes: Ints, device: torch.device) -> Node:
        """The number x as a tensor of the sizes and dtype of its peers."""
        if isinstance(x, Node):
            return x
        dtype = next(p.val.dtype for p in peers if isinstance(p, Node))
        return self.call(_FULL, tuple(sizes), x, dtype, device)

    def _evaluate(self, prim: Prim, operands: Sequence[Operand], sizes: Ints, device: torch.device) -> Node:
        """A primitive of ``full`` tensors and numbers only: a ``full``."""
        args = [torch.tensor(x.args[1], dtype=x.val.dtype) if isinstance(x, Node) else x for x in operands]
        out = prim.reference(*args)
        return self.call(_FULL, tuple(sizes), out.item(), out.dtype, device)

    # -- dtypes -----------------------------------------------------------------------------------------------------

    def common(self, *operands: Operand) -> torch.dtype:
        """The dtype that ATen promotes the operands to."""
        return result_type(tuple(x.val if is_tensor(x) else _number_kind(x) for x in operands))

    def convert(self, x: Operand, dtype: torch.dtype) -> Any:
        """x as dtype; itself when it is that already. Numbers stay numbers (they take the tensors' dtype)."""
        if not isinstance(x, Node) or x.val.dtype == dtype:
            return x
        if x.target is _FULL and isinstance(x.args[1], Expr):
            if x.val.dtype == torch.int64:  # one conversion; of a rounded number it would be two
                return self.call(_FULL, x.args[0], x.args[1], dtype, x.val.device)
        elif x.target is _FULL:
            value = torch.tensor(x.args[1], dtype=x.val.dtype).to(dtype).item()
            return self.call(_FULL, x.args[0], value, dtype, x.val.device)
        if x.target is _CONVERT and dtype == x.args[0].val.dtype and (dtype, x.val.dtype) in _LOSSLESS:
            return x.args[0]
        key = (_CONVERT, x, dtype)
        node = self._seen.get(key)
        if node is None:
            node = self._seen[key] = self.graph.call(_CONVERT, (x, dtype), val=_CONVERT.shape(x.val, dtype))
        return node

    def promoted(self, *operands: Operand, dtype: torch.dtype | None = None) -> list[Any]:
        """The operands in their common dtype, or in ``dtype``."""
        want = dtype or self.common(*operands)
        return [self.convert(x, want) for x in operands]

    def compute(self, x: Any) -> Any:
        """x in the dtype that arithmetic on it is done in (float32 for 16-bit floats); None and numbers stay."""
        return self.convert(x, opmath(x.val.dtype)) if isinstance(x, Node) else x

    def floating(self, x: Node) -> Node:
        """x as a float tensor: integers and bool become the default dtype, 16-bit floats float32."""
        d = x.val.dtype
        out: Node = self.convert(x, opmath(d) if d in FLOATS else torch.get_default_dtype())
        return out

    def to_device(self, x: Node, device: torch.device) -> Node:
        """x copied to another device (an opaque call)."""
        val = TensorType(x.val.sizes, _CLONE.shape(x.val).strides, x.val.dtype, device)
        return self.graph.call(_aten._to_copy.default, (x,), {"device": device}, val)

    def truth(self, x: Node) -> Node:
        """x != 0 as bool."""
        return x if x.val.dtype == torch.bool else self.ne(x, 0)

    # -- views and shapes -------------------------------------------------------------------------------------------

    def expand(self, x: Node, sizes: Ints) -> Node:
        """Broadcast to sizes (no -1)."""
        sizes = tuple(sizes)
        if x.val.sizes == sizes:
            return x
        if x.target is _FULL:
            return self.call(_FULL, sizes, *x.args[1:])
        return self.call(_EXPAND, x, sizes)

    def reshape(self, x: Node, sizes: Ints) -> Node:
        """The same elements in row-major order (no -1)."""
        sizes = tuple(sizes)
        while x.val.sizes != sizes and x.target is _RESHAPE:
            x = x.args[0]
        if x.val.sizes == sizes:
            return x
        if x.target is _FULL:
            return self.call(_FULL, sizes, *x.args[1:])
        return self.call(_RESHAPE, x, sizes)

    def permute(self, x: Node, dims: Sequence[int]) -> Node:
        """Result dim i is dim dims[i] of x; negative dims count from the end."""
        r = x.val.rank
        dims = tuple(d % r for d in dims)
        if x.target is _PERMUTE:
            x, inner = x.args
            dims = tuple(inner[d] for d in dims)
        if dims == tuple(range(r)):
            return x
        if x.target is _FULL:
            return self.call(_FULL, tuple(x.val.sizes[d] for d in dims), *x.args[1:])
        return self.call(_PERMUTE, x, dims)

    def unsqueeze(self, x: Node, dim: int) -> Node:
        """A new dim of size 1 at ``dim`` of the result."""
        dim %= x.val.rank + 1
        return self.reshape(x, x.val.sizes[:dim] + (1,) + x.val.sizes[dim:])

    def slice(self, x: Node, dim: int, start: IntLike, stop: IntLike, step: IntLike = 1) -> Node:
        """x[start:stop:step] in one dim, bounds normalised by the caller."""
        sizes = x.val.sizes
        if start == 0 and stop == sizes[dim] and step == 1:
            return x
        if x.target is _FULL:
            n = (stop - start + step - 1) // step
            return self.call(_FULL, sizes[:dim] + (n,) + sizes[dim + 1 :], *x.args[1:])
        r = range(len(sizes))
        starts = tuple(start if d == dim else 0 for d in r)
        return self.call(
            _SLICE,
            x,
            starts,
            tuple(stop if d == dim else sizes[d] for d in r),
            tuple(step if d == dim else 1 for d in r),
        )

    def clone(self, x: Node, like: TensorType | None = None, fresh: bool = False) -> Node:
        """A copy of x, with the strides of ``like`` where given; never shared when ``fresh``. Exotic dtypes are copied
        by ATen."""
        if x.val.dtype not in DTYPES["clone"]:
            return self._copy(x, like or x.val)
        strides = like.strides if like is not None else None
        key = (_CLONE, x, strides)
        node = None if fresh else self._seen.get(key)
        if node is None:
            val = _CLONE.shape(x.val)
            if like is not None:
                val = TensorType(val.sizes, like.strides, val.dtype, val.device)
            node = self._seen[key] = self.graph.call(_CLONE, (x,), val=val)
        return node

    def _copy(self, x: Node, like: TensorType) -> Node:
        val = like.with_(offset=0, requires_grad=False)
        sizes, strides = list(val.sizes), list(val.strides)
        empty = _aten.empty_strided.default
        room = self.graph.call(empty, (sizes, strides), {"dtype": val.dtype, "device": val.device}, val)
        return self.graph.call(_aten.copy.default, (room, x), val=val)

    # -- creation ---------------------------------------------------------------------------------------------------

    def full(self, sizes: Ints, value: Any, dtype: torch.dtype, device: torch.device) -> Node:
        """A tensor of one value, which is rounded to dtype here."""
        if isinstance(value, (bool, int, float)):
            value = rounded(value, dtype)
        if dtype.is_complex:
            val = TensorType(tuple(sizes), contiguous_strides(tuple(sizes)), dtype, device)
            return self.graph.call(_aten.full.default, (list(sizes), value), {"dtype": dtype, "device": device}, val)
        return self.call(_FULL, tuple(sizes), value, dtype, device)

    def full_like(self, x: TensorType, value: Any) -> Node:
        """``full`` with the sizes, dtype and device of a type."""
        return self.full(x.sizes, value, x.dtype, x.device)

    def iota(self, n: IntLike, device: torch.device, start: IntLike = 0, step: IntLike = 1) -> Node:
        """start + step * (0, 1, …, n - 1), int64."""
        return self.call(PRIMS["iota"], n, start, step, torch.int64, device)

    def iota_along(self, x: TensorType, dim: int) -> Node:
        """The position along ``dim``, shaped to broadcast against x."""
        n = x.sizes[dim]
        return self.reshape(self.iota(n, x.device), tuple(n if d == dim else 1 for d in range(x.rank)))

    # -- reductions -------------------------------------------------------------------------------------------------

    def reduce(self, name: str, x: Node, dims: Dims, keepdim: bool = False) -> Node:
        """A reduction primitive; ``keepdim`` is a reshape after it. Without dims: x itself (argmax and argmin: 0)."""
        if not dims:
            return self.full(x.val.sizes, 0, torch.int64, x.val.device) if name.startswith("arg") else x
        out = self.call(PRIMS[name], x, dims)
        return self.reshape(out, kept(x.val.sizes, dims)) if keepdim else out

    def sum(self, x: Node, dims: Dims, keepdim: bool = False) -> Node:
        """Sum in x's dtype."""
        return self.reduce("sum", x, dims, keepdim)

    def mean(self, x: Node, dims: Dims, keepdim: bool = False) -> Node:
        """Mean in x's dtype (convert 16-bit floats first)."""
        return self.div(self.sum(x, dims, keepdim), count(x.val.sizes, dims))


def _device(operands: Sequence[Operand]) -> torch.device:
    """Where ATen computes: a 0-dim CPU tensor joins the others."""
    tensors = [x.val for x in operands if isinstance(x, Node)]
    for t in tensors:
        if t.rank or t.device.type != "cpu":
            return t.device  # type: ignore[no-any-return]
    return tensors[0].device  # type: ignore[no-any-return]


def count(sizes: Ints, dims: Dims) -> IntLike:
    """How many elements a reduction over dims folds into one."""
    return product([sizes[d] for d in dims])


def kept(sizes: Ints, dims: Dims) -> tuple[IntLike, ...]:
    """The sizes with the dims replaced by 1."""
    return tuple(1 if d in dims else n for d, n in enumerate(sizes))


def normal_dims(dim: Any, rank: int) -> Dims:
    """ATen's dim argument (None, an int, a list; None and [] mean all) as ascending non-negative dims."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    if not isinstance(dim, (list, tuple)):
        dim = (dim,)
    return tuple(sorted({d % rank for d in dim})) if rank else ()


def same_sizes(a: Ints, b: Ints) -> bool:
    """Sizes that are equal for every value of the symbols."""
    return len(a) == len(b) and all(known_eq(m, n) for m, n in zip(a, b))


def rounded(value: Any, dtype: torch.dtype) -> Any:
    """A Python number as a tensor of dtype would hold it."""
    if dtype == torch.bool:
        return bool(value)
    if dtype in FLOATS:
        return float(value) if dtype == torch.float64 else torch.tensor(value, dtype=dtype).item()
    return int(value) if dtype in DTYPES["clone"] else value


def _number_kind(x: Any) -> type:
    value = x.val if isinstance(x, Node) else x
    return type(value) if isinstance(value, (bool, int, float, complex)) else int


def _val(x: Any) -> Any:
    if isinstance(x, Node):
        return x.val
    if type(x) is tuple:
        return tuple([_val(a) for a in x])
    return x


def _key(x: Any) -> Any:
    """What makes an argument equal to another: 0.0 and -0.0 differ."""
    if type(x) is float and x == 0.0:
        return ("float", str(x))
    return x
