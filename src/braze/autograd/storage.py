"""``as_strided``: what sees a tensor's storage and not the tensor.

Inside of a graph a tensor is its elements, so a view by absolute places in a storage is made one of the root, counted
from the root's own first element.  Where an input lies in its storage differs from call to call: an explicit offset
needs a guard on it (capture's ``placed``).  What of its storage an input does not itself show is read by a call that
has the real tensor (``prims.strided_read``), and is never written.

    x = base[3:6]; x.as_strided((2,), (1,), 4)    ->    prims.as_strided(x, (2,), (1,), 1), and x has to begin at 3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from ..fake.layout import is_dense
from ..ir import IntLike, Node, TensorType, known_eq, known_le, product
from ..prims import PRIMS
from ..prims.strided import strided_read, strided_scatter
from .layout import outermost_first

if TYPE_CHECKING:
    from .record import Recorder, Value

aten = torch.ops.aten


def absolute(rec: Recorder, value: Value, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Value, Any]:
    """What ``value`` is a view of for autograd: its root or what was detached of that; and the arguments of
    ``as_strided`` with an explicit offset."""
    size, stride = args[0], args[1]
    offset = args[2] if len(args) > 2 else kwargs.get("storage_offset")
    base = value.base
    if base.type.dtype != value.type.dtype:
        raise Unsupported("as_strided of a tensor viewed as another dtype")
    if offset is not None:
        check_placed(rec, base)
    owner = next((v for v in reversed(value.line()) if v.apart is not None and v.type.dtype == value.type.dtype), base)
    return owner, (list(size), list(stride), value.type.offset if offset is None else offset)


def check_placed(rec: Recorder, base: Value) -> None:
    """Unsupported for an input that may lie elsewhere in its storage in the next call."""
    if base.input >= 0 and base.input not in rec.placed:
        raise Unsupported("as_strided of an input at a place in its storage, which may be another in the next call")


def shows(t: TensorType, sizes: Any, strides: Any, offset: IntLike) -> bool:
    """Whether a view by absolute places is among the elements of ``t``, which has no gaps."""
    if not is_dense(t.sizes, t.strides):
        return False
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides))
    empty = any(isinstance(n, int) and n == 0 for n in sizes)
    return empty or known_le(t.offset, offset) and known_le(last + 1, t.offset + product(t.sizes))


def read(rec: Recorder, node: Node, parent: Value, args: tuple[Any, ...]) -> Node:
    """The node of a view of ``parent`` at absolute places, where ``node`` holds what ``parent`` is now."""
    sizes, strides, offset = args
    base, start = parent.base, offset - parent.type.offset
    t: TensorType = node.val
    if shows(t.with_(offset=0), sizes, strides, start):
        if known_eq(start, 0) and t.sizes == tuple(sizes) and t.strides == tuple(strides):
            return node
        if t.dtype.is_complex:  # no kernels of ours copy such a view
            return _copied(rec, node, sizes, strides, start)
        if not t.is_contiguous:
            node = rec.call(aten.permute.default, node, outermost_first(t.strides))
        return rec.call(PRIMS["as_strided"], node, tuple(sizes), tuple(strides), start)
    if node.op != "input" or base.input < 0:
        raise Unsupported(f"as_strided of {t} to memory outside of it")
    if t.device.type != "cpu":  # a CUDA graph's copy of the input has not got its storage
        raise Unsupported("as_strided to memory outside of an input on a GPU")
    rec.looked_around.append(base.input)
    return _copied(rec, node, sizes, strides, start)


def _copied(rec: Recorder, node: Node, sizes: Any, strides: Any, start: IntLike) -> Node:
    """A call that copies the view, with its strides where they have no gaps."""
    if not is_dense(tuple(sizes), tuple(strides)):
        return rec.call(strided_read, node, sizes, strides, start)
    order = outermost_first(strides)
    packed = rec.call(strided_read, node, [sizes[d] for d in order], [strides[d] for d in order], start)
    return rec.call(aten.permute.default, packed, [order.index(d) for d in range(len(order))])


def check_write(value: Value) -> None:
    """Unsupported for a view that shows more of the storage than its root does."""
    root = value.base.type
    if value.base.input >= 0 and any(s.op is aten.as_strided.default for s in value.chain):
        t = value.type
        if not shows(root, t.sizes, t.strides, t.offset):
            raise Unsupported("an in-place write to memory that an input does not show")


def check_unwritten(rec: Recorder, mutated: list[int]) -> None:
    """Unsupported where a storage is read beyond a tensor and inputs are overwritten, which may lie there."""
    if rec.looked_around and mutated:
        raise Unsupported("as_strided to memory outside of an input, while inputs are overwritten")


def scattered(rec: Recorder, x: Any, source: Any, sizes: Any, strides: Any, offset: IntLike | None) -> Node:
    """``as_strided_scatter``: counted from the tensor's first element."""
    base: Value = x.node.base
    t: TensorType = x.node.type
    if offset is not None:
        check_placed(rec, base)
    at = t.offset if offset is None else offset
    if not shows(t, sizes, strides, at):
        raise Unsupported("as_strided_scatter to memory outside of the tensor")
    return rec.call(strided_scatter, rec.lower(x), rec.lower(source), t.strides, sizes, strides, at - t.offset)
