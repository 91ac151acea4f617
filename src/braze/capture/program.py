"""Guards to a native program: one instruction for each step to a value and each condition on it.

The sources form a tree; the program walks it depth first, each step once, and checks the guards of a value before it
steps below it.  Conditions on several values, and those that call Python, come last.  The program also returns the
values at ``reads``, which it reaches on the way: the tensors that the compiled graph takes.

    guards: x is a tensor f32[64, 256], self.w is a Parameter f32[256, 256];  reads: x, self.w

    STATE        grad mode, autocast, ...
    r0 = LOCAL 0                      # x
    TENSOR r0
    r1 = LOCAL 1                      # self
    r2 = INSTANCE_ATTR r1 '_parameters'
    r3 = ITEM r2 'w'
    TENSOR r3                         # -> (r0, r3)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from braze import _C  # type: ignore[attr-defined]
from braze.ir import Expr, IntLike, Symbol, terms_of
from braze.ir.expr import Call

from . import guards as g
from . import source as s
from .native import bind, meta_of
from .source import Source, typed_key

OPS: dict[str, int] = _C.OPS
_INT64 = 2**63
_TENSOR_INTS = {"size": 0, "stride": 1, "storage_offset": 2}
_R_CONST, _R_REG, _R_TENSOR, _R_ADD, _R_MUL = range(5)
_R_CALLS = {"floordiv": 5, "mod": 6, "min": 7, "max": 8}
_R_COMPARE = {"==": 9, "!=": 10, "<": 11, "<=": 12}
_FRESH = 2  # load level: a new object in each call, not worth remembering

Check = tuple[str, Any, int, int]  # op, object, n, m


@dataclass(slots=True, eq=False)
class _Node:
    """A value on the way: how it is loaded from its parent, what is checked, what is read below it."""

    op: str
    obj: Any = None
    n: int = 0
    m: int = 0
    children: dict[Hashable, _Node] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    customs: list[g.Custom] = field(default_factory=list)
    register: int = -1

    def attributes(self) -> int:
        """How many of the value's own attributes are read."""
        reads = sum(child.op in ("ATTR", "INSTANCE_ATTR") for child in self.children.values())
        return reads + sum(op == "LACKS" for op, *_ in self.checks)


def compile_guards(guards: g.GuardSet, reads: Sequence[Source] = ()) -> Any:
    """The native program: ``program.check(function, args)`` gives the values at ``reads``, or None if a guard fails."""
    bind()
    low = _Lowering()
    for guard in guards:
        low.add(guard)
    read_nodes = [low.node(source) for source in reads]
    return low.program(read_nodes)


class _Lowering:
    def __init__(self) -> None:
        self.roots: dict[Hashable, _Node] = {}
        self.nodes: dict[Source, _Node] = {}
        self.first: list[g.GlobalState] = []
        self.joint: list[g.Same | g.Distinct | g.Relation] = []
        self.code: list[tuple[Any, ...]] = []
        self.registers = 0

    def add(self, guard: g.Guard) -> None:
        if isinstance(guard, g.GlobalState):
            self.first.append(guard)
        elif isinstance(guard, (g.Same, g.Distinct, g.Relation)):
            self.joint.append(guard)
            for source in _joint_sources(guard):
                self.node(source)
        elif isinstance(guard, g.Custom):
            self.node(guard.source).customs.append(guard)
        elif isinstance(guard, g.EqualsConst) and _is_set_copy(guard.source, guard.value):
            assert guard.source.base is not None
            self.node(guard.source.base).checks.append(("SET_EQUALS", guard.value, 0, 0))
        else:
            self.node(guard.source).checks.append(_CHECKS[type(guard)](guard))

    # ---- the tree

    def node(self, source: Source) -> _Node:
        found = self.nodes.get(source)
        if found is None:
            found = self.nodes[source] = self._make(source)
        return found

    def _make(self, source: Source) -> _Node:
        if source.base is None:
            return self._root(source)
        parent = self.node(source.base)
        if isinstance(source, s.MemberSource):
            table, name = source.key
            return _child(_child(parent, "INSTANCE_ATTR", table), "ITEM", name)
        if isinstance(source, s.TensorIntSource):
            what, dim = source.key
            return _child(parent, "TENSOR_INT", None, _TENSOR_INTS[what], dim)
        if isinstance(source, s.CallSource):
            return _child(parent, "CALL", source.key[0])
        op = _STEPS.get(type(source))
        if op is None:
            return _child(parent, "CALL", source.step)
        n = source.key if type(source.key) is int and abs(source.key) < _INT64 else 0
        return _child(parent, op, source.key, n)

    def _root(self, source: Source) -> _Node:
        if isinstance(source, s.LocalSource):
            return self._top("LOCAL", source.key)
        if isinstance(source, s.FunctionSource):
            return self._top("FUNCTION")
        if isinstance(source, s.ClosureSource):
            return self._top("CELL", source.key)
        if isinstance(source, s.GlobalSource):
            scope = self._top("GLOBALS") if source.scope is None else self._constant(source.scope)
            return _child(scope, "ITEM", source.key)
        if isinstance(source, s.GlobalsSource):
            return self._top("GLOBALS") if source.scope is None else self._constant(source.scope)
        if isinstance(source, s.BuiltinSource):
            return _child(self._top("BUILTINS"), "ITEM", source.key)
        if isinstance(source, s.ModuleSource):
            return _child(self._constant(sys.modules), "ITEM", source.key)
        assert isinstance(source, s.ConstSource), source
        return self._constant(source.key)

    def _top(self, op: str, n: int = 0) -> _Node:
        return self.roots.setdefault((op, n), _Node(op, n=n))

    def _constant(self, value: Any) -> _Node:
        return self.roots.setdefault(("CONST", id(value)), _Node("CONST", value))

    # ---- instructions

    def program(self, reads: list[_Node]) -> Any:
        for state in self.first:
            native = _C.torch_state() if state.failure() is None else None
            self.emit("STATE", -1, -1, native if native is not None else state.failure)
        for root in self.roots.values():
            self.walk(root, -1)
        for guard in self.joint:
            self.emit_joint(guard)
        for root in self.roots.values():
            self.emit_customs(root)
        return _C.Program(self.code, self.registers, tuple(n.register for n in reads))

    def emit(self, op: str, src: int, dst: int, obj: Any = None, n: int = 0, m: int = 0, level: int = 0) -> None:
        self.code.append((OPS[op], src, dst, obj, n, m, level))

    def walk(self, top: _Node, parent: int) -> None:
        stack = [(top, parent)]
        while stack:
            node, src = stack.pop()
            node.register = self.registers
            self.registers += 1
            fresh = node.op == "LOCAL" and all(c.op == "TENSOR_INT" for c in node.children.values())
            m = node.m if node.op == "TENSOR_INT" else node.attributes()
            self.emit(node.op, src, node.register, node.obj, node.n, m, _FRESH if fresh else 0)
            for op, obj, n, m in node.checks:
                self.emit(op, node.register, -1, obj, n, m)
            stack += [(child, node.register) for child in reversed(node.children.values())]

    def emit_joint(self, guard: g.Same | g.Distinct | g.Relation) -> None:
        if isinstance(guard, g.Same):
            self.emit("SAME", self.node(guard.a).register, self.node(guard.b).register)
        elif isinstance(guard, g.Distinct):
            self.emit("DISTINCT", -1, -1, tuple(self.node(x).register for x in guard.sources))
        else:
            env = dict(guard.env)
            code = [*self.relation(guard.lhs, env), *self.relation(guard.rhs, env), (_R_COMPARE[guard.op], 0)]
            self.emit("RELATION", -1, -1, tuple(x for pair in code for x in pair))

    def emit_customs(self, top: _Node) -> None:
        stack = [top]
        while stack:
            node = stack.pop()
            for guard in node.customs:
                self.emit("CUSTOM", node.register, -1, guard.predicate)
            stack += reversed(node.children.values())

    def relation(self, e: IntLike, env: dict[Symbol, Source]) -> list[tuple[int, int]]:
        """An expression as a postfix program."""
        if not isinstance(e, Expr):
            return [(_R_CONST, e)]
        out: list[tuple[int, int]] = []
        for k, (coefficient, factors) in enumerate(terms_of(e)):
            out.append((_R_CONST, coefficient))
            for atom in factors:
                if isinstance(atom, Call):
                    out += [*self.relation(atom.args[0], env), *self.relation(atom.args[1], env)]
                    out.append((_R_CALLS[atom.op], 0))
                else:
                    assert isinstance(atom, Symbol)
                    out.append(self.symbol(env[atom]))
                out.append((_R_MUL, 0))
            if k:
                out.append((_R_ADD, 0))
        return out

    def symbol(self, source: Source) -> tuple[int, int]:
        if isinstance(source, s.TensorIntSource):
            what, dim = source.key
            return _R_TENSOR, _TENSOR_INTS[what] << 48 | dim << 32 | self.node(source.base).register
        return _R_REG, self.node(source).register


def _child(parent: _Node, op: str, obj: Any, n: int = 0, m: int = 0) -> _Node:
    key = (op, id(obj) if op == "CALL" else typed_key(obj), n, m)
    found = parent.children.get(key)
    if found is None:
        found = parent.children[key] = _Node(op, obj, n, m)
    return found


def _joint_sources(guard: g.Same | g.Distinct | g.Relation) -> list[Source]:
    if isinstance(guard, g.Same):
        return [guard.a, guard.b]
    if isinstance(guard, g.Distinct):
        return list(guard.sources)
    bases = [source.base if isinstance(source, s.TensorIntSource) else source for _, source in guard.env]
    return [b for b in bases if b is not None]


def _is_set_copy(source: Source, value: Any) -> bool:
    """frozenset(x) == {"a", 1}: the set is compared where it is, without a copy."""
    copied = isinstance(source, s.CallSource) and source.key[0] is frozenset
    return copied and isinstance(value, frozenset) and all(type(v) in (int, str) for v in value)


_STEPS: dict[type[Source], str] = {
    s.AttrSource: "ATTR",
    s.InstanceAttrSource: "INSTANCE_ATTR",
    s.TypeAttrSource: "TYPE_ATTR",
    s.ItemSource: "ITEM",
    s.RawItemSource: "ITEM",
    s.DictKeySource: "DICT_KEY",
    s.TypeSource: "TYPE",
    s.CellContentsSource: "CELL_CONTENTS",
}


def _reference(op: str) -> Callable[[Any], Check]:
    """A check against an object that is held weakly, or strongly (``IS``) where its type has no weak references."""

    def check(guard: Any) -> Check:
        ref = guard.ref
        return (op, ref.weak, 0, 0) if ref.weak is not None else ("IS", ref(), 0, 0)

    return check


def _equals(guard: g.EqualsConst) -> Check:
    value = guard.value
    if value is None or value is True or value is False or value is Ellipsis:
        return ("IS", value, 0, 0)
    return ("EQUALS", value, 0, 0)


def _range(guard: g.IntRange) -> Check:
    return ("RANGE", None, max(guard.low, -_INT64), min(guard.high, _INT64 - 1))


def _tensor(guard: g.TensorMatch) -> Check:
    spec = guard.spec
    meta = meta_of(spec.dtype, spec.device)
    leaf = -1 if spec.is_leaf is None else int(spec.is_leaf)
    obj = (spec, spec.cls, meta, spec.keys, spec.requires_grad, leaf, spec.sizes, spec.strides)
    return ("TENSOR", obj, 0, 0)


_CHECKS: dict[type[Any], Callable[[Any], Check]] = {
    g.TypeIs: lambda x: ("TYPE_IS", x.cls, 0, 0),
    g.IdIs: _reference("IS_WEAK"),
    g.CodeIs: _reference("CODE_IS"),
    g.NotNone: lambda x: ("NOT_NONE", None, 0, 0),
    g.EqualsConst: _equals,
    g.Truth: lambda x: ("TRUTH", None, int(x.truth), 0),
    g.IntRange: _range,
    g.TensorMatch: _tensor,
    g.Length: lambda x: ("LENGTH", None, x.n, 0),
    g.DictKeys: lambda x: ("DICT_KEYS", x.keys, 0, 0),
    g.DictHas: lambda x: ("DICT_HAS", x.key, int(x.present), 0),
    g.InstanceLacks: lambda x: ("LACKS", x.attribute, 0, 0),
    g.HasNoAttr: lambda x: ("NO_ATTR", x.attribute, 0, 0),
    g.ClassLacks: lambda x: ("NO_ATTR", x.attribute, 1, 0),
}
