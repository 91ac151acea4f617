"""Random kernels on the CPU against the reference interpreter: dtypes, layouts, masks, indirection, many passes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from llvm_case import axis, buffer, built, clone, kernel, restricted
from test_llvm_kernels import TARGETS

from braze.inductor.loops import Buffer, Compute, Const, Index, Kernel, Load, Reduce, Store, run_kernel
from braze.ir import symbol
from braze.runtime.cpu import host_target

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
STORED = (F32, F32, F32, F64, torch.bfloat16, torch.float16, torch.int32, I64, torch.int8, torch.uint8, BOOL)
UNARY = ("neg", "abs", "tanh", "sigmoid", "sign", "floor", "erf", "sin")
FLIPS = (
    "floor",
    "sign",
    "lt",
    "ge",
    "ne",
    "gt",
)  # rounding may flip these at a boundary, and argmax and any after them
BINARY = ("add", "sub", "mul", "maximum", "minimum", "copysign")


class Maker:
    """Builds one kernel. Float values are f32 of moderate size; comparisons give bools; positions give i64."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        rank = rng.randint(1, 4)
        self.sizes = [rng.choice([1, 2, 3, 5, 8, 16, 17, 33, 64, 70, 129]) for _ in range(rank)]
        while torch.Size(self.sizes).numel() > 40000:
            self.sizes[rng.randrange(rank)] = 2
        self.cut = rng.randint(0, rank) if rng.random() < 0.7 else rank
        self.axes = [axis(f"{'i' if n < self.cut else 'r'}{n}", s) for n, s in enumerate(self.sizes)]
        self.body: list[Any] = []
        self.memory: dict[Buffer, torch.Tensor] = {}
        self.values: list[Any] = []
        self.rank = rank

    def add(self, v: Any) -> Any:
        self.body.append(v)
        return v

    def layout(self, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of these sizes in some layout: dense, permuted, sliced."""
        rng = self.rng
        order = rng.sample(range(len(sizes)), len(sizes))
        grow = [rng.choice([1, 1, 1, 2]) for _ in sizes]
        base = torch.randn([sizes[d] * grow[d] for d in order]) * 3
        if dtype == BOOL:
            base = base > 0
        elif not dtype.is_floating_point:
            base = base.abs() if dtype == torch.uint8 else base
        t = base.to(dtype)
        back = [order.index(d) for d in range(len(sizes))]
        t = t.permute(back)
        return t[tuple(slice(None, None, g) for g in grow)]

    def load(self) -> None:
        rng = self.rng
        dims = [d for d in range(self.rank) if rng.random() < 0.8]
        dtype = rng.choice(STORED)
        t = self.layout([self.sizes[d] for d in dims], dtype)
        b = buffer(f"in{len(self.memory)}", t)
        self.memory[b] = t
        index: list[Any] = []
        mask = None
        for d in dims:
            e = self.axes[d][0]
            if self.sizes[d] > 1 and rng.random() < 0.15:
                index.append(self.sizes[d] - 1 - e)  # reversed
            elif self.sizes[d] > 1 and rng.random() < 0.15 and mask is None:
                limit = rng.randint(1, self.sizes[d])  # shifted: what falls outside is masked
                at, edge = self.add(Index(e)), self.add(Const(limit, I64))
                mask = self.add(Compute("ge", (at, edge), BOOL))
                index.append(e - limit)
            else:
                index.append(e)
        bound: tuple[Any, ...] = ()
        if dims and rng.random() < 0.15:
            k = rng.randrange(len(dims))
            size = self.sizes[dims[k]]
            indices = torch.randint(-size, size, (self.sizes[d := rng.randrange(self.rank)],))
            bi = buffer(f"at{len(self.memory)}", indices)
            self.memory[bi] = indices
            raw = self.add(Load(bi, (self.axes[d][0],)))
            checked = self.add(Compute("check_index", (raw,), I64, (("size", size),)))
            s = symbol(f"t{len(self.body)}", 0, max(size - 1, 1))
            index[k] = s
            ((atom,),) = s.terms  # type: ignore[union-attr]
            bound = ((atom, checked),)
        other = rng.choice([0, 1]) if dtype == BOOL else rng.choice([0, 1, 2])
        v = self.add(Load(b, tuple(index), bound, mask, other))
        self.values.append(v if dtype == F32 else self.add(Compute("convert", (v,), F32)))

    def compute(self) -> None:
        rng, pick = self.rng, lambda: self.rng.choice(self.values)
        kind = rng.random()
        if kind < 0.22 and self.cut < self.rank:
            name = rng.choice(["sum", "max", "min", "sum", "argmax", "any"])
            if name == "any":
                test = self.add(Compute("gt", (pick(), self.add(Const(2.5, F32))), BOOL))
                r = self.add(Reduce("any", test, BOOL))
            else:
                source = pick()
                if name == "argmax":  # rounded, so that equal values are common and close ones are not
                    source = self.add(Compute("floor", (source,), F32))
                r = self.add(Reduce(name, source, I64 if name == "argmax" else F32))
            v = r if r.dtype == F32 else self.add(Compute("convert", (r,), F32))
            if name == "sum":  # keep sizes moderate
                v = self.add(Compute("mul", (v, self.add(Const(1 / 64, F32))), F32))
        elif kind < 0.45:
            v = Compute(rng.choice(UNARY), (pick(),), F32)
        elif kind < 0.55:
            clipped = self.add(Compute("minimum", (pick(), self.add(Const(3.0, F32))), F32))
            v = Compute("exp", (clipped,), F32)
        elif kind < 0.7:
            c = self.add(Compute(rng.choice(["lt", "ge", "ne"]), (pick(), pick()), BOOL))
            v = Compute("where", (c, pick(), pick()), F32)
        elif kind < 0.75:
            at = self.add(Index(sum(e * rng.randint(0, 3) for e, _ in self.axes), rng.choice([I64, torch.int32])))
            v = Compute("convert", (at,), F32)
        else:
            v = Compute(rng.choice(BINARY), (pick(), pick()), F32)
        if v not in self.body:
            self.add(v)
        self.values.append(v)

    def store(self, n: int) -> None:
        rng = self.rng
        v = self.values[-1] if n == 0 else rng.choice(self.values)
        dtype = rng.choice([F32, F32, F32, torch.bfloat16, F64, BOOL])
        if dtype == BOOL:
            v = self.add(Compute("gt", (v, self.add(Const(0.25, F32))), BOOL))
        elif dtype != F32:
            v = self.add(Compute("convert", (v,), dtype))
        point = kernel_point(self.body, v, {a.index for _, a in self.axes[self.cut :]})
        dims = list(range(self.rank)) if point or rng.random() < 0.5 else list(range(self.cut))
        t = self.layout([self.sizes[d] for d in dims], dtype).zero_()
        b = buffer(f"out{n}", t)
        self.memory[b] = t
        self.add(Store(b, tuple(self.axes[d][0] for d in dims), v))

    def kernel(self) -> tuple[Kernel, dict[Buffer, torch.Tensor]]:
        for _ in range(self.rng.randint(1, 4)):
            self.load()
        for _ in range(self.rng.randint(1, 9)):
            self.compute()
        for n in range(self.rng.randint(1, 3)):
            self.store(n)
        x = [a for _, a in self.axes[: self.cut]]
        return kernel(x, [a for _, a in self.axes[self.cut :]], self.body), self.memory


def kernel_point(body: list[Any], value: Any, r: set[Any]) -> bool:
    """Does a value depend on an r axis?"""
    from braze.inductor.loops import operands
    from braze.ir import symbols

    deps: dict[Any, bool] = {}
    for i in body:
        own = any(deps[v] for v in operands(i))
        if isinstance(i, Load):
            own = own or bool(symbols(*i.index) & r)
        elif isinstance(i, Index):
            own = own or bool(symbols(i.expr) & r)
        elif isinstance(i, Reduce):
            own = False
        deps[i] = own
    return deps[value]


def check(seeds: list[int], target: Any) -> list[str]:
    """What differs."""
    cases = [Maker(s).kernel() for s in seeds]
    problems = []
    for seed, (k, memory), run in zip(seeds, cases, built([k for k, _ in cases], target)):
        mine = {b: clone(t) for b, t in memory.items()}
        theirs = {b: clone(t) for b, t in memory.items()}
        run(mine)
        run_kernel(k, theirs)
        for b in k.writes:
            got, want = mine[b].double(), theirs[b].double()
            scale = want[want.isfinite()].abs().max() if want.isfinite().any() else torch.ones(())
            tolerance = 2e-2 if b.type.dtype == torch.bfloat16 else 2e-5
            bad = ~torch.isclose(got, want, rtol=tolerance, atol=float(scale) * tolerance + 1e-6, equal_nan=True)
            flips = any(getattr(i, "fn", "") in FLIPS for i in k.body)
            if bad.double().mean() > (0.1 if flips else 0.0):
                problems.append(
                    f"seed {seed}: {b.name} {tuple(b.type.sizes)} {b.type.dtype}: {int(bad.sum())} of {bad.numel()}"
                )
    return problems


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("block", range(2))
def test_random_kernels(block: int, name: str) -> None:
    target = host_target() if name == "host" else restricted(name)
    assert not check(list(range(block * 20, block * 20 + 20)), target)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("block", range(40))
def test_many_random_kernels(block: int, name: str) -> None:
    target = host_target() if name == "host" else restricted(name)
    assert not check(list(range(1000 + block * 25, 1000 + block * 25 + 25)), target)
