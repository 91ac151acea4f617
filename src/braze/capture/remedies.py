"""What a user can do about a guard that keeps failing: one row a kind of guard."""

from __future__ import annotations

from typing import Any

from .guards import (
    ClassLacks,
    CodeIs,
    DictHas,
    DictKeys,
    Distinct,
    EqualsConst,
    GlobalState,
    Guard,
    HasNoAttr,
    IdIs,
    InstanceLacks,
    IntRange,
    Length,
    Relation,
    Same,
    TensorMatch,
    Truth,
    TypeIs,
)

_SIZES = "sizes that change become symbolic at the second value; compile with dynamic=True to have them so at once"
_STABLE = "keep one object and change what it holds, instead of making a new one for each call"


def _constant(guard: Any) -> str:
    if isinstance(guard.value, bool) or isinstance(guard.value, (str, type(None))):
        return "each value has its own compiled version; call with few distinct values"
    return "a number that changes becomes symbolic at the second value, unless the program needs the number itself"


def _tensor(guard: Any) -> str:
    return _SIZES


_OUTCOME = (
    "each outcome of what the program asks about it has its own compiled version; decide outside, or by torch.where"
)
ROWS: dict[type, Any] = {
    EqualsConst: _constant,
    TensorMatch: _tensor,
    IdIs: lambda g: _STABLE,
    CodeIs: lambda g: "define the function once, outside of the code that is called again and again",
    TypeIs: lambda g: "each type has its own compiled version; call with few distinct types",
    Length: lambda g: "each length has its own compiled version; pad, or pass one tensor",
    DictKeys: lambda g: "each set of keys has its own compiled version; keep the keys the same",
    DictHas: lambda g: "each set of keys has its own compiled version; keep the keys the same",
    IntRange: lambda g: _OUTCOME,
    Relation: lambda g: _OUTCOME,
    InstanceLacks: lambda g: "set the attribute before the first call, on the class or on the object",
    HasNoAttr: lambda g: "set the attribute before the first call",
    ClassLacks: lambda g: "set the attribute before the first call",
    Truth: lambda g: "empty and not empty have a compiled version each",
    Same: lambda g: "which arguments are one object is compiled in: call with the same ones alike each time",
    Distinct: lambda g: "which arguments are one object is compiled in: call with the same ones alike each time",
    GlobalState: lambda g: "each state of torch's modes has its own compiled version; call under the same modes",
}
_OTHER = {
    "dtype": "each dtype has its own compiled version; convert before the call",
    "requires_grad": "call with requires_grad set the same way each time",
    "device": "each device has its own compiled version",
    "stride": "call with one memory layout: .contiguous() before the call",
    "rank": "each number of dimensions has its own compiled version",
    "type": "each tensor class has its own compiled version",
}


def remedy(guard: Guard, reason: str) -> str:
    """A sentence on how to avoid the failure; "" where nothing general helps."""
    if isinstance(guard, TensorMatch):
        for word, text in _OTHER.items():
            if f": {word}" in reason:
                return text
    row = ROWS.get(type(guard))
    out: str = row(guard) if row is not None else ""
    return out


def what(guard: Guard, reason: str) -> str:
    """The guard in short, without the values: ``x: size(0)``, ``self.training``."""
    if isinstance(guard, GlobalState):
        return reason.split(":")[0]
    source = getattr(guard, "source", None)
    if source is None:
        return str(guard)
    name: str = source.name()
    if isinstance(guard, TensorMatch):
        rest = reason.removeprefix(f"{name}: ")
        return f"{name}: {rest.split(':')[0]}"
    return name


__all__ = ["remedy", "what"]
