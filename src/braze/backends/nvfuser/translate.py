"""A region as the Python text of an nvFuser definition: ``def fusion(fd)`` on a ``FusionDefinition``.

The text is deterministic (names come from graph order), so equal regions have equal text and share a fusion.
"""

from __future__ import annotations

import torch

from braze.ir import Graph, Node, TensorType, contiguous_strides

from .rules import DTYPES, ELEMENTWISE, REDUCTIONS, operand_dtype

HALF = (torch.float16, torch.bfloat16)


def definition(graph: Graph) -> str:
    """The text of ``fusion(fd)`` for a graph of primitives that :func:`refusal` lets pass. Outputs come row-major; one
    whose type is another dense layout comes permuted into the order of its strides (:func:`storage_order`)."""
    writer = _Writer()
    for n in graph.inputs:
        writer.input(n)
    for n in graph.calls:
        writer.call(n)
    for n in graph.outputs:
        writer.output(n)
    return "\n".join(["def fusion(fd):", *(f"    {line}" for line in writer.lines)]) + "\n"


def storage_order(t: TensorType) -> tuple[int, ...]:
    """The dims from the largest stride to the smallest where the type is a permuted dense layout, else as they are."""
    plain = tuple(range(t.rank))
    order = tuple(sorted(plain, key=lambda d: (-int(t.strides[d]), d)))  # type: ignore[arg-type]
    moved = t.with_(sizes=tuple(t.sizes[d] for d in order), strides=tuple(t.strides[d] for d in order))
    return order if moved.strides == contiguous_strides(moved.sizes) else plain


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self.wide: dict[Node, str] = {}  # 16-bit values as float32

    def new(self, text: str, base: str = "t") -> str:
        name = f"{base}{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def cast(self, name: str, dtype: torch.dtype) -> str:
        return self.new(f"fd.ops.cast({name}, dtype=DataType.{DTYPES[dtype]})")

    def scalar(self, value: bool | int | float, dtype: torch.dtype) -> str:
        if dtype.is_floating_point:
            number = float(value)
            text = repr(number) if abs(number) < float("inf") else f'float("{number}")'
        else:
            text = repr(bool(value) if dtype is torch.bool else int(value))
        return self.new(f"fd.define_scalar({text}, dtype=DataType.{DTYPES[dtype]})", "s")

    def input(self, n: Node) -> None:
        t = n.val
        sizes, strides = list(t.sizes), list(t.strides)
        kind = DTYPES[t.dtype]
        self.names[n] = self.new(
            f"fd.define_tensor(sizes={sizes}, strides={strides}, dtype=DataType.{kind}, is_cpu=False)"
        )

    def output(self, n: Node) -> None:
        order = storage_order(n.val)
        name = self.names[n]
        if order != tuple(range(n.val.rank)):
            name = self.new(f"fd.ops.permute({name}, dims={list(order)})")
        self.lines.append(f"fd.add_output({name})")

    def call(self, n: Node) -> None:
        name = n.target.name
        if name in ELEMENTWISE:
            self.names[n] = self._elementwise(n)
        elif name in REDUCTIONS:
            self.names[n] = self._reduction(n)
        else:
            self.names[n] = getattr(self, f"_{name}")(n)

    # -- operands

    def operand(self, x: object, dtype: torch.dtype) -> str:
        """A tensor operand (16-bit floats widened) or a scalar of the dtype that the operation computes in."""
        if not isinstance(x, Node):
            assert isinstance(x, (bool, int, float))
            return self.scalar(x, dtype)
        if x.val.dtype not in HALF:
            return self.names[x]
        if x not in self.wide:
            self.wide[x] = self.cast(self.names[x], torch.float32)
        return self.wide[x]

    def narrowed(self, name: str, n: Node) -> str:
        if n.val.dtype not in HALF:
            return name
        return self.cast(name, n.val.dtype)

    # -- primitives

    def _elementwise(self, n: Node) -> str:
        op, _ = ELEMENTWISE[n.target.name]
        kind = operand_dtype(n)
        if op == "set":
            return self.new(f"fd.ops.set({self.names[n.args[0]]})")
        wide = torch.float32 if kind in HALF else kind
        args = [
            a if isinstance(a, Node) and a.val.dtype is torch.bool and kind is not torch.bool else None for a in n.args
        ]
        texts = [self.names[a] if a is not None else self.operand(x, wide) for a, x in zip(args, n.args)]
        return self.narrowed(self.new(f"fd.ops.{op}({', '.join(texts)})"), n)

    def _reduction(self, n: Node) -> str:
        op, _ = REDUCTIONS[n.target.name]
        x, dims = n.args
        wide = torch.float32 if x.val.dtype in HALF else x.val.dtype
        return self.narrowed(self.new(f"fd.ops.{op}({self.operand(x, wide)}, dims={list(dims)})"), n)

    def _convert(self, n: Node) -> str:
        return self.cast(self.names[n.args[0]], n.args[1])

    def _full(self, n: Node) -> str:
        value = self.scalar(n.args[1], n.val.dtype)
        shape = list(n.val.sizes)
        return self.new(f"fd.ops.full(shape={shape}, fill_value={value}, dtype=DataType.{DTYPES[n.val.dtype]})")

    def _expand(self, n: Node) -> str:
        x, sizes = n.args
        dims = list(range(len(sizes) - x.val.rank, len(sizes)))
        return self.new(f"fd.ops.broadcast_in_dim({self.names[x]}, shape={list(sizes)}, broadcast_dims={dims})")

    def _permute(self, n: Node) -> str:
        return self.new(f"fd.ops.permute({self.names[n.args[0]]}, dims={list(n.args[1])})")

    def _reshape(self, n: Node) -> str:
        """Dims of size 1 are dropped and added as broadcasts; only what is left is a true reshape."""
        x, sizes = n.args
        old, new = list(x.val.sizes), list(sizes)
        name = self.names[x]
        if [s for s in old if s != 1] != [s for s in new if s != 1]:
            return self.new(f"fd.ops.reshape({name}, new_shape={new})")
        if 1 in old:
            name = self.new(f"fd.ops.squeeze({name}, dims={[d for d, s in enumerate(old) if s == 1]})")
        if 1 in new:
            name = self.new(f"fd.ops.broadcast({name}, is_broadcast_dim={[s == 1 for s in new]})")
        return name if name != self.names[x] else self.new(f"fd.ops.set({name})")
