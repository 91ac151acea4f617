"""Existing ``nn.Module`` objects. Parameters and buffers become graph inputs when the program reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.modules.module as nn_module
from torch import nn

from ..passing import passes_result
from ..signals import Raised
from .base import Value
from .mappings import DictValue, MemberDict
from .objects import ObjectValue

if TYPE_CHECKING:
    from ..tracer import Tracer

TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)

_CALL, _GETATTR = nn.Module.__call__, nn.Module.__getattr__  # as they are before anybody patches them


class ModuleValue(ObjectValue):
    """An existing module."""

    __slots__ = ("tables",)

    def __init__(self, cls: type, raw: nn.Module, source: Any) -> None:
        ObjectValue.__init__(self, cls, raw, source)
        self.tables: dict[str, DictValue] = {}

    def table(self, vm: Tracer, name: str) -> DictValue:
        """``_parameters``, ``_buffers`` or ``_modules``, as the present state of the module has it."""
        found = self.tables.get(name)
        if found is None:
            attrs = self.own_attrs(vm)
            assert attrs is not None and self.source is not None
            raw = self.raw.__dict__[name]
            made = vm.known_value(raw)
            if not isinstance(made, DictValue):
                made = MemberDict(self, name, raw, self.source.instance_attr(name))
                vm.remember_value(raw, made)
            attrs.known.setdefault(name, made)
            found = self.tables[name] = made
        return found

    def get_attr(self, vm: Tracer, name: str) -> Value:
        cls = self.cls
        if vm.lookup(cls, "__getattr__") is not _GETATTR or name in TABLES:
            if name in TABLES:
                return self.table(vm, name)
            return vm.object_get(self, name)
        if vm.lookup(cls, "__getattribute__") is not object.__getattribute__:
            return vm.object_get(self, name)
        # members first where the class does not know the name: no absent-key guard for the instance dict is needed,
        # since nn.Module keeps a name in one place only
        raw = self.raw.__dict__
        if vm.lookup(cls, name) is None:
            attrs = self.attrs
            if name not in raw and (attrs is None or name not in attrs.known):
                for table in TABLES:
                    if name in raw[table] or table in self.tables and name in self.tables[table].known:
                        v = self.table(vm, table).find(vm, name)
                        if v is not None:
                            return v
        try:
            return vm.object_plain_get(self, name)
        except Raised as e:
            if not vm.exception_matches(e.value, AttributeError):
                raise
        for table in TABLES:
            v = self.table(vm, table).find(vm, name)
            if v is not None:
                return v
        vm.raise_(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.calls_forward(vm):
            return self.get_attr(vm, "forward").call(vm, args, kwargs)
        return vm.call_special(self, "__call__", args, kwargs)

    def calls_forward(self, vm: Tracer) -> bool:
        """Whether ``module(...)`` does nothing but call ``forward``: no hooks. Guards what it found."""
        if vm.lookup(self.cls, "__call__") is not _CALL:
            return False
        raw = self.raw.__dict__
        if raw.get("_compiled_call_impl") is not None or any(raw[h] for h in HOOKS):
            return False
        known = self.attrs.known if self.attrs is not None else {}
        for h in HOOKS:
            if h in known and known[h].truth(vm):
                return False
        if any(getattr(nn_module, h) for h in GLOBAL_HOOKS):
            return False
        assert self.source is not None
        vm.guard_no_hooks(self.source)
        return True
