"""The state of a lowering and the builder of kernel bodies, used by ``lower`` and by every row of ``rules``.

A kernel's axes are named by the dims they run over (``i0``, ``i1``, …; the reduced ones too), so that chains of
same-shape kernels share their index expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.errors import Unsupported
from braze.ir import Expr, Graph, IntLike, Node, Symbol, TensorType, bounds, contiguous_strides, tensor_type

from .ir import Axis, Buffer, Compute, Const, Extern, Index, Instr, Kernel, Load, Store, Strided, Value
from .ref import Ref, Sizes, as_strided, atom, axes_of, remap, same_layout, view, whole

NARROW = frozenset((torch.float16, torch.bfloat16))
DTYPES = NARROW | {torch.float32, torch.float64, torch.bool, torch.uint8}
DTYPES |= {torch.int8, torch.int16, torch.int32, torch.int64}
"""What kernels compute with. Values of other dtypes are only moved, by vendor calls."""
Rule = Callable[["Lowering", Node], Any]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on ``dtype`` is done in: f32 for 16-bit floats."""
    return torch.float32 if dtype in NARROW else dtype


def dense(type: TensorType) -> bool:
    """True when the strides are a permutation of row-major: a fresh buffer can have them without gaps."""
    if type.is_contiguous:
        return True
    step: IntLike = 1
    dims = [d for d, n in enumerate(type.sizes) if n != 1]
    while dims:
        inner = next((d for d in dims if type.strides[d] == step), None)
        if inner is None:
            return False
        step = step * type.sizes[inner]
        dims.remove(inner)
    return True


def fresh_type(val: TensorType) -> TensorType:
    """The layout of a new buffer for a value of this type: its own strides when dense, else contiguous."""
    strides = val.strides if dense(val) else contiguous_strides(val.sizes)
    return TensorType(val.sizes, strides, val.dtype, val.device)


class Body:
    """A kernel body in the making: appends instructions and gives their values."""

    def __init__(self, node: Node, sizes: Sizes) -> None:
        self.node, self.sizes, self.axes = node, sizes, axes_of(sizes)
        self.instrs: list[Instr] = []

    def add(self, value: Any) -> Any:
        self.instrs.append(value)
        return value

    def restrict(self, dims: Sequence[int]) -> None:
        """Drop the loops over ``dims``, and what was computed inside them."""
        self.instrs = self.instrs[-1:]
        self.axes = tuple([0 if d in dims else e for d, e in enumerate(self.axes)])

    def load(self, ref: Ref, mask: Value | None = None, other: Any = 0) -> Value:
        """The element at the body's axes, as stored in memory."""
        self.check(ref.buffer.type.dtype)
        return self.add(Load(ref.buffer, ref.index, (), mask, other))  # type: ignore[no-any-return]

    def check(self, dtype: torch.dtype) -> None:
        """Unsupported for a dtype that kernels do not take."""
        if dtype not in DTYPES:
            raise Unsupported(f"{dtype} in {op_name(self.node)}", str(self.node.loc or ""))

    def wide(self, value: Value) -> Value:
        """A 16-bit float as f32; anything else unchanged."""
        return self.convert(value, torch.float32) if value.dtype in NARROW else value

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """``value`` as ``dtype``; 16-bit floats go through f32, as ATen does."""
        if value.dtype == dtype:
            return value
        if value.dtype in NARROW and dtype != torch.float32:
            value = self.convert(value, torch.float32)
        if dtype in NARROW and value.dtype != torch.float32:
            value = self.convert(value, torch.float32)
        return self.compute("convert", (value,), dtype)

    def compute(self, fn: str, args: tuple[Value, ...], dtype: torch.dtype, **attrs: Any) -> Value:
        return self.add(Compute(fn, args, dtype, tuple(attrs.items())))  # type: ignore[no-any-return]

    def scalar(self, value: Any, dtype: torch.dtype) -> Value:
        """A Python scalar or symbolic integer as a value of ``dtype``."""
        if isinstance(value, Expr):
            return self.convert(self.add(Index(value)), dtype)
        if dtype.is_floating_point:
            value = float(value)
        elif dtype == torch.bool:
            value = bool(value)
        return self.add(Const(value, dtype))  # type: ignore[no-any-return]

    def all_of(self, masks: Sequence[Value]) -> Value | None:
        out: Value | None = None
        for m in masks:
            out = m if out is None else self.compute("bitwise_and", (out, m), torch.bool)
        return out

    def within(self, e: IntLike, low: IntLike, high: IntLike | None) -> list[Value]:
        """Masks of low <= e < high; a bound that is None or trivially true gives none."""
        out: list[Value] = []
        at = self.add(Index(e))
        if low != 0:
            out.append(self.compute("ge", (at, self.scalar(low, torch.int64)), torch.bool))
        if high is not None:
            out.append(self.compute("lt", (at, self.scalar(high, torch.int64)), torch.bool))
        return out


class Lowering:
    """The state of one lowering: what each node is (``env``), and the program so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.env: dict[Node, Any] = {}
        self.steps: list[Any] = []
        self.constants: dict[Buffer, torch.Tensor] = {}
        self.names: set[str] = {n.name for n in graph.nodes}
        self.fresh_symbols = 0
        self._realised: dict[tuple[Any, ...], Ref] = {}

    def unsupported(self, node: Node, what: str, hint: str = "") -> Unsupported:
        return Unsupported(f"{what} in {node.name}", str(node.loc or ""), hint)

    def buffer(self, name: str, type: TensorType) -> Buffer:
        return Buffer(name, type)

    def constant(self, value: int, device: torch.device) -> Buffer:
        """An i64[1] in memory that holds ``value``: a number that must not tell kernels apart."""
        key = ("constant", value, device)
        out = self._realised.get(key)
        if out is None:
            b = Buffer(f"number_{value}", tensor_type((1,), torch.int64, device))
            here = device.type == "cpu" or torch.cuda.is_available()
            self.constants[b] = torch.tensor([value], device=device if here else "cpu")
            out = self._realised[key] = whole(b)
        return out.buffer

    def name(self, base: str) -> str:
        """A buffer name that no node has."""
        k = 0
        while f"{base}_{k}" in self.names:
            k += 1
        self.names.add(f"{base}_{k}")
        return f"{base}_{k}"

    def ref(self, x: Any) -> Ref:
        """The reference of a tensor argument."""
        out = self.env[x]
        assert isinstance(out, Ref), f"{x} is not a tensor"
        return out

    def operand(self, x: Any) -> Any:
        """An argument as it is in the program: a Ref, or a Python value or symbolic integer."""
        return self.env[x] if isinstance(x, Node) else x

    def on_device(self, ref: Ref, device: torch.device) -> Ref:
        """The value on ``device``; a copy step where it lies elsewhere (0-dim CPU operands of GPU kernels)."""
        if ref.buffer.type.device == device:
            return ref
        key = (ref.buffer, ref.index, device)
        out = self._realised.get(key)
        if out is None:
            seen = as_strided(ref)
            assert seen is not None, f"{ref} is on {ref.buffer.type.device} and is used on {device}"
            t = TensorType(ref.sizes, contiguous_strides(ref.sizes), ref.buffer.type.dtype, device)
            b = self.buffer(self.name(ref.buffer.name), t)
            self.steps.append(Extern(torch.ops.aten._to_copy.default, (seen,), {"device": device}, (b,)))
            out = self._realised[key] = whole(b)
        return out

    def kernel(
        self,
        body: Body,
        value: Value,
        type: TensorType,
        index: Sizes | None = None,
        r: tuple[Axis, ...] = (),
        name: str | None = None,
    ) -> Ref:
        """Finish a kernel that stores ``value`` to a fresh buffer at ``index`` (default: the body's axes)."""
        node = body.node
        body.check(type.dtype)
        out = self.buffer(name or node.name, fresh_type(type))
        if value.dtype != type.dtype:
            value = body.convert(value, type.dtype)
        body.instrs.append(Store(out, body.axes if index is None else index, value))
        self.push(body, r)
        return whole(out)

    def push(self, body: Body, r: tuple[Axis, ...] = (), suffix: str = "") -> None:
        """Append the body as a step over its axes (those not in ``r`` are x)."""
        inner = {a.index for a in r}
        x = tuple(
            [Axis(atom(e), n) for e, n in zip(body.axes, body.sizes) if e.__class__ is not int and atom(e) not in inner]
        )
        node = body.node
        device = next(i.buffer.type.device for i in reversed(body.instrs) if isinstance(i, Store))
        self.steps.append(Kernel(f"k_{node.name}{suffix}", x, r, body.instrs, device, ((op_name(node), node.loc),)))

    def copy(self, node: Node, ref: Ref, type: TensorType) -> Ref:
        """The value copied to a buffer of this exact layout."""
        if type.dtype not in DTYPES:
            return self.vendor_copy(node, ref, type)
        key = (ref.buffer, ref.index, ref.sizes, type.strides)
        out = self._realised.get(key)
        if out is None:
            body = Body(node, ref.sizes)
            value = body.load(ref)
            b = self.buffer(self.name(node.name), TensorType(ref.sizes, type.strides, type.dtype, type.device))
            body.instrs.append(Store(b, body.axes, value))
            self.push(body)
            out = self._realised[key] = whole(b)
        return out

    def vendor_copy(self, node: Node, ref: Ref, type: TensorType) -> Ref:
        """The value copied by ATen into the layout of ``type`` (contiguous where that has gaps)."""
        seen = as_strided(ref)
        if seen is None:
            raise self.unsupported(node, f"a copy of a flipped or divided view of {type.dtype}")
        strides = fresh_type(type).strides
        order = sorted(range(len(strides)), key=lambda d: -bounds(strides[d])[1])
        sizes = tuple([seen.sizes[d] for d in order])
        source = Strided(seen.buffer, sizes, tuple([seen.strides[d] for d in order]), seen.offset)
        b = self.buffer(self.name(node.name), TensorType(sizes, contiguous_strides(sizes), type.dtype, type.device))
        kwargs = {"memory_format": torch.contiguous_format}
        self.steps.append(Extern(torch.ops.aten.clone.default, (source,), kwargs, (b,), ((op_name(node), node.loc),)))
        return view("permute", whole(b), tuple([order.index(d) for d in range(len(order))]))

    def strided(self, node: Node, ref: Ref, val: TensorType) -> Strided:
        """The value as an as_strided view with exactly ``val``'s strides, copied first where it is not one."""
        seen = as_strided(ref)
        if seen is None or not same_layout(ref.sizes, seen.strides, val.strides):
            if not _distinct(val):  # expanded: one element of those dims is copied, and seen many times
                ref, val = _narrowed(ref, val), val.with_(sizes=ref.sizes)
            seen = as_strided(self.copy(node, ref, val))
        assert seen is not None
        return Strided(seen.buffer, val.sizes, val.strides, seen.offset)


def _narrowed(ref: Ref, val: TensorType) -> Ref:
    """The value with one element in each dim that ``val`` repeats (stride 0)."""
    axes = axes_of(ref.sizes)
    repeated = [n != 1 and s == 0 for n, s in zip(val.sizes, val.strides)]
    env: dict[Symbol, IntLike] = {atom(a): 0 for a, r in zip(axes, repeated) if r}
    sizes = tuple([1 if r else n for n, r in zip(ref.sizes, repeated)])
    return Ref(ref.buffer, sizes, remap(ref.index, env))


def _distinct(val: TensorType) -> bool:
    """True when no two elements share memory (a stride of 0 would)."""
    return all(n == 1 or s != 0 for n, s in zip(val.sizes, val.strides))


def op_name(node: Node) -> str:
    return str(getattr(node.target, "qualified_name", None) or node.target)
