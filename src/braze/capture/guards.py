"""Guards as data: what must hold for a compiled version of a frame to be valid.

A guard is a condition on the value at one :class:`~braze.capture.source.Source` (or, for :class:`GlobalState`,
:class:`Same` and :class:`Distinct`, on the process or on several values).  ``check`` is the executable meaning; the
native program that runs on each call (``program.py``) must agree with it.  Guards on one source are checked in the
order in which they were added, parents before children.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from braze.ir import Expr, IntLike, Loc, Symbol, evaluate, symbol_of, symbols, to_str
from braze.ir.expr import Atom, Call

from .native import note_meta
from .source import FrameValues, Source, key_text, raw_length, typed_key

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()
_CONTAINERS = (dict, list, tuple, set, frozenset)
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented))


def same_constant(a: Any, b: Any) -> bool:
    """Equal in type and value, also inside tuples and frozensets; NaN equals NaN, 0.0 differs from -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same_constant(x, y) for x, y in zip(a, b))
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)
    if isinstance(a, frozenset):
        return {typed_key(x) for x in a} == {typed_key(x) for x in b}
    return bool(a == b)


def _short(value: Any, limit: int = 80) -> str:
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, FunctionType):
        code = value.__code__
        return f"{value.__qualname__} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    if isinstance(value, (BuiltinFunctionType, ModuleType)):
        return value.__name__
    text = str(TensorSpec.of(value)) if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class Reference:
    """An object held weakly where its type allows, else strongly (constants, builtin containers)."""

    __slots__ = ("_ref", "_value", "id")

    def __init__(self, value: Any) -> None:
        self.id = id(value)
        self._ref: weakref.ref[Any] | None = None
        self._value = None
        try:
            self._ref = weakref.ref(value)
        except TypeError:
            self._value = value

    @property
    def weak(self) -> weakref.ref[Any] | None:
        """The weak reference, or None where the object is held strongly."""
        return self._ref

    def __call__(self) -> Any:
        """The object, or ``MISSING`` after it died."""
        if self._ref is None:
            return self._value
        value = self._ref()
        return MISSING if value is None else value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a guard asks of a tensor. None in ``sizes`` or ``strides`` is "any" (a dynamic dimension).

    ``keys`` is the raw dispatch key set (``torch._C._dispatch_keys(t).raw_repr()``); it decides layout, subclass
    dispatch, conjugate/negative bits, functorch wrappers and inference tensors at once. ``cls`` is the exact type.
    """

    cls: type
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    requires_grad: bool
    keys: int
    is_leaf: bool | None = None

    @staticmethod
    def of(t: torch.Tensor, dynamic: Iterable[int] = (), check_leaf: bool = False) -> TensorSpec:
        """The spec that ``t`` meets. ``dynamic`` are the dims with a free size; strides that depend on one are free."""
        note_meta(t)
        free = {d % t.dim() for d in dynamic}
        strided = t.layout is torch.strided
        sizes = tuple(None if i in free else n for i, n in enumerate(t.shape))
        strides: list[int | None] | None = list(t.stride()) if strided else None
        if free and strides is not None:
            limit = min(t.stride(d) for d in free)
            strides = [n if n is not None and n <= limit else None for n in strides]
        return TensorSpec(
            type(t),
            t.dtype,
            t.device,
            sizes,
            tuple(strides) if strides is not None else None,
            t.requires_grad,
            torch._C._dispatch_keys(t).raw_repr(),
            t.is_leaf if check_leaf else None,
        )

    def mismatch(self, t: Any) -> str | None:
        """None, or the first difference as "what: expected …, got …"."""
        actual: type = type(t)
        if actual is not self.cls:
            return f"type: expected {self.cls.__qualname__}, got {actual.__qualname__}"
        pairs: list[tuple[str, Any, Any]] = [
            ("dtype", self.dtype, t.dtype),
            ("device", self.device, t.device),
            ("rank", len(self.sizes), t.dim()),
            ("requires_grad", self.requires_grad, t.requires_grad),
        ]
        pairs += [(f"size({i})", n, t.size(i)) for i, n in enumerate(self.sizes) if n is not None and i < t.dim()]
        if self.strides is not None and t.layout is torch.strided and t.dim() == len(self.strides):
            pairs += [(f"stride({i})", n, t.stride(i)) for i, n in enumerate(self.strides) if n is not None]
        if self.is_leaf is not None:
            pairs.append(("is_leaf", self.is_leaf, t.is_leaf))
        for what, want, got in pairs:
            if want != got:
                return f"{what}: expected {want}, got {got}"
        keys = torch._C._dispatch_keys(t)
        if keys.raw_repr() != self.keys:
            want_keys = torch._C.DispatchKeySet.from_raw_repr(self.keys)
            return f"dispatch keys: expected {want_keys}, got {keys}"
        return None

    def __str__(self) -> str:
        dims = ", ".join("*" if n is None else str(n) for n in self.sizes)
        name = "" if self.cls is torch.Tensor else f"{self.cls.__name__} "
        grad = ", requires_grad" if self.requires_grad else ""
        return f"{name}{str(self.dtype).removeprefix('torch.')}[{dims}] {self.device}{grad}"


# ---- guards on one value


@dataclass(frozen=True, slots=True)
class TypeIs:
    """``type(value) is cls``."""

    source: Source
    cls: type

    def check(self, value: Any) -> bool:
        return type(value) is self.cls

    def expected(self) -> str:
        return f"type {self.cls.__qualname__}"


@dataclass(frozen=True, slots=True)
class IdIs:
    """``value is obj``, with the object held weakly where possible."""

    source: Source
    ref: Reference

    @staticmethod
    def of(source: Source, obj: Any) -> IdIs:
        return IdIs(source, Reference(obj))

    def check(self, value: Any) -> bool:
        return value is self.ref()

    def expected(self) -> str:
        return f"the object {_short(self.ref())}"


@dataclass(frozen=True, slots=True)
class NotNone:
    """``value is not None``."""

    source: Source

    def check(self, value: Any) -> bool:
        return value is not None

    def expected(self) -> str:
        return "not None"


@dataclass(frozen=True, slots=True)
class EqualsConst:
    """Same type and value: numbers, strings, bytes, None, and tuples or frozensets of these."""

    source: Source
    value: Any

    def check(self, value: Any) -> bool:
        return same_constant(value, self.value)

    def expected(self) -> str:
        return _short(self.value)


@dataclass(frozen=True, slots=True)
class Truth:
    """``bool(value) is truth``; of a subclass of a builtin container, the builtin's truth."""

    source: Source
    truth: bool

    def check(self, value: Any) -> bool:
        return bool(raw_length(value) if isinstance(value, _CONTAINERS) else value) is self.truth

    def expected(self) -> str:
        return "true" if self.truth else "false"


@dataclass(frozen=True, slots=True)
class IntRange:
    """``type(value) is int and low <= value <= high``."""

    source: Source
    low: int
    high: int

    def check(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def expected(self) -> str:
        if self.low <= -(2**62):
            return "an int" if self.high >= 2**62 else f"an int of at most {self.high}"
        return f"an int of at least {self.low}" if self.high >= 2**62 else f"an int in [{self.low}, {self.high}]"

    def __str__(self) -> str:
        name = self.source.name()
        low, high = self.low > -(2**62), self.high < 2**62
        if low and high:
            return f"{self.low} <= {name} <= {self.high}"
        return f"{name} >= {self.low}" if low else f"{name} <= {self.high}" if high else f"{name} is an int"


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """The value is a tensor that meets ``spec``."""

    source: Source
    spec: TensorSpec

    def check(self, value: Any) -> bool:
        return self.spec.mismatch(value) is None

    def expected(self) -> str:
        return str(self.spec)


@dataclass(frozen=True, slots=True)
class Length:
    """``len(value) == n``; of a subclass of a builtin container, the builtin's length."""

    source: Source
    n: int

    def check(self, value: Any) -> bool:
        return raw_length(value) == self.n

    def expected(self) -> str:
        return f"length {self.n}"


@dataclass(frozen=True, slots=True)
class DictKeys:
    """The dict's keys, in order: constants compared by type and value, other keys by identity."""

    source: Source
    keys: tuple[Any, ...]

    def check(self, value: Any) -> bool:
        if dict.__len__(value) != len(self.keys):
            return False
        constants = (*_ATOMS, tuple)
        keys = OrderedDict.keys(value) if isinstance(value, OrderedDict) else dict.keys(value)
        pairs = zip(self.keys, keys)
        return all(a is b or isinstance(a, constants) and same_constant(a, b) for a, b in pairs)

    def expected(self) -> str:
        return f"keys {_short(list(self.keys))}"


@dataclass(frozen=True, slots=True)
class DictHas:
    """``(key in value) is present`` for a dict and a constant key."""

    source: Source
    key: Any
    present: bool

    def check(self, value: Any) -> bool:
        return dict.__contains__(value, self.key) is self.present

    def expected(self) -> str:
        return f"{'the' if self.present else 'no'} key {key_text(self.key)}"


@dataclass(frozen=True, slots=True)
class InstanceLacks:
    """``name not in value.__dict__`` (true for objects without one): the class attribute is not shadowed."""

    source: Source
    attribute: str

    def check(self, value: Any) -> bool:
        return self.attribute not in getattr(value, "__dict__", ())

    def expected(self) -> str:
        return f"no instance attribute {self.attribute!r}"


@dataclass(frozen=True, slots=True)
class HasNoAttr:
    """Neither the instance dict nor the type has the attribute (``__getattr__`` is not consulted)."""

    source: Source
    attribute: str

    def check(self, value: Any) -> bool:
        if self.attribute in getattr(value, "__dict__", ()):
            return False
        return not any(self.attribute in cls.__dict__ for cls in type(value).__mro__)

    def expected(self) -> str:
        return f"no attribute {self.attribute!r}"


@dataclass(frozen=True, slots=True)
class ClassLacks:
    """The value is a class, and neither it nor its bases have the attribute."""

    source: Source
    attribute: str

    def check(self, value: Any) -> bool:
        return not any(self.attribute in cls.__dict__ for cls in value.__mro__)

    def expected(self) -> str:
        return f"no attribute {self.attribute!r}"


@dataclass(frozen=True, slots=True)
class CodeIs:
    """``value.__code__ is code``: any closure of one function definition. Defaults and cells are guarded apart."""

    source: Source
    ref: Reference

    @staticmethod
    def of(source: Source, code: CodeType) -> CodeIs:
        return CodeIs(source, Reference(code))

    def check(self, value: Any) -> bool:
        return getattr(value, "__code__", None) is self.ref()

    def expected(self) -> str:
        code = self.ref()
        return f"the function {getattr(code, 'co_qualname', code)}"


@dataclass(frozen=True, slots=True)
class Custom:
    """``predicate(value)`` of a pure Python function: the escape, about 100 ns a call. ``text`` says what it asks."""

    source: Source
    predicate: Callable[[Any], bool]
    text: str

    def check(self, value: Any) -> bool:
        return bool(self.predicate(value))

    def expected(self) -> str:
        return self.text


ValueGuard = (
    TypeIs
    | IdIs
    | NotNone
    | EqualsConst
    | Truth
    | IntRange
    | TensorMatch
    | Length
    | DictKeys
    | DictHas
    | InstanceLacks
    | HasNoAttr
    | ClassLacks
    | CodeIs
    | Custom
)


# ---- guards on several values, or none


@dataclass(frozen=True, slots=True)
class Same:
    """``a is b``: one tensor passed twice."""

    a: Source
    b: Source

    def failure(self, frame: FrameValues) -> str | None:
        if self.a.get(frame) is self.b.get(frame):
            return None
        return f"{self.a.name()} is {self.b.name()}: expected one object, got two"

    def __str__(self) -> str:
        return f"{self.a.name()} is {self.b.name()}"


@dataclass(frozen=True, slots=True)
class Distinct:
    """No two of the values are one object: tensors that were seen as different inputs."""

    sources: tuple[Source, ...]

    def failure(self, frame: FrameValues) -> str | None:
        seen: dict[int, Source] = {}
        for source in self.sources:
            other = seen.setdefault(id(source.get(frame)), source)
            if other is not source:
                return f"{other.name()} is {source.name()}: expected two objects, got one"
        return None

    def __str__(self) -> str:
        return f"{len(self.sources)} values are distinct objects: {', '.join(s.name() for s in self.sources[:4])}" + (
            ", ..." if len(self.sources) > 4 else ""
        )


@dataclass(frozen=True, slots=True)
class Relation:
    """A condition on symbolic sizes: ``lhs op rhs`` with op one of ==, !=, <, <=; ``env`` says what a symbol is. Prints
    in the user's terms: ``x.shape[0] <= 512``."""

    op: str
    lhs: IntLike
    rhs: IntLike
    env: tuple[tuple[Symbol, Source], ...]

    def failure(self, frame: FrameValues) -> str | None:
        wanted = symbols(self.lhs, self.rhs)
        values = {s.name: int(source.get(frame)) for s, source in self.env if s in wanted}
        a, b = evaluate(self.lhs, values), evaluate(self.rhs, values)
        if {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b}[self.op]:
            return None
        got = ", ".join(f"{source.name()} = {values[s.name]}" for s, source in self.env if s in wanted)
        return f"{self}: got {got}"

    @staticmethod
    def text(e: IntLike, sources: Mapping[Symbol, Source]) -> str:
        """An expression with each symbol printed as where it is read."""

        def atom(a: Atom) -> str:
            if isinstance(a, Symbol):
                return sources[a].name() if a in sources else a.name
            assert isinstance(a, Call)
            x, y = (Relation.text(b, sources) for b in a.args)
            if a.op in ("min", "max"):
                return f"{a.op}({x}, {y})"
            x, y = (t if isinstance(b, int) or symbol_of(b) else f"({t})" for t, b in zip((x, y), a.args))
            return f"({x} {'//' if a.op == 'floordiv' else '%'} {y})"

        out = to_str(e, atom)
        if isinstance(e, Expr) and len(e.terms) == 1:  # one division needs no parentheses around it
            ((factors, k),) = e.terms.items()
            if k == 1 and len(factors) == 1 and out.startswith("(") and isinstance(factors[0], Call):
                return out[1:-1]
        return out

    def __str__(self) -> str:
        a, b = (Relation.text(e, dict(self.env)) for e in (self.lhs, self.rhs))
        if not isinstance(self.lhs, Expr) and self.op in ("<", "<="):
            return f"{b} {self.op.replace('<', '>')} {a}"
        return f"{a} {self.op} {b}"


_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class GlobalState:
    """The process and thread state that a trace depends on, as it was at :meth:`now`."""

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_cache: bool
    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn: bool
    threads: int
    function_modes: int
    dispatch_modes: int
    torch_function: bool

    @staticmethod
    def now() -> GlobalState:
        return GlobalState(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_num_threads(),
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._is_torch_function_enabled(),
        )

    def failure(self, frame: FrameValues | None = None) -> str | None:
        now = GlobalState.now()
        for name in self.__slots__:
            want, got = getattr(self, name), getattr(now, name)
            if want != got:
                return f"global state {name}: expected {want}, got {got}"
        return None

    def __str__(self) -> str:
        on = [f"{d} {str(t).removeprefix('torch.')}" for d, enabled, t in self.autocast if enabled]
        return f"global state: grad mode {'on' if self.grad_mode else 'off'}, autocast {', '.join(on) or 'off'}, …"


JointGuard = Same | Distinct | Relation | GlobalState
Guard = ValueGuard | JointGuard


def _guard_key(guard: Guard) -> Hashable:
    """Guards with one key ask the same thing."""
    if isinstance(guard, (IdIs, CodeIs)):
        return (type(guard), guard.source, guard.ref.id)
    if isinstance(guard, EqualsConst):
        return (EqualsConst, guard.source, typed_key(guard.value))
    if isinstance(guard, DictKeys):
        keys = (typed_key(k) if isinstance(k, (*_ATOMS, tuple)) else id(k) for k in guard.keys)
        return (DictKeys, guard.source, tuple(keys))
    if isinstance(guard, DictHas):
        return (DictHas, guard.source, typed_key(guard.key), guard.present)
    if isinstance(guard, Custom):
        return (Custom, guard.source, id(guard.predicate), guard.text)
    return guard


class GuardSet:
    """Guards without repeats, in the order in which they were added.

    ``add`` drops what another guard on the same source implies: a type check beside a constant or a tensor spec.
    """

    here: Callable[[], Loc | None] | None = None  # the user's line at hand, while a trace adds guards
    start: Loc | None = None  # the frame's first line, for guards of no line: on modes, on which arguments are one

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self._guards: dict[Hashable, Guard] = {}
        self._locs: dict[Hashable, Loc | None] = {}
        self._implied_type: dict[Source, type] = {}
        for g in guards:
            self.add(g)

    def add(self, guard: Guard, loc: Loc | None = None) -> None:
        """``loc``: the user's line, where it is not the one at hand."""
        if isinstance(guard, (EqualsConst, TensorMatch)):
            cls = type(guard.value) if isinstance(guard, EqualsConst) else guard.spec.cls
            self._implied_type[guard.source] = cls
            self._guards.pop(TypeIs(guard.source, cls), None)
        elif isinstance(guard, TypeIs) and self._implied_type.get(guard.source) is guard.cls:
            return
        key = _guard_key(guard)
        if key not in self._guards:
            self._guards[key] = guard
            self._locs[key] = self.here() if loc is None and self.here is not None else loc

    def loc(self, guard: Guard) -> Loc | None:
        """The user's line for which the guard was added, else the first line of the frame."""
        return self._locs.get(_guard_key(guard)) or self.start

    def __len__(self) -> int:
        return len(self._guards)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def describe(self) -> list[str]:
        """One line a guard, in the user's terms."""
        return [str(g) if isinstance(g, (JointGuard, IntRange)) else f"{g.source.name()}: {g.expected()}" for g in self]

    def explain_failure(self, frame: FrameValues) -> str | None:
        """The first guard that fails in this frame, with what it expected and what it got; None if all hold."""
        found = self.first_failure(frame)
        return found[1] if found is not None else None

    def first_failure(self, frame: FrameValues) -> tuple[Guard, str] | None:
        """The first guard that fails in this frame and why; None if all hold."""
        for g in self:
            text = failure(g, frame)
            if text is not None:
                return g, text
        return None


def _found(guard: ValueGuard, value: Any) -> str:
    """What was found in place of what a guard expects, in the guard's terms."""
    if isinstance(guard, TypeIs):
        return f"type {type(value).__qualname__}"
    if isinstance(guard, Length):
        return f"length {raw_length(value)}"
    if isinstance(guard, DictKeys) and isinstance(value, dict):
        return f"keys {_short(list(value))}"
    if isinstance(guard, DictHas):
        return "it" if guard.key in value else "none"
    if isinstance(guard, (InstanceLacks, HasNoAttr, ClassLacks)):
        return f"{guard.attribute} = {_short(getattr(value, guard.attribute, '?'))}"
    if isinstance(guard, CodeIs) and isinstance(value, FunctionType):
        return _short(value)
    return _short(value)


def failure(guard: Guard, frame: FrameValues) -> str | None:
    """None where ``guard`` holds in the frame, else what was expected and what was found. Never raises."""
    try:
        if isinstance(guard, JointGuard):
            return guard.failure(frame)
        value = guard.source.get(frame)
    except Exception as e:  # reading runs user objects' code, which may raise anything
        where = str(guard) if isinstance(guard, JointGuard) else guard.source.name()
        return f"{where}: cannot be read any more ({type(e).__name__}: {e})"
    try:
        if guard.check(value):
            return None
    except Exception as e:
        got = f"{type(value).__qualname__} ({type(e).__name__}: {e})"
        return f"{guard.source.name()}: expected {guard.expected()}, got {got}"
    if isinstance(guard, TensorMatch):
        return f"{guard.source.name()}: {guard.spec.mismatch(value)}"
    got = _found(guard, value)
    if isinstance(guard, IntRange):
        return f"{guard}: got {got}"
    return f"{guard.source.name()}: expected {guard.expected()}, got {got}"
