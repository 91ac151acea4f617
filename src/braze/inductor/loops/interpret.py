"""The reference meaning of the loop IR, in vectorised torch: small, slow, and obviously right.

A kernel's values are tensors that broadcast over its whole domain (x axes, then r axes); a ``Reduce`` folds the
trailing r dims and keeps them as size 1.  Computations are the primitives' own references.  Used by differential tests
of every pass and by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.ir import Expr, IntLike, Symbol, TensorType, evaluate, leaves, map_leaves, symbols
from braze.ir.expr import Call
from braze.prims import PRIMS
from braze.prims.rng import philox_words

from .ir import Buffer, Compute, Const, Extern, Index, Kernel, Load, Program, Reduce, Store, Strided, Value

_LOW = 0xFFFFFFFF
Env = dict[Symbol, Any]

_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "max": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
}


def eval_expr(e: IntLike, env: Mapping[Symbol, Any]) -> Any:
    """An index expression where symbols are ints or int64 tensors. KeyError for an unbound symbol."""
    if not isinstance(e, Expr):
        return e
    total: Any = 0
    for mono, c in e.terms.items():
        term: Any = c
        for a in mono:
            if isinstance(a, Symbol):
                v = env[a]
            else:
                assert isinstance(a, Call)
                v = _CALLS[a.op](eval_expr(a.args[0], env), eval_expr(a.args[1], env))
            term = term * v
        total = total + term
    return total


def philox(key: torch.Tensor, offset: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    key, offset = key.expand_as(index), offset.expand_as(index)
    block = index // 4
    counter = (block & _LOW, (block >> 32) & _LOW, offset & _LOW, (offset >> 32) & _LOW)
    words = torch.stack(philox_words((key & _LOW, (key >> 32) & _LOW), counter), -1)
    word = torch.gather(words, -1, (index % 4).unsqueeze(-1)).squeeze(-1)
    return (word >> 8).to(torch.float32) * 2.0**-24


class _Run:
    """One kernel on real memory."""

    def __init__(self, kernel: Kernel, memory: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int]) -> None:
        self.kernel, self.memory, self.sizes = kernel, memory, sizes
        axes = kernel.x + kernel.r
        self.shape = tuple(evaluate(a.size, sizes) for a in axes)
        self.rank, self.outer = len(axes), len(kernel.x)
        self.axes: Env = {}
        for k, a in enumerate(axes):
            shape = [1] * self.rank
            shape[k] = self.shape[k]
            self.axes[a.index] = torch.arange(self.shape[k]).reshape(shape)
        self.values: dict[Value, torch.Tensor] = {}

    def env(self, indirect: Sequence[tuple[Symbol, Value]]) -> Mapping[Symbol, Any]:
        return _Scope({**self.axes, **{s: self.values[v] for s, v in indirect}}, self.sizes)

    def place(
        self, buffer: Buffer, index: Sequence[IntLike], indirect: Sequence[tuple[Symbol, Value]], mask: Value | None
    ) -> tuple[torch.Tensor, ...]:
        """Index tensors of a buffer, each broadcast to the domain, out-of-range ones checked unless masked."""
        env = self.env(indirect)
        out = []
        for e, n in zip(index, buffer.type.sizes):
            v = torch.as_tensor(eval_expr(e, env), dtype=torch.int64)
            size = evaluate(n, self.sizes)
            if mask is not None:
                v = torch.where(self.values[mask], v, torch.zeros((), dtype=torch.int64))
            assert v.numel() == 0 or (0 <= int(v.min()) and int(v.max()) < size), (
                f"{self.kernel.name}: {buffer.name}[{e}] leaves [0, {size})"
            )
            out.append(v)
        return tuple(out)

    def load(self, i: Load) -> torch.Tensor:
        data = self.memory[i.buffer]
        if i.mask is not None and data.numel() == 0:
            return torch.full_like(self.values[i.mask], i.other, dtype=i.dtype)
        place = self.place(i.buffer, i.index, i.indirect, i.mask)
        value = data[place].clone() if place else data.clone()
        value = value.reshape((1,) * (self.rank - value.dim()) + tuple(value.shape)).cpu()
        if i.mask is not None:
            value = torch.where(self.values[i.mask], value, torch.full((), i.other, dtype=value.dtype))
        return value

    def compute(self, i: Compute) -> torch.Tensor:
        args = [self.values[a] for a in i.args]
        if i.fn == "convert":
            return args[0].to(i.dtype)
        if i.fn == "bitcast":
            return args[0].contiguous().view(i.dtype)
        if i.fn == "philox":
            return philox(*args)
        if i.fn == "check_index":
            n = evaluate(dict(i.attrs)["size"], self.sizes)
            assert bool(((args[0] >= -n) & (args[0] < n)).all()), f"{self.kernel.name}: an index is out of [-{n}, {n})"
            return torch.where(args[0] < 0, args[0] + n, args[0])
        out = PRIMS[i.fn].reference(*args)
        assert isinstance(out, torch.Tensor) and out.dtype == i.dtype, f"{i.fn} gave {out.dtype}, not {i.dtype}"
        return out

    def reduce(self, i: Reduce) -> torch.Tensor:
        name = {"max": "amax", "min": "amin"}.get(i.kind, i.kind)
        full = self.values[i.value].expand(self.shape)
        out: torch.Tensor = PRIMS[name].reference(full, tuple(range(self.outer, self.rank)))
        return out.reshape(tuple(out.shape) + (1,) * (self.rank - self.outer))

    def store(self, i: Store) -> None:
        data = self.memory[i.buffer]
        value = self.values[i.value]
        assert value.dtype == data.dtype, f"{self.kernel.name}: {value.dtype} stored to {i.buffer.name}: {data.dtype}"
        row = all(value.shape[k] == 1 or self.shape[k] == 1 for k in range(self.outer, self.rank)) and not any(
            a.index in symbols(*i.index) for a in self.kernel.r
        )
        shape = self.shape[: self.outer] + (1,) * (self.rank - self.outer) if row else self.shape
        place = [p.expand(shape) for p in self.place(i.buffer, i.index, i.indirect, i.mask)]
        value = value.expand(shape)
        if i.mask is not None:
            keep = self.values[i.mask].expand(shape)
            place, value = [p[keep] for p in place], value[keep]
        if not place:
            old = data if i.mode == "atomic_add" else 0
            data.copy_(value.reshape(-1)[-1] if i.mode == "set" else old + value.sum())
        else:
            where = tuple(p.to(data.device) for p in place)
            if i.mode == "sum":
                data[where] = 0
            data.index_put_(where, value.to(data.device), i.mode != "set")

    def run(self) -> None:
        for i in self.kernel.body:
            if isinstance(i, Store):
                self.store(i)
            elif isinstance(i, Load):
                self.values[i] = self.load(i)
            elif isinstance(i, Compute):
                self.values[i] = self.compute(i)
            elif isinstance(i, Reduce):
                self.values[i] = self.reduce(i)
            elif isinstance(i, Const):
                self.values[i] = torch.full((1,) * self.rank, i.value, dtype=i.dtype)
            else:
                assert isinstance(i, Index)
                v = torch.as_tensor(eval_expr(i.expr, self.env(())), dtype=i.dtype)
                self.values[i] = v.reshape((1,) * (self.rank - v.dim()) + tuple(v.shape))


class _Scope(Mapping[Symbol, Any]):
    """Axes and indirect symbols by identity, program sizes by name."""

    def __init__(self, local: Env, sizes: Mapping[str, int]) -> None:
        self.local, self.sizes = local, sizes

    def __getitem__(self, s: Symbol) -> Any:
        if s in self.local:
            return self.local[s]
        return self.sizes[s.name] if s.name in self.sizes else s.hint

    def __iter__(self) -> Any:
        return iter(self.local)

    def __len__(self) -> int:
        return len(self.local)


def run_kernel(kernel: Kernel, memory: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
    """Run one kernel on tensors that have their buffers' sizes and strides; ``sizes`` binds symbolic sizes by name."""
    _Run(kernel, memory, sizes or {}).run()


def allocate(type: TensorType, sizes: Mapping[str, int]) -> torch.Tensor:
    """Memory of a type, filled with values that betray a read before a write."""
    shape = [evaluate(n, sizes) for n in type.sizes]
    strides = [evaluate(n, sizes) for n in type.strides]
    out = torch.empty_strided(shape, strides, dtype=type.dtype, device=type.device)
    return out.fill_(float("nan") if type.dtype.is_floating_point else True if type.dtype == torch.bool else 99)


def view(s: Strided, memory: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    """The tensor that a ``Strided`` means."""
    data = memory[s.buffer]
    shape, strides = [evaluate(n, sizes) for n in s.sizes], [evaluate(n, sizes) for n in s.strides]
    offset = evaluate(s.offset - s.buffer.type.offset, sizes) + data.storage_offset()
    return data.as_strided(shape, strides, offset)


def _bind(program: Program, inputs: Sequence[Any]) -> tuple[dict[Buffer, torch.Tensor], dict[str, int]]:
    if len(inputs) != len(program.inputs):
        raise ValueError(f"{program.name} takes {len(program.inputs)} inputs, got {len(inputs)}")
    memory: dict[Buffer, torch.Tensor] = dict(program.constants)
    sizes: dict[str, int] = {}
    for slot, value in zip(program.inputs, inputs):
        if isinstance(slot, Buffer):
            memory[slot] = value
        elif isinstance(slot, Symbol):
            sizes[slot.name] = value
    return memory, sizes


def interpret_program(program: Program, inputs: Sequence[Any], reuse: bool = True) -> Any:
    """The program's outputs. ``reuse`` runs the buffer plan too: a buffer takes over its predecessor's storage.

    Raises ValueError for a wrong number of inputs, AssertionError where a kernel breaks the IR's rules.
    """
    memory, sizes = _bind(program, inputs)

    def leaf(x: Any) -> Any:
        if isinstance(x, Strided):
            return view(x, memory, sizes)
        return evaluate(x, sizes) if isinstance(x, Expr) else x

    for step in program.steps:
        if isinstance(step, Kernel):
            for b in step.writes:
                if b not in memory:
                    memory[b] = _new(b, program, memory, sizes) if reuse else allocate(b.type, sizes)
            run_kernel(step, memory, sizes)
        else:
            run_extern(step, memory, leaf)
    return map_leaves(program.outputs, leaf)


def _new(b: Buffer, program: Program, memory: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    old = program.reuse.get(b)
    if old is None:
        return allocate(b.type, sizes)
    shape, strides = [evaluate(n, sizes) for n in b.type.sizes], [evaluate(n, sizes) for n in b.type.strides]
    storage = memory[old].untyped_storage()
    out = torch.empty(0, dtype=b.type.dtype, device=b.type.device)
    out.set_(storage, 0, shape, strides)
    return out


def run_extern(step: Extern, memory: dict[Buffer, torch.Tensor], leaf: Callable[[Any], Any]) -> None:
    """Call the target and keep its tensor results under the buffers that the step defines."""
    out = step.target(*map_leaves(step.args, leaf), **map_leaves(step.kwargs, leaf))
    results = out if isinstance(out, (tuple, list)) else (out,)
    for b, value in zip(step.outputs, results):
        if b is not None:
            memory[b] = value


def buffers_in(tree: Any) -> list[Buffer]:
    """The buffers that a nested structure of ``Strided`` leaves refers to, in order, with repeats."""
    return [x.buffer for x in leaves(tree) if isinstance(x, Strided)]
