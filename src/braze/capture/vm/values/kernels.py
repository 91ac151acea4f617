"""Triton kernels of the user's program: ``kernel[grid](...)`` is one call of the graph."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from braze.fake.kernels import Grid, grids, launcher

from ..signals import NotConst, unsupported
from .base import Const, Value
from .mappings import DictValue
from .sequences import ListValue, SequenceValue, TupleValue

if TYPE_CHECKING:
    from ..rebuild import Rebuilder
    from ..tracer import Tracer


class KernelValue(Const):
    """A kernel that exists, known by identity."""

    __slots__ = ()

    def get_item(self, vm: Tracer, key: Value) -> Value:
        return LaunchValue(self, key)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        unsupported(f"the attribute {name!r} of a Triton kernel", "launch it as kernel[grid](...)")


class LaunchValue(Value):
    """``kernel[grid]``."""

    __slots__ = ("kernel", "grid")

    def __init__(self, kernel: KernelValue, grid: Value) -> None:
        self.source = None
        self.kernel, self.grid = kernel, grid

    def pytype(self, vm: Tracer) -> type:
        unsupported("the use of a Triton kernel's launcher as an object", "call it where it is made")

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raw = self.kernel.as_const(vm)
        names = list(raw.arg_names)
        given = {**dict(zip(names, args)), **kwargs}
        found = grids(raw, given, _Grid(vm, self.grid))
        grid = ListValue(found) if isinstance(found, list) else found
        try:
            return vm.record(launcher(raw), [grid, *args], kwargs)
        except NotConst:
            unsupported(f"a launch of {launcher(raw)} with an argument that a graph cannot hold")

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.kernel, self.grid]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(operator.getitem, [self.kernel, self.grid]))


class _Grid(Grid):
    """A launch's grid and a kernel's heuristics, interpreted."""

    def __init__(self, vm: Tracer, grid: Value) -> None:
        super().__init__(grid)
        self.vm = vm

    def __call__(self, meta: dict[str, Value]) -> Value:
        grid: Value = self.grid
        if not isinstance(grid, SequenceValue):
            grid = grid.call(self.vm, [DictValue(dict(meta))], {})  # type: ignore[arg-type]
        if not isinstance(grid, SequenceValue):
            unsupported("a Triton launch whose grid is no tuple")
        return TupleValue(grid.items(self.vm))

    def computed(self, rule: Any, meta: dict[str, Value]) -> Value:
        return self.vm.wrap(rule, None).call(self.vm, [DictValue(dict(meta))], {})  # type: ignore[arg-type]

    def wrapped(self, config: dict[str, Any]) -> dict[str, Value]:
        return {k: self.vm.wrap(v, None) for k, v in config.items()}
