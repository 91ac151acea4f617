"""``autograd.Function.apply``: one call of the graph, whose forward and backward run when the graph is traced.

Their code is not interpreted, so it is read for what it depends on: globals and closure cells that it names are guarded
(``Function.scale`` or ``config.flag`` by their values). What it would do to the world (an attribute set on something
else than ``ctx``, ``print``) leaves the call to Python.
"""

from __future__ import annotations

import builtins
import inspect
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..registry import HANDLERS, handles, trusted_module
from ..signals import NotConst, Restart, unsupported
from ..values.base import Value
from ..values.functions import MadeFunction
from ..values.kernels import KernelValue
from ..values.statics import FunctionValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..rebuild import Rebuilder
    from ..tracer import Tracer

_METHODS = ("forward", "setup_context", "backward", "vjp", "jvp")
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
_EFFECTS = frozenset({print, open, input, exec, eval, setattr, delattr, globals, __import__})
_CHAINS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORES = frozenset({"STORE_ATTR", "DELETE_ATTR"})


def apply_function(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls.apply(...)``, run on fake tensors now."""
    cls = args[0].as_const(vm)
    if not trusted_module(cls.__module__):
        _Reader(vm, cls).read_class()
    try:
        return vm.record(cls.apply, args[1:], kwargs)
    except NotConst:
        unsupported(f"{cls.__name__}.apply() with an argument that a graph cannot hold")


for _cls in torch.autograd.Function.__mro__:
    _apply = _cls.__dict__.get("apply")
    if _apply is not None:
        HANDLERS[getattr(_apply, "__func__", _apply)] = apply_function


class _Scope:
    """As much of a frame as reading a global takes."""

    def __init__(self, vm: Tracer, scope: dict[str, Any]) -> None:
        self.vm, self.globals = vm, scope


class _Reader:
    """Reads the code of one class or function, and of the functions of its package that it calls."""

    def __init__(self, vm: Tracer, cls: type | FunctionType, title: str = "{}.apply()") -> None:
        self.vm, self.cls, self.title = vm, cls, title.format(cls.__name__)
        self.package = cls.__module__.split(".", 1)[0]
        self.seen: set[Any] = vm.functions_read

    def read_class(self) -> None:
        for name in _METHODS:
            raw = getattr(self.cls, name, None)
            if isinstance(raw, FunctionType) and not trusted_module(raw.__module__):
                self.read(FunctionValue(raw), ctx=True)

    def refuse(self, what: str) -> None:
        hint = "pass it to apply() as an argument, or move the effect out of the function"
        unsupported(f"{self.title}, whose code {what}", hint if isinstance(self.cls, type) else "register it outside")

    def read(self, f: FunctionValue, ctx: bool = False) -> None:
        raw = f.function()
        if raw in self.seen:
            return
        self.seen.add(raw)
        wrapped = getattr(raw, "__wrapped__", None)  # once_differentiable
        if isinstance(wrapped, FunctionType) and trusted_module(raw.__globals__.get("__name__")):
            self.read(FunctionValue(wrapped), ctx)
            return
        instructions = self.vm.decode(f.code).bytecode.instructions
        own = f.code.co_varnames[0] if ctx and f.code.co_argcount else None
        for i, ins in enumerate(instructions):
            if ins.op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self.refuse(f"assigns the global {ins.arg}")
            elif ins.op in _STORES:
                before = instructions[i - 1]
                if own is None or before.op not in ("LOAD_FAST", "LOAD_FAST_CHECK") or before.arg != own:
                    self.refuse(f"assigns the attribute {ins.arg!r} of something else than {own or 'ctx'}")
            elif ins.op == "LOAD_GLOBAL":
                self.follow(self.globals(f, ins.arg), _chain(instructions, i + 1), ins.arg)
            elif ins.op == "LOAD_DEREF" and ins.arg in f.code.co_freevars and raw is not self.cls:
                cell = f.cells(self.vm)[f.code.co_freevars.index(ins.arg)]
                self.follow((cell.read(self.vm), cell.raw.cell_contents), _chain(instructions, i + 1), ins.arg)  # type: ignore[union-attr]
            elif ins.op == "STORE_DEREF" and ins.arg in f.code.co_freevars:
                self.refuse(f"assigns {ins.arg!r} of the function around it")

    def globals(self, f: FunctionValue, name: str) -> tuple[Value | None, Any]:
        from ..instr_load import global_value

        scope = f.globals
        raw = scope[name] if name in scope else getattr(builtins, name, None)
        return global_value(_Scope(self.vm, scope), name), raw  # type: ignore[arg-type]

    def follow(self, found: tuple[Value | None, Any], chain: list[str], name: str) -> None:
        """Guard what ``name.a.b`` is, if it could be something else in the next call."""
        v, raw = found
        for attr in chain:
            if v is None or _fixed(raw) or isinstance(raw, (FunctionType, torch.Tensor)):
                break
            known = inspect.getattr_static(raw, attr, None)
            if isinstance(raw, type) and (known is None or hasattr(type(known), "__get__")):
                if isinstance(known, (staticmethod, FunctionType)):
                    raw_function: Any = known.__func__ if isinstance(known, staticmethod) else known
                    self.settle(FunctionValue(raw_function), raw_function, f"{name}.{attr}")
                break
            if known is None or hasattr(type(known), "__get__") and not isinstance(known, (FunctionType, type)):
                break
            v, raw, name = v.get_attr(self.vm, attr), getattr(raw, attr), f"{name}.{attr}"
        if v is not None:
            self.settle(v, raw, name)

    def settle(self, v: Value, raw: Any, name: str) -> None:
        if isinstance(raw, BuiltinFunctionType) and raw in _EFFECTS:
            self.refuse(f"calls {name}()")
        if isinstance(raw, _CONSTANTS) or isinstance(raw, tuple) and all(isinstance(x, _CONSTANTS) for x in raw):
            v.as_const(self.vm)
        elif isinstance(raw, FunctionType):
            if not trusted_module(raw.__module__) and isinstance(v, FunctionValue):
                self.vm.guards.function(v.source, raw)
                if (raw.__module__ or "").split(".", 1)[0] == self.package:
                    self.read(v)
        elif isinstance(raw, torch.Tensor):
            self.vm.guards.const(v.source, raw)
        elif isinstance(v, KernelValue):
            v.as_const(self.vm)
        elif isinstance(raw, type):
            if issubclass(raw, torch.autograd.Function) and not trusted_module(raw.__module__):
                _Reader(self.vm, raw).read_class()
        elif not _fixed(raw) and not isinstance(raw, ModuleType):
            self.refuse(f"reads {name}, a {type(raw).__name__} that may change")


# ---- hooks on tensors that the trace made


class Hook:
    """The call of the graph that registers a hook: the tensor's gradient goes through ``function``."""

    def __init__(self, function: FunctionType) -> None:
        self.function, self.__name__ = function, "register_hook"

    def __call__(self, t: torch.Tensor) -> None:
        t.register_hook(self.function)  # type: ignore[no-untyped-call]


class HookHandle(Value):
    """What ``register_hook`` gave."""

    __slots__ = ()

    def __init__(self) -> None:
        self.source = None

    def pytype(self, vm: Tracer) -> type:
        return torch.utils.hooks.RemovableHandle

    def get_attr(self, vm: Tracer, name: str) -> Value:
        _refuse_hooks(vm)

    def rebuild(self, rb: Rebuilder) -> None:
        _refuse_hooks(rb.vm)


def _refuse_hooks(vm: Tracer) -> NoReturn:
    """Start over, and leave the registration to Python: the program does something with the handle."""
    vm.plan.refused.add("register_hook")
    raise Restart


_OUTSIDE = "register it outside of it"


@handles(torch.Tensor.register_hook)
def register_hook(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a tensor made in the trace: a call of the graph, if the hook depends on its gradient and constants alone."""
    t, f = args[0], args[1] if len(args) > 1 else None
    title = "Tensor.register_hook() inside of the compiled function"
    known = isinstance(t, TensorValue) and isinstance(f, (FunctionValue, MadeFunction))
    if kwargs or not known or "register_hook" in vm.plan.refused:
        unsupported(title, _OUTSIDE)
    assert isinstance(t, TensorValue) and isinstance(f, (FunctionValue, MadeFunction))
    if t.raw is not None or t.fake(vm).is_leaf:
        unsupported(f"{title}, of a leaf", _OUTSIDE)
    try:
        function = _standalone(vm, f)
    except NotConst:
        unsupported(f"{title}, of a function that is given other things than constants", _OUTSIDE)
    like = FunctionValue(function)
    like._cells = f.cells(vm)
    _Reader(vm, function, title).read(like)
    vm.record(Hook(function), [t], {})
    vm.hooked.append(t)
    return HookHandle()


def _standalone(vm: Tracer, f: FunctionValue | MadeFunction) -> FunctionType:
    """The function with what it closes over as it is now. NotConst where that is no constant."""
    if isinstance(f, FunctionValue):
        f.as_const(vm)
    cells = [c.read(vm) for c in f.cells(vm)]
    if any(c is None for c in cells):
        raise NotConst
    closure = tuple(CellType(c.as_const(vm)) for c in cells if c is not None)
    defaults = tuple(v.as_const(vm) for v in f.defaults(vm))
    out = FunctionType(f.code, f.globals, f.code.co_name, defaults, closure)
    out.__kwdefaults__ = {k: v.as_const(vm) for k, v in f.kwdefaults(vm).items()} or None
    return out


def _fixed(raw: Any) -> bool:
    """Modules of torch and the standard library, and what is made by them."""
    if isinstance(raw, ModuleType):
        return trusted_module(raw.__name__)
    return isinstance(raw, BuiltinFunctionType) or type(raw).__module__.startswith("torch._")


def _chain(instructions: Any, i: int) -> list[str]:
    names = []
    while i < len(instructions) and instructions[i].op in _CHAINS:
        names.append(instructions[i].arg)
        i += 1
    return names
